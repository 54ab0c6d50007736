package io.sediment.acceptance;

import static org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState.COPY_SEGMENT_FINISHED;
import static org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState.COPY_SEGMENT_STARTED;
import static org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState.DELETE_SEGMENT_FINISHED;
import static org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState.DELETE_SEGMENT_STARTED;
import static org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState.DELETE_PARTITION_FINISHED;
import static org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState.DELETE_PARTITION_MARKED;
import static org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState.DELETE_PARTITION_STARTED;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertIterableEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.test.TestUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.EnumSource.Mode;

/**
 * What a RemoteLogMetadataManager owes a broker beside what RemoteLogMetadataManagerTest and
 * RemoteLogSegmentLifecycleTest of Kafka ask. Each test has a partition of its own.
 */
class RemoteLogMetadataManagerAcceptance {
    private static final int SEGMENT_BYTES = 1_048_576;

    private static RemoteLogMetadataManager rlmm;

    private final TopicIdPartition partition = Segments.newPartition();

    @BeforeAll
    static void configure() {
        rlmm = BrokerPlugins.metadataManager();
    }

    @AfterAll
    static void close() throws IOException {
        rlmm.close();
    }

    // Sizes (KIP-852)

    @Test
    void sizeCountsSegmentsThatAreNotFinished() throws Exception {
        for (int size = 1; size <= 3; size++) {
            added(100L * size, 100L * size + 99, size * SEGMENT_BYTES, Map.of(0, 100L * size));
        }
        assertEquals(6L * SEGMENT_BYTES, rlmm.remoteLogSize(partition, 0));
    }

    @Test
    void sizeIsThatOfOneEpoch() throws Exception {
        for (int epoch = 0; epoch <= 2; epoch++) {
            added(100L * epoch, 100L * epoch + 99, (epoch + 1) * SEGMENT_BYTES,
                    Map.of(epoch, 100L * epoch));
        }
        for (int epoch = 0; epoch <= 2; epoch++) {
            assertEquals((epoch + 1L) * SEGMENT_BYTES, rlmm.remoteLogSize(partition, epoch));
        }
    }

    @Test
    void sizeOfAnUnknownEpochIsZero() throws Exception {
        added(0, 99, SEGMENT_BYTES, Map.of(0, 0L));
        assertEquals(0, rlmm.remoteLogSize(partition, 9001));
    }

    @Test
    void segmentOfSeveralEpochsCountsWholeInEach() throws Exception {
        added(0, 99, SEGMENT_BYTES, Map.of(0, 0L, 1, 30L, 2, 60L));
        for (int epoch = 0; epoch <= 2; epoch++) {
            assertEquals(SEGMENT_BYTES, rlmm.remoteLogSize(partition, epoch));
        }
    }

    @Test
    void sizeOfMoreThanTwoGigabytesIsExact() throws Exception {
        for (int count = 0; count < 3; count++) {
            added(100L * count, 100L * count + 99, Integer.MAX_VALUE, Map.of(0, 100L * count));
        }
        assertEquals(3L * Integer.MAX_VALUE, rlmm.remoteLogSize(partition, 0));
    }

    // Transaction indexes (KIP-1058)

    @Test
    void nextSegmentWithTxnIndexSkipsThoseWithout() throws Exception {
        finished(0, 99, Map.of(0, 0L), true);
        finished(100, 199, Map.of(0, 100L), true);
        RemoteLogSegmentMetadata third = finished(200, 299, Map.of(0, 200L), false);
        assertEquals(Optional.of(third), rlmm.nextSegmentWithTxnIndex(partition, 0, 0));
        assertEquals(Optional.empty(), rlmm.nextSegmentWithTxnIndex(partition, 0, 300));
    }

    @Test
    void noNextSegmentWhereNoneHasATxnIndex() throws Exception {
        finished(0, 99, Map.of(0, 0L), true);
        finished(100, 199, Map.of(0, 100L), true);
        assertEquals(Optional.empty(), rlmm.nextSegmentWithTxnIndex(partition, 0, 0));
    }

    @Test
    void nextSegmentWithTxnIndexPassesOverAGap() throws Exception {
        // Kafka's own manager stops there: difference 8 in docs/understand/spi-mapping.md.
        finished(0, 99, Map.of(0, 0L), true);
        RemoteLogSegmentMetadata second = finished(101, 199, Map.of(0, 101L), false);
        assertEquals(Optional.of(second), rlmm.nextSegmentWithTxnIndex(partition, 0, 0));
    }

    @Test
    void nextSegmentWithTxnIndexStaysInTheEpoch() throws Exception {
        finished(0, 99, Map.of(0, 0L), true);
        finished(100, 199, Map.of(1, 100L), false);
        assertEquals(Optional.empty(), rlmm.nextSegmentWithTxnIndex(partition, 0, 0));
    }

    // Lists

    @Test
    void listOfManyPagesIsWhole() throws Exception {
        List<RemoteLogSegmentMetadata> segments = IntStream.range(0, 1_001)
                .mapToObj(n -> Segments.started(
                        partition, 100L * n, 100L * n + 99, SEGMENT_BYTES, Map.of(0, 100L * n)))
                .toList();
        addConcurrently(segments, 50);
        assertIterableEquals(segments, all(rlmm.listRemoteLogSegments(partition, 0)));
        List<RemoteLogSegmentMetadata> inAnyOrder = all(rlmm.listRemoteLogSegments(partition));
        assertEquals(segments.size(), inAnyOrder.size());
        assertTrue(new HashSet<>(inAnyOrder).containsAll(segments), "lacks some");
    }

    @Test
    void listOfAnUnknownEpochIsEmpty() throws Exception {
        added(0, 99, SEGMENT_BYTES, Map.of(0, 0L));
        assertFalse(rlmm.listRemoteLogSegments(partition, 1).hasNext());
    }

    // Custom metadata

    @Test
    void customMetadataComesBack() throws Exception {
        CustomMetadata custom = new CustomMetadata(new byte[] {0, -1, 127});
        RemoteLogSegmentMetadata segment = finished(Optional.of(custom));
        assertEquals(Optional.of(custom), segment.customMetadata());
        assertEquals(List.of(segment), all(rlmm.listRemoteLogSegments(partition)));
    }

    @Test
    void absentCustomMetadataStaysAbsent() throws Exception {
        RemoteLogSegmentMetadata segment = finished(Optional.empty());
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 0, 0));
    }

    @Test
    void emptyCustomMetadataStaysEmpty() throws Exception {
        CustomMetadata empty = new CustomMetadata(new byte[0]);
        RemoteLogSegmentMetadata segment = finished(Optional.of(empty));
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 0, 0));
    }

    /** Kafka erases it, and then nobody finds the objects: a declared difference. */
    @Test
    void customMetadataOutlivesAnUpdateWithout() throws Exception {
        CustomMetadata custom = new CustomMetadata(new byte[] {1});
        RemoteLogSegmentMetadata segment = finished(Optional.of(custom));
        rlmm.updateRemoteLogSegmentMetadata(Segments.update(segment, DELETE_SEGMENT_STARTED)).get();
        RemoteLogSegmentMetadata listed = rlmm.listRemoteLogSegments(partition).next();
        assertEquals(DELETE_SEGMENT_STARTED, listed.state());
        assertEquals(Optional.of(custom), listed.customMetadata());
    }

    // Leadership

    @Test
    void readyFromTheNoticeOfLeadershipUntilTheStop() throws Exception {
        assertFalse(rlmm.isReady(partition));
        rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        waitUntilReady();
        rlmm.onStopPartitions(Set.of(partition));
        assertFalse(rlmm.isReady(partition));
    }

    @Test
    void followersPartitionBecomesReadyToo() throws Exception {
        rlmm.onPartitionLeadershipChanges(Set.of(), Set.of(partition));
        waitUntilReady();
    }

    @Test
    void announcedPartitionIsKnownAndEmpty() throws Exception {
        rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        waitUntilReady();
        assertFalse(rlmm.listRemoteLogSegments(partition).hasNext());
        assertEquals(0, rlmm.remoteLogSize(partition, 0));
        assertEquals(Optional.empty(), rlmm.highestOffsetForEpoch(partition, 0));
    }

    @Test
    void noticesMayComeTwice() throws Exception {
        for (int time = 0; time < 2; time++) {
            rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
            rlmm.onPartitionLeadershipChanges(Set.of(), Set.of(partition));
        }
        waitUntilReady();
        for (int time = 0; time < 2; time++) {
            rlmm.onStopPartitions(Set.of(partition));
        }
        rlmm.onStopPartitions(Set.of(Segments.newPartition()));
        rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        waitUntilReady();
    }

    @Test
    void stopKeepsTheMetadata() throws Exception {
        RemoteLogSegmentMetadata segment = finished(Optional.empty());
        rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        rlmm.onStopPartitions(Set.of(partition));
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 0, 0));
    }

    // Mistakes

    @Test
    void everyReadOfAnUnknownPartitionSaysSo() {
        assertNotFound(() -> rlmm.remoteLogSegmentMetadata(partition, 0, 0));
        assertNotFound(() -> rlmm.highestOffsetForEpoch(partition, 0));
        assertNotFound(() -> rlmm.listRemoteLogSegments(partition));
        assertNotFound(() -> rlmm.listRemoteLogSegments(partition, 0));
        assertNotFound(() -> rlmm.remoteLogSize(partition, 0));
        assertNotFound(() -> rlmm.nextSegmentWithTxnIndex(partition, 0, 0));
    }

    @ParameterizedTest
    @EnumSource(mode = Mode.EXCLUDE, names = "COPY_SEGMENT_STARTED")
    void addTakesOnlyCopiesThatBegin(RemoteLogSegmentState state) {
        RemoteLogSegmentMetadata started = segment(0, 99, Map.of(0, 0L));
        RemoteLogSegmentMetadata other = started.createWithUpdates(Segments.update(started, state));
        assertThrows(IllegalArgumentException.class,
                () -> rlmm.addRemoteLogSegmentMetadata(other));
    }

    @Test
    void updateNeverGoesBackToTheBeginning() throws Exception {
        RemoteLogSegmentMetadata segment = added(0, 99, SEGMENT_BYTES, Map.of(0, 0L));
        RemoteLogSegmentMetadataUpdate update = Segments.update(segment, COPY_SEGMENT_STARTED);
        assertThrows(IllegalArgumentException.class,
                () -> rlmm.updateRemoteLogSegmentMetadata(update));
    }

    @Test
    void updateOfAnUnknownSegmentFailsTheFuture() throws Exception {
        added(0, 99, SEGMENT_BYTES, Map.of(0, 0L));
        RemoteLogSegmentMetadata unknown = segment(100, 199, Map.of(0, 100L));
        CompletableFuture<Void> future = rlmm.updateRemoteLogSegmentMetadata(
                Segments.update(unknown, COPY_SEGMENT_FINISHED));
        ExecutionException failure = assertThrows(ExecutionException.class, future::get);
        assertInstanceOf(RemoteResourceNotFoundException.class, failure.getCause());
    }

    /** Kafka logs and drops it, and the caller believes it done: a declared difference. */
    @Test
    void invalidTransitionFailsTheFuture() throws Exception {
        RemoteLogSegmentMetadata segment = finished(Optional.empty());
        rlmm.updateRemoteLogSegmentMetadata(Segments.update(segment, DELETE_SEGMENT_STARTED)).get();
        CompletableFuture<Void> future = rlmm.updateRemoteLogSegmentMetadata(
                Segments.update(segment, COPY_SEGMENT_FINISHED));
        ExecutionException failure = assertThrows(ExecutionException.class, future::get);
        assertEquals(RemoteStorageException.class, failure.getCause().getClass());
    }

    @Test
    void nullArgumentsAreRefused() {
        assertRefused(() -> rlmm.addRemoteLogSegmentMetadata(null));
        assertRefused(() -> rlmm.updateRemoteLogSegmentMetadata(null));
        assertRefused(() -> rlmm.putRemotePartitionDeleteMetadata(null));
        assertRefused(() -> rlmm.remoteLogSegmentMetadata(null, 0, 0));
        assertRefused(() -> rlmm.highestOffsetForEpoch(null, 0));
        assertRefused(() -> rlmm.listRemoteLogSegments(null));
        assertRefused(() -> rlmm.listRemoteLogSegments(null, 0));
        assertRefused(() -> rlmm.remoteLogSize(null, 0));
    }

    // Repetition

    @Test
    void everyEventMayComeTwice() throws Exception {
        RemoteLogSegmentMetadata segment = segment(0, 99, Map.of(0, 0L));
        for (int time = 0; time < 2; time++) {
            rlmm.addRemoteLogSegmentMetadata(segment).get();
        }
        for (RemoteLogSegmentState state : List.of(
                COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED, DELETE_SEGMENT_FINISHED)) {
            for (int time = 0; time < 2; time++) {
                rlmm.updateRemoteLogSegmentMetadata(Segments.update(segment, state)).get();
            }
        }
        assertFalse(rlmm.listRemoteLogSegments(partition).hasNext());
    }

    @Test
    void closeMayComeTwice() throws Exception {
        RemoteLogMetadataManager another = BrokerPlugins.metadataManager();
        another.close();
        another.close();
    }

    // Deletion of a partition

    /**
     * RemoteLogMetadataManagerTest.testRemotePartitionDeletion of Kafka, step by step, but for one:
     * the segment is deleted before the partition's deletion finishes. Kafka's forgets a partition
     * whatever is left in it, and then nobody finds the objects: a declared difference.
     */
    @Test
    void remotePartitionDeletion() throws Exception {
        rlmm.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        RemoteLogSegmentMetadata segment =
                finished(0, 100, Map.of(0, 0L, 1, 20L, 2, 50L, 3, 80L), false);
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 1, 30));

        put(DELETE_PARTITION_MARKED).get();
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 1, 30));

        put(DELETE_PARTITION_STARTED).get();
        assertEquals(Optional.of(segment), rlmm.remoteLogSegmentMetadata(partition, 1, 30));

        ExecutionException refused = assertThrows(
                ExecutionException.class, () -> put(DELETE_PARTITION_FINISHED).get());
        assertEquals(RemoteStorageException.class, refused.getCause().getClass());

        for (RemoteLogSegmentState state : List.of(
                DELETE_SEGMENT_STARTED, DELETE_SEGMENT_FINISHED)) {
            rlmm.updateRemoteLogSegmentMetadata(Segments.update(segment, state)).get();
        }
        put(DELETE_PARTITION_FINISHED).get();
        assertNotFound(() -> rlmm.remoteLogSegmentMetadata(partition, 1, 30));
    }

    private CompletableFuture<Void> put(RemotePartitionDeleteState state) throws Exception {
        return rlmm.putRemotePartitionDeleteMetadata(new RemotePartitionDeleteMetadata(
                partition, state, System.currentTimeMillis(), Segments.BROKER_ID));
    }

    private RemoteLogSegmentMetadata segment(long start, long end, Map<Integer, Long> epochs) {
        return Segments.started(partition, start, end, SEGMENT_BYTES, epochs);
    }

    private RemoteLogSegmentMetadata added(
            long start, long end, int sizeInBytes, Map<Integer, Long> epochs) throws Exception {
        RemoteLogSegmentMetadata segment =
                Segments.started(partition, start, end, sizeInBytes, epochs);
        rlmm.addRemoteLogSegmentMetadata(segment).get();
        return segment;
    }

    private static void addConcurrently(List<RemoteLogSegmentMetadata> segments, int atOnce)
            throws Exception {
        for (int from = 0; from < segments.size(); from += atOnce) {
            List<CompletableFuture<Void>> adds = new ArrayList<>();
            int to = Math.min(from + atOnce, segments.size());
            for (RemoteLogSegmentMetadata segment : segments.subList(from, to)) {
                adds.add(rlmm.addRemoteLogSegmentMetadata(segment));
            }
            for (CompletableFuture<Void> add : adds) {
                add.get();
            }
        }
    }

    private RemoteLogSegmentMetadata finished(
            long start, long end, Map<Integer, Long> epochs, boolean txnIdxEmpty)
            throws Exception {
        return finished(
                Segments.started(partition, start, end, SEGMENT_BYTES, epochs, txnIdxEmpty),
                Optional.empty());
    }

    private RemoteLogSegmentMetadata finished(Optional<CustomMetadata> customMetadata)
            throws Exception {
        return finished(segment(0, 99, Map.of(0, 0L)), customMetadata);
    }

    private RemoteLogSegmentMetadata finished(
            RemoteLogSegmentMetadata segment, Optional<CustomMetadata> customMetadata)
            throws Exception {
        RemoteLogSegmentMetadataUpdate update =
                Segments.update(segment, COPY_SEGMENT_FINISHED, customMetadata);
        rlmm.addRemoteLogSegmentMetadata(segment).get();
        rlmm.updateRemoteLogSegmentMetadata(update).get();
        return segment.createWithUpdates(update);
    }

    private void waitUntilReady() throws InterruptedException {
        TestUtils.waitForCondition(() -> rlmm.isReady(partition), "is not ready");
    }

    private static List<RemoteLogSegmentMetadata> all(Iterator<RemoteLogSegmentMetadata> found) {
        List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
        found.forEachRemaining(segments::add);
        return segments;
    }

    private static void assertNotFound(Executable call) {
        assertThrows(RemoteResourceNotFoundException.class, call);
    }

    private static void assertRefused(Executable call) {
        assertThrows(NullPointerException.class, call);
    }
}
