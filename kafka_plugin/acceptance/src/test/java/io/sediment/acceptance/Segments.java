package io.sediment.acceptance;

import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/** Metadata as a broker makes it. */
final class Segments {
    static final int BROKER_ID = 0;

    private Segments() {
    }

    /** A partition that nobody has seen. */
    static TopicIdPartition newPartition() {
        return new TopicIdPartition(Uuid.randomUuid(), new TopicPartition("acceptance", 1));
    }

    /** A copy that begins, under a new id. */
    static RemoteLogSegmentMetadata started(TopicIdPartition partition, long startOffset,
            long endOffset, int sizeInBytes, Map<Integer, Long> leaderEpochs) {
        return started(partition, startOffset, endOffset, sizeInBytes, leaderEpochs, false);
    }

    static RemoteLogSegmentMetadata started(TopicIdPartition partition, long startOffset,
            long endOffset, int sizeInBytes, Map<Integer, Long> leaderEpochs,
            boolean txnIdxEmpty) {
        RemoteLogSegmentId id = new RemoteLogSegmentId(partition, Uuid.randomUuid());
        return new RemoteLogSegmentMetadata(id, startOffset, endOffset, 1_700_000_000_000L,
                BROKER_ID, System.currentTimeMillis(), sizeInBytes, leaderEpochs, txnIdxEmpty);
    }

    static RemoteLogSegmentMetadataUpdate update(RemoteLogSegmentMetadata segment,
            RemoteLogSegmentState state, Optional<CustomMetadata> customMetadata) {
        return new RemoteLogSegmentMetadataUpdate(segment.remoteLogSegmentId(),
                System.currentTimeMillis(), customMetadata, state, BROKER_ID);
    }

    static RemoteLogSegmentMetadataUpdate update(
            RemoteLogSegmentMetadata segment, RemoteLogSegmentState state) {
        return update(segment, state, Optional.empty());
    }
}
