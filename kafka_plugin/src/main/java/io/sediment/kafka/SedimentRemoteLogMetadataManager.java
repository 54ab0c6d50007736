package io.sediment.kafka;

import io.sediment.kafka.LookUpCache.Kind;
import io.sediment.kafka.LookUpCache.Question;
import io.sediment.tieredstorage.v1.AddRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetNextSegmentWithTxnIndexRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSizeRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSizeResponse;
import io.sediment.tieredstorage.v1.ListRemoteLogSegmentsRequest;
import io.sediment.tieredstorage.v1.MutationContext;
import io.sediment.tieredstorage.v1.PutRemotePartitionDeleteMetadataRequest;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerStub;
import io.sediment.tieredstorage.v1.RetentionOwner;
import io.sediment.tieredstorage.v1.UpdateRemoteLogSegmentMetadataRequest;
import java.util.Iterator;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Kafka's RemoteLogMetadataManager (KIP-405) over Sediment's RLMM; settings:
 * those of {@link MetadataManagerConfig}.
 *
 * <p>Strongly consistent: a future that completed means committed, and every later read by this
 * broker sees it. Other brokers' reads see it too, except the two look-ups by which consumers read
 * ({@link #remoteLogSegmentMetadata}, {@link #nextSegmentWithTxnIndex}): these are answered from
 * memory while RLMM reports changes, usually within 100 ms and at most 3 s late; while RLMM is away
 * they may be as old as {@code metadata.max.age.ms}.
 *
 * <p>Thread-safe once configured. A failure that a repeat may cure, a service that is away among
 * them, is a {@link RetriableRemoteStorageException}; a read of a partition that RLMM does not know
 * is a {@link RemoteResourceNotFoundException}; null arguments are refused.
 */
public final class SedimentRemoteLogMetadataManager implements RemoteLogMetadataManager {
    private static final int PAGE_SIZE = 500;

    private volatile MetadataService service;

    /**
     * Reads the settings and returns at once, whether the service is there or not.
     *
     * @throws org.apache.kafka.common.config.ConfigException naming the property at fault
     */
    @Override
    public void configure(Map<String, ?> configs) {
        MetadataManagerConfig config = new MetadataManagerConfig(configs);
        service = new MetadataService(config);
    }

    /**
     * Registers a copy that begins. Idempotent: the same metadata again is a success.
     *
     * @throws IllegalArgumentException if its state is not COPY_SEGMENT_STARTED
     */
    @Override
    public CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata metadata) {
        Objects.requireNonNull(metadata, "metadata");
        if (metadata.state() != RemoteLogSegmentState.COPY_SEGMENT_STARTED) {
            throw new IllegalArgumentException(
                "a segment is added in COPY_SEGMENT_STARTED, not in " + metadata.state());
        }
        return service().mutate(
            "AddRemoteLogSegmentMetadata",
            metadata.topicIdPartition(),
            RemoteLogMetadataManagerStub::addRemoteLogSegmentMetadata,
            AddRemoteLogSegmentMetadataRequest.newBuilder()
                .setMetadata(Conversions.toMessage(metadata))
                .setContext(context())
                .build());
    }

    /**
     * Moves a segment to its next state. Idempotent: the state that it has is a success.
     *
     * @throws IllegalArgumentException if the state is COPY_SEGMENT_STARTED
     */
    @Override
    public CompletableFuture<Void> updateRemoteLogSegmentMetadata(
        RemoteLogSegmentMetadataUpdate update
    ) {
        Objects.requireNonNull(update, "update");
        if (update.state() == RemoteLogSegmentState.COPY_SEGMENT_STARTED) {
            throw new IllegalArgumentException(
                "a segment is added, not moved, to COPY_SEGMENT_STARTED");
        }
        return service().mutate(
            "UpdateRemoteLogSegmentMetadata",
            update.remoteLogSegmentId().topicIdPartition(),
            RemoteLogMetadataManagerStub::updateRemoteLogSegmentMetadata,
            UpdateRemoteLogSegmentMetadataRequest.newBuilder()
                .setUpdate(Conversions.toMessage(update))
                .setContext(context())
                .build());
    }

    /** Finds the finished segment that holds an offset in the lineage of a leader epoch. */
    @Override
    public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(
        TopicIdPartition topicIdPartition, int epochForOffset, long offset
    ) throws RemoteStorageException {
        GetRemoteLogSegmentMetadataRequest request =
            GetRemoteLogSegmentMetadataRequest.newBuilder()
                .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
                .setEpochForOffset(epochForOffset)
                .setOffset(offset)
                .build();
        return service().lookUp(
            "GetRemoteLogSegmentMetadata",
            new Question(Kind.SEGMENT, topicIdPartition, epochForOffset, offset),
            stub -> stub.getRemoteLogSegmentMetadata(request),
            answer -> answer.hasMetadata()
                ? Optional.of(Conversions.toKafka(answer.getMetadata()))
                : Optional.empty());
    }

    /** Finds the highest offset ever finished in a leader epoch, inclusive. */
    @Override
    public Optional<Long> highestOffsetForEpoch(TopicIdPartition topicIdPartition, int leaderEpoch)
        throws RemoteStorageException {
        GetHighestOffsetForEpochRequest request = GetHighestOffsetForEpochRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
            .setLeaderEpoch(leaderEpoch)
            .build();
        return service().read(
            "GetHighestOffsetForEpoch",
            stub -> stub.getHighestOffsetForEpoch(request),
            answer -> answer.hasHighestOffset()
                ? Optional.of(answer.getHighestOffset())
                : Optional.empty());
    }

    /** Moves a partition's deletion to its next state. Idempotent. */
    @Override
    public CompletableFuture<Void> putRemotePartitionDeleteMetadata(
        RemotePartitionDeleteMetadata metadata
    ) {
        Objects.requireNonNull(metadata, "metadata");
        return service().mutate(
            "PutRemotePartitionDeleteMetadata",
            metadata.topicIdPartition(),
            RemoteLogMetadataManagerStub::putRemotePartitionDeleteMetadata,
            PutRemotePartitionDeleteMetadataRequest.newBuilder()
                .setMetadata(Conversions.toMessage(metadata))
                .setContext(context())
                .build());
    }

    /**
     * The segments that are not yet DELETE_SEGMENT_FINISHED, ascending by start offset. Comes in
     * pages: a later one that cannot be had is one of Kafka's unchecked retriable exceptions.
     *
     * @throws RemoteStorageException also if the topic's settings forbid the broker to delete
     */
    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(
        TopicIdPartition topicIdPartition
    ) throws RemoteStorageException {
        // The broker lists a whole partition only when it is about to delete, and raises its log
        // start before the first deletion: a refusal must come now.
        return list(ListRemoteLogSegmentsRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
            .setDeletesFor(RetentionOwner.RETENTION_OWNER_BROKER));
    }

    /** Lists the segments with records of a leader epoch in the same way. */
    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(
        TopicIdPartition topicIdPartition, int leaderEpoch
    ) throws RemoteStorageException {
        return list(ListRemoteLogSegmentsRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
            .setLeaderEpoch(leaderEpoch));
    }

    /** Reports to RLMM in the background, with retries; neither throws nor waits. Idempotent. */
    @Override
    public void onPartitionLeadershipChanges(
        Set<TopicIdPartition> leaderPartitions, Set<TopicIdPartition> followerPartitions
    ) {
        Objects.requireNonNull(leaderPartitions, "leaderPartitions");
        Objects.requireNonNull(followerPartitions, "followerPartitions");
        service().notices().announce(leaderPartitions, followerPartitions);
    }

    /** Reports to RLMM in the background, once; neither throws nor waits. Idempotent. */
    @Override
    public void onStopPartitions(Set<TopicIdPartition> partitions) {
        Objects.requireNonNull(partitions, "partitions");
        service().notices().stop(partitions);
    }

    /** Adds up the bytes of the segments with records of a leader epoch, each counted whole (KIP-852). */
    @Override
    public long remoteLogSize(TopicIdPartition topicIdPartition, int leaderEpoch)
        throws RemoteStorageException {
        GetRemoteLogSizeRequest request = GetRemoteLogSizeRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
            .setLeaderEpoch(leaderEpoch)
            .build();
        return service().read(
            "GetRemoteLogSize",
            stub -> stub.getRemoteLogSize(request),
            GetRemoteLogSizeResponse::getSizeBytes);
    }

    /** Finds the first segment from an offset on whose transaction index may have entries (KIP-1058). */
    @Override
    public Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(
        TopicIdPartition topicIdPartition, int epoch, long offset
    ) throws RemoteStorageException {
        GetNextSegmentWithTxnIndexRequest request = GetNextSegmentWithTxnIndexRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(nonNull(topicIdPartition)))
            .setEpoch(epoch)
            .setOffset(offset)
            .build();
        return service().lookUp(
            "GetNextSegmentWithTxnIndex",
            new Question(Kind.NEXT_WITH_TXN_INDEX, topicIdPartition, epoch, offset),
            stub -> stub.getNextSegmentWithTxnIndex(request),
            answer -> answer.hasMetadata()
                ? Optional.of(Conversions.toKafka(answer.getMetadata()))
                : Optional.empty());
    }

    /**
     * Whether RLMM took the notice of the partition's leadership and serves (KIP-1105). False for a
     * partition that was never announced or has stopped, as in Kafka's own manager.
     */
    @Override
    public boolean isReady(TopicIdPartition topicIdPartition) {
        MetadataService rlmm = service();
        return rlmm.notices().isTaken(nonNull(topicIdPartition)) && rlmm.isReady(topicIdPartition);
    }

    /** Cancels all calls. Idempotent. */
    @Override
    public void close() {
        MetadataService open = service;
        if (open != null) {
            open.close();
        }
    }

    private Iterator<RemoteLogSegmentMetadata> list(ListRemoteLogSegmentsRequest.Builder query)
        throws RemoteStorageException {
        query.setPageSize(PAGE_SIZE);
        return new SegmentIterator(pageToken -> {
            ListRemoteLogSegmentsRequest request = query.setPageToken(pageToken).build();
            return service().read(
                "ListRemoteLogSegments",
                stub -> stub.listRemoteLogSegments(request),
                answer -> new SegmentIterator.Page(
                    answer.getSegmentsList().stream().map(Conversions::toKafka).toList(),
                    answer.getNextPageToken()));
        });
    }

    /**
     * As the broker: RLMM keeps the objects of what its rules delete for a while, and refuses its
     * copies of a topic that RLM looks after.
     */
    private MutationContext context() {
        return MutationContext.newBuilder()
            .setReason("broker " + service().brokerId())
            .setRetentionOwner(RetentionOwner.RETENTION_OWNER_BROKER)
            .build();
    }

    private MetadataService service() {
        if (service == null) {
            throw new IllegalStateException("configure() was not called");
        }
        return service;
    }

    private static TopicIdPartition nonNull(TopicIdPartition topicIdPartition) {
        return Objects.requireNonNull(topicIdPartition, "topicIdPartition");
    }
}
