package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sediment.tieredstorage.v1.IndexType;
import java.util.Optional;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

class ConversionsTest {
    @ParameterizedTest
    @EnumSource
    void segmentInEveryStateComesBackEqual(RemoteLogSegmentState state) {
        assertComesBackEqual(Samples.segment(Optional.empty(), state, false));
        assertEquals(
            "REMOTE_LOG_SEGMENT_STATE_" + state.name(), Conversions.toMessage(state).name());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 128})
    void customMetadataOfAnyLengthComesBackEqual(int length) {
        assertComesBackEqual(Samples.segment(
            Optional.of(new CustomMetadata(new byte[length])),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            true));
    }

    @Test
    void absentAndEmptyCustomMetadataDiffer() {
        assertFalse(Conversions.toMessage(update(Optional.empty())).hasCustomMetadata());
        assertTrue(Conversions.toMessage(update(Optional.of(new CustomMetadata(new byte[0]))))
            .hasCustomMetadata());
    }

    @Test
    void brokerLeaderEpochIsNotInvented() {
        assertFalse(Conversions.toMessage(Samples.SEGMENT).hasBrokerLeaderEpoch());
    }

    @Test
    void idsAreTextInKafkasForm() {
        var message = Conversions.toMessage(Samples.SEGMENT_ID);

        assertEquals(Samples.SEGMENT_ID.id().toString(), message.getId());
        assertEquals(22, message.getTopicIdPartition().getTopicId().length());
        assertEquals(Samples.SEGMENT_ID, Conversions.toKafka(message));
    }

    @Test
    void updateCarriesAllItsFields() {
        var message =
            Conversions.toMessage(update(Optional.of(new CustomMetadata(new byte[] {5}))));

        assertEquals(Samples.SEGMENT_ID, Conversions.toKafka(message.getRemoteLogSegmentId()));
        assertEquals(12, message.getEventTimestampMs());
        assertEquals(new CustomMetadata(new byte[] {5}),
            Conversions.toKafka(message.getCustomMetadata()));
        assertEquals(RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            Conversions.toKafka(message.getState()));
        assertEquals(7, message.getBrokerId());
    }

    @ParameterizedTest
    @EnumSource
    void partitionDeletionInEveryStateCarriesAllItsFields(RemotePartitionDeleteState state) {
        var message = Conversions.toMessage(
            new RemotePartitionDeleteMetadata(Samples.PARTITION, state, 12, 7));

        assertEquals(Samples.PARTITION, Conversions.toKafka(message.getTopicIdPartition()));
        assertEquals("REMOTE_PARTITION_DELETE_STATE_" + state.name(), message.getState().name());
        assertEquals(12, message.getEventTimestampMs());
        assertEquals(7, message.getBrokerId());
    }

    @ParameterizedTest
    @EnumSource
    void everyIndexTypeHasAName(RemoteStorageManager.IndexType indexType) {
        assertEquals(
            IndexType.valueOf("INDEX_TYPE_" + indexType.name()), Conversions.toMessage(indexType));
    }

    @Test
    void stateOfANewerServerIsRefused() {
        var message = Conversions.toMessage(Samples.SEGMENT).toBuilder().setStateValue(99).build();

        assertThrows(IllegalArgumentException.class, () -> Conversions.toKafka(message));
    }

    private static void assertComesBackEqual(RemoteLogSegmentMetadata metadata) {
        assertEquals(metadata, Conversions.toKafka(Conversions.toMessage(metadata)));
    }

    private static RemoteLogSegmentMetadataUpdate update(Optional<CustomMetadata> customMetadata) {
        return new RemoteLogSegmentMetadataUpdate(Samples.SEGMENT_ID, 12, customMetadata,
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 7);
    }
}
