package io.sediment.kafka;

import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/** Values that tests begin with. */
final class Samples {
    static final TopicIdPartition PARTITION =
        new TopicIdPartition(Uuid.randomUuid(), new TopicPartition("orders", 3));
    static final RemoteLogSegmentId SEGMENT_ID =
        new RemoteLogSegmentId(PARTITION, Uuid.randomUuid());
    static final RemoteLogSegmentMetadata SEGMENT =
        segment(Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_STARTED, false);

    private Samples() {
    }

    static RemoteLogSegmentMetadata segment(
        Optional<CustomMetadata> customMetadata, RemoteLogSegmentState state, boolean txnIdxEmpty
    ) {
        return new RemoteLogSegmentMetadata(SEGMENT_ID, 100, 199, 1_700_000_000_123L, 7,
            1_700_000_000_456L, 4096, customMetadata, state, Map.of(0, 100L, 2, 150L), txnIdxEmpty);
    }

    static RemoteLogSegmentMetadata segment(int sizeBytes) {
        return new RemoteLogSegmentMetadata(SEGMENT_ID, 100, 199, -1L, 7, 0L, sizeBytes,
            Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, Map.of(0, 100L), true);
    }

    static TopicIdPartition partition(int number) {
        return new TopicIdPartition(PARTITION.topicId(), number, PARTITION.topic());
    }

    /** A finished segment of the sample partition, with an id of its own and 100 offsets. */
    static RemoteLogSegmentMetadata newSegment(long startOffset, int sizeBytes) {
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(PARTITION, Uuid.randomUuid()), startOffset, startOffset + 99,
            -1L, 7, 0L, sizeBytes, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            Map.of(0, startOffset), true);
    }
}
