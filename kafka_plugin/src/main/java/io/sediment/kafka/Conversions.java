package io.sediment.kafka;

import com.google.protobuf.ByteString;
import io.sediment.tieredstorage.v1.IndexType;
import io.sediment.tieredstorage.v1.SegmentLeaderEpoch;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Kafka's classes as messages and back, without loss: what is sent and comes back is equal. Enums
 * cross by name, as the numbers of the messages are not Kafka's ids. What comes from a service and
 * cannot be Kafka's is an {@link IllegalArgumentException}.
 */
final class Conversions {
    private static final String SEGMENT_STATE = "REMOTE_LOG_SEGMENT_STATE_";
    private static final String PARTITION_DELETE_STATE = "REMOTE_PARTITION_DELETE_STATE_";
    private static final String INDEX_TYPE = "INDEX_TYPE_";

    private Conversions() {
    }

    static io.sediment.tieredstorage.v1.TopicIdPartition toMessage(TopicIdPartition partition) {
        return io.sediment.tieredstorage.v1.TopicIdPartition.newBuilder()
            .setTopicId(partition.topicId().toString())
            .setTopic(partition.topic())
            .setPartition(partition.partition())
            .build();
    }

    static TopicIdPartition toKafka(io.sediment.tieredstorage.v1.TopicIdPartition message) {
        return new TopicIdPartition(
            Uuid.fromString(message.getTopicId()),
            new TopicPartition(message.getTopic(), message.getPartition()));
    }

    static io.sediment.tieredstorage.v1.RemoteLogSegmentId toMessage(RemoteLogSegmentId id) {
        return io.sediment.tieredstorage.v1.RemoteLogSegmentId.newBuilder()
            .setTopicIdPartition(toMessage(id.topicIdPartition()))
            .setId(id.id().toString())
            .build();
    }

    static RemoteLogSegmentId toKafka(io.sediment.tieredstorage.v1.RemoteLogSegmentId message) {
        return new RemoteLogSegmentId(
            toKafka(message.getTopicIdPartition()), Uuid.fromString(message.getId()));
    }

    /** Leaves broker_leader_epoch absent: Kafka's interface has no such value. */
    static io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata toMessage(
        RemoteLogSegmentMetadata metadata
    ) {
        var message = io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata.newBuilder()
            .setRemoteLogSegmentId(toMessage(metadata.remoteLogSegmentId()))
            .setStartOffset(metadata.startOffset())
            .setEndOffset(metadata.endOffset())
            .setMaxTimestampMs(metadata.maxTimestampMs())
            .setBrokerId(metadata.brokerId())
            .setEventTimestampMs(metadata.eventTimestampMs())
            .setSegmentSizeInBytes(metadata.segmentSizeInBytes())
            .setState(toMessage(metadata.state()))
            .setTxnIdxEmpty(metadata.isTxnIdxEmpty());
        metadata.segmentLeaderEpochs().forEach((leaderEpoch, startOffset) ->
            message.addSegmentLeaderEpochs(SegmentLeaderEpoch.newBuilder()
                .setLeaderEpoch(leaderEpoch)
                .setStartOffset(startOffset)));
        metadata.customMetadata().map(Conversions::toMessage).ifPresent(message::setCustomMetadata);
        return message.build();
    }

    static RemoteLogSegmentMetadata toKafka(
        io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata message
    ) {
        return new RemoteLogSegmentMetadata(
            toKafka(message.getRemoteLogSegmentId()),
            message.getStartOffset(),
            message.getEndOffset(),
            message.getMaxTimestampMs(),
            message.getBrokerId(),
            message.getEventTimestampMs(),
            message.getSegmentSizeInBytes(),
            message.hasCustomMetadata()
                ? Optional.of(toKafka(message.getCustomMetadata()))
                : Optional.empty(),
            toKafka(message.getState()),
            leaderEpochs(message),
            message.getTxnIdxEmpty());
    }

    static io.sediment.tieredstorage.v1.RemoteLogSegmentMetadataUpdate toMessage(
        RemoteLogSegmentMetadataUpdate update
    ) {
        var message = io.sediment.tieredstorage.v1.RemoteLogSegmentMetadataUpdate.newBuilder()
            .setRemoteLogSegmentId(toMessage(update.remoteLogSegmentId()))
            .setEventTimestampMs(update.eventTimestampMs())
            .setState(toMessage(update.state()))
            .setBrokerId(update.brokerId());
        update.customMetadata().map(Conversions::toMessage).ifPresent(message::setCustomMetadata);
        return message.build();
    }

    static io.sediment.tieredstorage.v1.RemotePartitionDeleteMetadata toMessage(
        RemotePartitionDeleteMetadata metadata
    ) {
        return io.sediment.tieredstorage.v1.RemotePartitionDeleteMetadata.newBuilder()
            .setTopicIdPartition(toMessage(metadata.topicIdPartition()))
            .setState(toMessage(metadata.state()))
            .setEventTimestampMs(metadata.eventTimestampMs())
            .setBrokerId(metadata.brokerId())
            .build();
    }

    static io.sediment.tieredstorage.v1.RemoteLogSegmentState toMessage(
        RemoteLogSegmentState state
    ) {
        return io.sediment.tieredstorage.v1.RemoteLogSegmentState.valueOf(
            SEGMENT_STATE + state.name());
    }

    static RemoteLogSegmentState toKafka(io.sediment.tieredstorage.v1.RemoteLogSegmentState state) {
        return RemoteLogSegmentState.valueOf(state.name().replaceFirst("^" + SEGMENT_STATE, ""));
    }

    static io.sediment.tieredstorage.v1.RemotePartitionDeleteState toMessage(
        RemotePartitionDeleteState state
    ) {
        return io.sediment.tieredstorage.v1.RemotePartitionDeleteState.valueOf(
            PARTITION_DELETE_STATE + state.name());
    }

    static IndexType toMessage(RemoteStorageManager.IndexType indexType) {
        return IndexType.valueOf(INDEX_TYPE + indexType.name());
    }

    static CustomMetadata toKafka(ByteString customMetadata) {
        return new CustomMetadata(customMetadata.toByteArray());
    }

    private static ByteString toMessage(CustomMetadata customMetadata) {
        return ByteString.copyFrom(customMetadata.value());
    }

    private static NavigableMap<Integer, Long> leaderEpochs(
        io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata message
    ) {
        NavigableMap<Integer, Long> epochs = new TreeMap<>();
        for (SegmentLeaderEpoch epoch : message.getSegmentLeaderEpochsList()) {
            epochs.put(epoch.getLeaderEpoch(), epoch.getStartOffset());
        }
        return epochs;
    }
}
