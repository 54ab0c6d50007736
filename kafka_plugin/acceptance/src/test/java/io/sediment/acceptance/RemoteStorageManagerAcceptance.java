package io.sediment.acceptance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertThrowsExactly;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * What any RemoteStorageManager owes a broker. The list is that of Kafka's LocalTieredStorageTest,
 * less what looks into the directories of that one implementation, and then what its Javadoc and
 * the broker's use of it ask for. As in a broker, every call after the copy carries the custom
 * metadata that the copy answered.
 */
class RemoteStorageManagerAcceptance {
    private static final int MIB = 1 << 20;

    private static RemoteStorageManager rsm;

    private final TopicIdPartition partition = Segments.newPartition();

    @TempDir
    Path directory;

    @BeforeAll
    static void configure() {
        rsm = BrokerPlugins.storageManager();
    }

    @AfterAll
    static void close() throws IOException {
        rsm.close();
    }

    // Copy and fetch

    @Test
    void copyEmptyLogSegment() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 0);
        assertMatches(local, copied(local));
    }

    @Test
    void copyDataFromLogSegment() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        assertMatches(local, copied(local));
    }

    @Test
    void copyLeavesTheCallersLeaderEpochBufferUnread() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        LogSegmentData data = local.data();
        rsm.copyLogSegmentData(begun(local), data);
        assertEquals(local.index(IndexType.LEADER_EPOCH).length,
                data.leaderEpochIndex().remaining());
    }

    @Test
    void copyReadsALeaderEpochBufferThatBeginsElsewhere() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        byte[] epochs = local.index(IndexType.LEADER_EPOCH);
        ByteBuffer padded = ByteBuffer.allocateDirect(epochs.length + 7);
        padded.position(7).mark();
        padded.put(epochs).reset();
        LogSegmentData plain = local.data();
        LogSegmentData data = new LogSegmentData(plain.logSegment(), plain.offsetIndex(),
                plain.timeIndex(), plain.transactionIndex(), plain.producerSnapshotIndex(),
                padded.asReadOnlyBuffer());
        RemoteLogSegmentMetadata begun = begun(local);
        RemoteLogSegmentMetadata segment = finished(begun, rsm.copyLogSegmentData(begun, data));
        assertArrayEquals(epochs, index(segment, IndexType.LEADER_EPOCH));
    }

    @Test
    void largeSegmentComesBackByteForByte() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 40 * MIB);
        Path fetched = directory.resolve("fetched");
        try (InputStream stream = rsm.fetchLogSegment(copied(local), 0)) {
            Files.copy(stream, fetched);
        }
        assertEquals(-1, Files.mismatch(local.log(), fetched));
    }

    @Test
    void fetchLogSegmentFromPosition() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 2 * MIB + 10);
        RemoteLogSegmentMetadata segment = copied(local);
        for (int start : new int[] {0, 1, MIB - 1, MIB, 2 * MIB + 9}) {
            assertArrayEquals(local.logBytes(start, local.sizeInBytes() - 1),
                    bytes(rsm.fetchLogSegment(segment, start)), "from " + start);
        }
    }

    @ParameterizedTest(name = "{0} to {1}")
    @CsvSource({"0, 0", "0, 9", "7, 7", "1, 2097160", "1048575, 1048576", "2097161, 2097161"})
    void bothEndsOfARangeAreInclusive(int start, int end) throws Exception {
        LocalSegment local = LocalSegment.write(directory, 2 * MIB + 10);
        assertArrayEquals(local.logBytes(start, end),
                bytes(rsm.fetchLogSegment(copied(local), start, end)));
    }

    @ParameterizedTest(name = "to {0}")
    @CsvSource({"10", "11", "2147483647"})
    void rangeEndsWhereTheFileEnds(int end) throws Exception {
        LocalSegment local = LocalSegment.write(directory, 10);
        assertArrayEquals(local.logBytes(8, 9),
                bytes(rsm.fetchLogSegment(copied(local), 8, end)));
    }

    @ParameterizedTest
    @EnumSource
    void fetchIndex(IndexType type) throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        assertArrayEquals(local.index(type), index(copied(local), type));
    }

    @Test
    void streamReadsSingleBytesAndSkips() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 2 * MIB);
        byte[] log = local.logBytes(0, 2 * MIB - 1);
        try (InputStream stream = rsm.fetchLogSegment(copied(local), 0)) {
            assertEquals(log[0] & 0xff, stream.read());
            stream.skipNBytes(MIB);
            assertEquals(log[MIB + 1] & 0xff, stream.read());
            assertEquals(MIB - 2, stream.readAllBytes().length);
            assertEquals(-1, stream.read());
            assertEquals(-1, stream.read(new byte[10]));
        }
    }

    // Ranges that are none

    @Test
    void startAndEndPositionConsistency() throws Exception {
        RemoteLogSegmentMetadata segment = copied(LocalSegment.write(directory, 10));
        assertThrows(IllegalArgumentException.class, () -> rsm.fetchLogSegment(segment, -1));
        assertThrows(IllegalArgumentException.class,
                () -> rsm.fetchLogSegment(segment, -1, Integer.MAX_VALUE));
        assertThrows(IllegalArgumentException.class, () -> rsm.fetchLogSegment(segment, 1, -1));
        assertThrows(IllegalArgumentException.class, () -> rsm.fetchLogSegment(segment, 2, 1));
    }

    @ParameterizedTest(name = "{0} of 10 bytes")
    @CsvSource({"10", "11", "2147483647"})
    void startBeyondTheEndIsNotAMissingSegment(int start) throws Exception {
        RemoteLogSegmentMetadata segment = copied(LocalSegment.write(directory, 10));
        assertThrowsExactly(RemoteStorageException.class,
                () -> rsm.fetchLogSegment(segment, start));
    }

    // What is not there

    @Test
    void fetchThrowsIfLogDoesNotExist() throws Exception {
        RemoteLogSegmentMetadata segment = begun(LocalSegment.write(directory, 10));
        assertAbsent(() -> rsm.fetchLogSegment(segment, 0));
        assertAbsent(() -> rsm.fetchLogSegment(segment, 0, segment.segmentSizeInBytes()));
    }

    @ParameterizedTest
    @EnumSource
    void fetchThrowsIfIndexDoesNotExist(IndexType type) throws Exception {
        RemoteLogSegmentMetadata segment = begun(LocalSegment.write(directory, 10));
        assertAbsent(() -> rsm.fetchIndex(segment, type));
    }

    @Test
    void absentTransactionIndexIsNotFound() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3).withoutTransactionIndex();
        RemoteLogSegmentMetadata segment = copied(local);
        assertAbsent(() -> rsm.fetchIndex(segment, IndexType.TRANSACTION));
        assertArrayEquals(local.index(IndexType.LEADER_EPOCH),
                index(segment, IndexType.LEADER_EPOCH));
    }

    // Deletion

    @Test
    void deleteLogSegment() throws Exception {
        RemoteLogSegmentMetadata segment = copied(LocalSegment.write(directory, 3));
        rsm.deleteLogSegmentData(segment);
        assertAllAbsent(segment);
    }

    @Test
    void deleteLogSegmentWithoutOptionalFiles() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3).withoutTransactionIndex();
        RemoteLogSegmentMetadata segment = copied(local);
        rsm.deleteLogSegmentData(segment);
        assertAllAbsent(segment);
    }

    @Test
    void deleteIsIdempotent() throws Exception {
        RemoteLogSegmentMetadata segment = copied(LocalSegment.write(directory, 3));
        for (int time = 0; time < 3; time++) {
            rsm.deleteLogSegmentData(segment);
        }
    }

    @Test
    void deleteOfWhatWasNeverCopiedSucceeds() throws Exception {
        rsm.deleteLogSegmentData(begun(LocalSegment.write(directory, 3)));
    }

    @Test
    void deletePartitionSegmentBySegment() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
        for (int count = 0; count < 10; count++) {
            segments.add(copied(local));
        }
        for (RemoteLogSegmentMetadata segment : segments) {
            rsm.deleteLogSegmentData(segment);
            assertAllAbsent(segment);
        }
    }

    @Test
    void deleteLeavesOtherSegments() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        RemoteLogSegmentMetadata kept = copied(local);
        rsm.deleteLogSegmentData(copied(local));
        assertMatches(local, kept);
    }

    // Repetition and early ends

    @Test
    void repeatedCopyAnswersTheSameCustomMetadata() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 1000);
        RemoteLogSegmentMetadata begun = begun(local);
        Optional<CustomMetadata> first = rsm.copyLogSegmentData(begun, local.data());
        assertEquals(first, rsm.copyLogSegmentData(begun, local.data()));
        assertMatches(local, finished(begun, first));
    }

    @Test
    void streamsClosedEarlyLeaveTheServiceServing() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 16 * MIB);
        RemoteLogSegmentMetadata segment = copied(local);
        byte[] beginning = local.logBytes(0, MIB - 1);
        inEightThreads(25, () -> {
            try (InputStream stream = rsm.fetchLogSegment(segment, 0)) {
                assertArrayEquals(Arrays.copyOf(beginning, 10), stream.readNBytes(10));
            }
        });
        for (int count = 0; count < 100; count++) {
            assertArrayEquals(beginning, bytes(rsm.fetchLogSegment(segment, 0, MIB - 1)));
        }
    }

    @Test
    void closeOfAStreamIsIdempotentAndEndsReading() throws Exception {
        RemoteLogSegmentMetadata segment = copied(LocalSegment.write(directory, 4 * MIB));
        InputStream stream = rsm.fetchLogSegment(segment, 0);
        stream.close();
        stream.close();
        assertThrows(IOException.class, stream::read);
    }

    @Test
    void nullArgumentsAreRefused() throws Exception {
        LocalSegment local = LocalSegment.write(directory, 3);
        RemoteLogSegmentMetadata segment = begun(local);
        LogSegmentData data = local.data();
        assertRefused(() -> rsm.copyLogSegmentData(null, data));
        assertRefused(() -> rsm.copyLogSegmentData(segment, null));
        assertRefused(() -> rsm.fetchLogSegment(null, 0));
        assertRefused(() -> rsm.fetchIndex(segment, null));
        assertRefused(() -> rsm.deleteLogSegmentData(null));
    }

    private RemoteLogSegmentMetadata begun(LocalSegment local) throws IOException {
        return Segments.started(partition, 100, 199, local.sizeInBytes(), Map.of(0, 100L));
    }

    private RemoteLogSegmentMetadata copied(LocalSegment local) throws Exception {
        RemoteLogSegmentMetadata begun = begun(local);
        return finished(begun, rsm.copyLogSegmentData(begun, local.data()));
    }

    private static RemoteLogSegmentMetadata finished(
            RemoteLogSegmentMetadata begun, Optional<CustomMetadata> customMetadata) {
        return begun.createWithUpdates(Segments.update(
                begun, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, customMetadata));
    }

    private static byte[] bytes(InputStream stream) throws IOException {
        try (stream) {
            return stream.readAllBytes();
        }
    }

    private static byte[] index(RemoteLogSegmentMetadata segment, IndexType type)
            throws Exception {
        return bytes(rsm.fetchIndex(segment, type));
    }

    private static void assertMatches(LocalSegment local, RemoteLogSegmentMetadata segment)
            throws Exception {
        assertArrayEquals(local.logBytes(0, local.sizeInBytes() - 1),
                bytes(rsm.fetchLogSegment(segment, 0)));
        for (IndexType type : IndexType.values()) {
            assertArrayEquals(local.index(type), index(segment, type), type.name());
        }
    }

    private static void assertAllAbsent(RemoteLogSegmentMetadata segment) {
        assertAbsent(() -> rsm.fetchLogSegment(segment, 0));
        for (IndexType type : IndexType.values()) {
            assertAbsent(() -> rsm.fetchIndex(segment, type));
        }
    }

    private static void assertAbsent(Fetch call) {
        assertThrows(RemoteResourceNotFoundException.class, call::run);
    }

    private static void assertRefused(Call call) {
        assertThrows(NullPointerException.class, call::run);
    }

    private static void inEightThreads(int timesEach, Call call) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        try {
            List<Future<?>> results = new ArrayList<>();
            for (int thread = 0; thread < 8; thread++) {
                results.add(threads.submit(() -> {
                    for (int time = 0; time < timesEach; time++) {
                        call.run();
                    }
                    return null;
                }));
            }
            for (Future<?> result : results) {
                result.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private interface Fetch {
        InputStream run() throws Exception;
    }
}
