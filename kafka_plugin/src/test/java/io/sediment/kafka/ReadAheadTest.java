package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sediment.kafka.KeptLog.Read;
import io.sediment.kafka.LogServer.After;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import javax.management.MBeanServer;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ReadAheadTest {
    private static final int MIB = 1024 * 1024;
    private static final int CHUNK = ChunkCache.CHUNK_BYTES;
    private static final int MAX_BYTES = 4 * CHUNK;
    /** A consumer's fetch, and how far Kafka goes back for the next: a batch. */
    private static final int FETCH = MIB;
    private static final int BACK = 16 * 1024;

    private final LogServer rsm = new LogServer();
    private LocalServer server;
    private SedimentRemoteStorageManager manager;

    @BeforeEach
    void start() {
        server = new LocalServer(rsm);
        manager = new SedimentRemoteStorageManager();
        manager.configure(server.settings("broker.id", 5, "read.ahead.max.bytes", MAX_BYTES));
    }

    @AfterEach
    void stop() {
        rsm.goOn();
        manager.close();
        server.close();
    }

    @Test
    void sequentialReaderIsServedFromWholeChunksThatAreFetchedOnce() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 5 * CHUNK + 17);
        byte[] log = rsm.put(segment);

        assertArrayEquals(log, readAll(segment));

        List<Integer> chunks = new ArrayList<>();
        for (int start = 0; start < log.length; start += CHUNK) {
            chunks.add(start);
        }
        assertEquals(LogRanges.FIRST_RANGE_BYTES, rsm.fetched().get(0).sizeBytes());
        assertEquals(chunks, rsm.fetched().stream()
            .skip(1).map(LogServer.Range::startPosition).sorted().toList());
        assertEquals(log.length + LogRanges.FIRST_RANGE_BYTES, rsm.fetchedBytes());
        assertEquals(0, figure("NeverUsedBytes"));
        assertTrue(figure("Hits") >= log.length / FETCH);
    }

    @Test
    void aReadIsContinuedWithinItsBytesAndAtItsEndButNotElsewhere() {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, MIB);
        RemoteLogSegmentMetadata next = Samples.newSegment(100, MIB);
        Read read = new Read(segment, 1_000, Optional.empty());

        assertFalse(read.isSequential());
        assertTrue(new Read(segment, 1_000, Optional.of(read)).isSequential());
        assertTrue(read.isContinuedAt(segment, 1_000), "it is tried again");
        assertFalse(read.isContinuedAt(segment, 999));
        assertFalse(read.isContinuedAt(segment, 1_001));
        assertFalse(read.isContinuedAt(next, 0));
        read.reach(3_000);
        assertTrue(read.isContinuedAt(segment, 3_000));
        assertFalse(read.isContinuedAt(segment, 3_001));
        read.reach(MIB);
        assertTrue(read.isContinuedAt(next, 0));
        assertFalse(read.isContinuedAt(Samples.newSegment(101, MIB), 0));
    }

    @Test
    void randomReaderFetchesNoChunk() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 64 * MIB);
        byte[] log = rsm.put(segment);
        for (int start = 61 * MIB; start > 0; start -= 3 * MIB) {
            assertReads(log, segment, start, MIB);
        }
        assertTrue(rsm.fetched().stream().noneMatch(LogServer.Range::isChunk));
        assertEquals(0, figure("CachedBytes"));
    }

    @Test
    void bytesAreReadWhileTheirChunkArrives() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 2 * CHUNK);
        byte[] log = rsm.put(segment);
        assertReads(log, segment, 0, MIB);
        rsm.after(2 * MIB, After.WAIT);
        assertReads(log, segment, MIB, MIB);
        assertEquals(2 * CHUNK, figure("CachedBytes"));
    }

    @Test
    void readersOfOneChunkShareItsFetch() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, CHUNK);
        byte[] log = rsm.put(segment);
        assertReads(log, segment, 0, MIB);
        rsm.after(10, After.WAIT);
        List<Future<Void>> reads = new ArrayList<>();
        ExecutorService readers = Executors.newCachedThreadPool();
        for (int number = 0; number < 8; number++) {
            reads.add(readers.submit(() -> {
                assertReads(log, segment, 0, CHUNK);
                return null;
            }));
        }
        assertEventually(() -> figure("Hits") == 7, "seven of eight find the chunk");
        rsm.goOn();
        for (Future<Void> read : reads) {
            read.get();
        }
        readers.shutdown();
        assertEquals(2, rsm.fetched().size());
    }

    @Test
    void readThatIsGivenUpGoesOnFillingTheChunkForTheNext() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, CHUNK);
        byte[] log = rsm.put(segment);
        assertReads(log, segment, 0, MIB);
        rsm.after(MIB - 10, After.WAIT);
        AtomicReference<Exception> failure = new AtomicReference<>();
        Thread reader = new Thread(() -> {
            try (InputStream stream = manager.fetchLogSegment(segment, MIB)) {
                stream.readNBytes(MIB);
            } catch (IOException | RemoteStorageException e) {
                failure.set(e);
            }
        });
        reader.start();
        assertEventually(() -> reader.getState() == Thread.State.WAITING, "the reader waits");
        reader.interrupt();
        reader.join();
        assertEquals(RetriableRemoteStorageException.class, failure.get().getClass());

        rsm.goOn();

        assertReads(log, segment, MIB, CHUNK - MIB);
        assertEquals(2, rsm.fetched().size());
    }

    @Test
    void readerGoesOnInTheNextSegmentWithAChunkThatWasFetchedMeanwhile() throws Exception {
        RemoteLogSegmentMetadata first = Samples.newSegment(0, CHUNK);
        RemoteLogSegmentMetadata second = Samples.newSegment(100, 2 * CHUNK);
        rsm.put(first);
        byte[] log = rsm.put(second);
        manager.fetchIndex(second, IndexType.OFFSET).close();
        assertEquals(0, rsm.fetched().size());
        readAll(first);
        int calls = rsm.fetched().size();

        manager.fetchIndex(second, IndexType.OFFSET).close();
        manager.fetchIndex(second, IndexType.TIMESTAMP).close();

        assertEventually(() -> rsm.fetched().size() == calls + 1, "the first chunk is fetched");
        assertArrayEquals(log, readAll(second));
        assertEquals(calls + 2, rsm.fetched().size());
    }

    @Test
    void failureOfAChunkIsThatOfTheReadAndIsForgotten() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, CHUNK);
        byte[] log = rsm.put(segment);
        assertReads(log, segment, 0, MIB);
        rsm.after(0, After.FAIL);
        assertThrows(RetriableRemoteStorageException.class,
            () -> manager.fetchLogSegment(segment, MIB));
        rsm.after(2 * MIB, After.FAIL);
        try (InputStream stream = manager.fetchLogSegment(segment, MIB)) {
            assertArrayEquals(Arrays.copyOfRange(log, MIB, 2 * MIB), stream.readNBytes(MIB));
            IOException failure = assertThrows(IOException.class, stream::read);
            assertEquals(RetriableRemoteStorageException.class, failure.getCause().getClass());
            assertThrows(IOException.class, stream::read);
        }
        assertEquals(0, figure("CachedBytes"));
        rsm.goOn();
        assertReads(log, segment, MIB, CHUNK - MIB);
    }

    @Test
    void streamThatEndsEarlyIsAFailureAndNeverKept() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, CHUNK);
        byte[] log = rsm.put(segment);
        assertReads(log, segment, 0, MIB);
        rsm.after(3 * MIB, After.END);
        try (InputStream stream = manager.fetchLogSegment(segment, MIB)) {
            assertEquals(2 * MIB, stream.readNBytes(2 * MIB).length);
            IOException failure = assertThrows(IOException.class, stream::read);
            assertTrue(failure.getMessage().contains("ends at position " + 3 * MIB),
                failure.getMessage());
        }
        rsm.goOn();
        assertReads(log, segment, 0, CHUNK);
    }

    @Test
    void deletedSegmentIsForgottenAtOnce() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 2 * CHUNK);
        RemoteLogSegmentMetadata other = Samples.newSegment(0, CHUNK);
        byte[] log = rsm.put(segment);
        byte[] otherLog = rsm.put(other);
        assertReads(log, segment, 0, MIB);
        assertReads(log, segment, MIB, MIB);
        assertReads(otherLog, other, 0, MIB);
        assertReads(otherLog, other, MIB, MIB);

        manager.deleteLogSegmentData(segment);

        assertEventually(() -> figure("CachedBytes") == CHUNK, "the other's chunk is held");
        assertThrows(RemoteResourceNotFoundException.class,
            () -> manager.fetchLogSegment(segment, MIB));
        assertReads(otherLog, other, MIB, MIB);
    }

    @Test
    void nothingIsReadAheadIfNothingMayBeHeld() throws Exception {
        manager.close();
        manager = new SedimentRemoteStorageManager();
        manager.configure(server.settings("broker.id", 5, "read.ahead.max.bytes", 0));
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 2 * CHUNK);

        assertArrayEquals(rsm.put(segment), readAll(segment));

        assertTrue(rsm.fetched().stream().noneMatch(LogServer.Range::isChunk));
    }

    @Test
    void readersAtTheEndOfTheirSegmentsLeaveTheirRoomToOthers() throws Exception {
        // Time stands still, so that no reader seems to have stopped.
        try (ReadAhead readAhead =
            new ReadAhead("6", MAX_BYTES, this::openRange, this::openRange, Optional.empty(),
                () -> 0, TimeUnit.MINUTES.toMillis(1))) {
            for (int reader = 0; reader < 6; reader++) {
                readThrough(readAhead, Samples.newSegment(0, 2 * CHUNK));
                assertEquals(0, readAhead.counts().misfits());
            }
        }
    }

    @Test
    void memoryIsFreedWhenNobodyHasReadForAMinute() throws Exception {
        AtomicLong nowNanos = new AtomicLong();
        try (ReadAhead readAhead =
            new ReadAhead("6", MAX_BYTES, this::openRange, this::openRange, Optional.empty(),
                nowNanos::get, 10)) {
            readThrough(readAhead, Samples.newSegment(0, 2 * CHUNK));
            nowNanos.set(TimeUnit.SECONDS.toNanos(59));
            assertTrue(readAhead.counts().cachedBytes() > 0);
            // Ten seconds until the reader seems to have stopped, and a minute.
            nowNanos.set(TimeUnit.SECONDS.toNanos(60));
            assertEventually(() -> {
                nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(1));
                return readAhead.counts().cachedBytes() == 0;
            }, "the memory is free");
        }
    }

    @Test
    void moreReadersThanFitReadOnWithoutEvictingEachOthersChunks() throws Exception {
        int readers = 64;
        int sizeBytes = 2 * CHUNK;
        List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
        byte[] log = {};
        for (int number = 0; number < readers; number++) {
            segments.add(Samples.newSegment(0, sizeBytes));
            log = rsm.put(segments.get(number));
        }
        // Time stands still: on a slow machine readers may seem to have stopped.
        try (ReadAhead readAhead =
            new ReadAhead("6", MAX_BYTES, this::openRange, this::openRange, Optional.empty(),
                () -> 0, TimeUnit.MINUTES.toMillis(1))) {
            for (int start = 0; start < sizeBytes; start += FETCH) {
                for (RemoteLogSegmentMetadata segment : segments) {
                    try (InputStream stream = readAhead.open(segment, start)) {
                        assertArrayEquals(Arrays.copyOfRange(log, start, start + FETCH),
                            stream.readNBytes(FETCH));
                    }
                    assertTrue(readAhead.counts().cachedBytes() <= MAX_BYTES);
                }
            }
            assertEquals(0, readAhead.counts().neverUsedBytes());
            assertTrue(readAhead.counts().misfits() > readers);
        }
        List<LogServer.Range> chunks =
            rsm.fetched().stream().filter(LogServer.Range::isChunk).toList();
        assertEquals(chunks.size(), chunks.stream().distinct().count());
        // As if nothing were read ahead: a range of 2 MiB for each fetch.
        assertTrue(rsm.fetchedBytes() <= 2L * readers * sizeBytes, () -> "" + rsm.fetchedBytes());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void everyReadEqualsTheLogHoweverReadersAndDisksBehave(boolean hasDisk, @TempDir Path disk)
        throws Exception {
        if (hasDisk) {
            manager.close();
            manager = new SedimentRemoteStorageManager();
            manager.configure(server.settings("broker.id", 5, "read.ahead.max.bytes", MAX_BYTES,
                "read.ahead.directory", disk.toString(),
                "read.ahead.directory.max.bytes", 6 * CHUNK));
        }
        long seed = System.nanoTime();
        List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
        List<byte[]> logs = new ArrayList<>();
        for (int number = 0; number < 6; number++) {
            segments.add(Samples.newSegment(100L * number, CHUNK * number / 2 + 12_345));
            logs.add(rsm.put(segments.get(number)));
        }
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Void>> readers = new ArrayList<>();
        for (int number = 0; number < 64; number++) {
            Random random = new Random(seed + number);
            readers.add(threads.submit(() -> {
                int which = random.nextInt(segments.size());
                int position = 0;
                for (int read = 0; read < 12; read++) {
                    if (random.nextInt(4) == 0) {
                        which = random.nextInt(segments.size());
                        position = random.nextInt(logs.get(which).length);
                    }
                    if (random.nextInt(8) == 0) {
                        damageAFile(random, disk);
                    }
                    position = readSome(random, logs.get(which), segments.get(which), position);
                    if (position == logs.get(which).length) {
                        which = (which + 1) % segments.size();
                        position = 0;
                    }
                }
                return null;
            }));
        }
        for (Future<Void> reader : readers) {
            try {
                reader.get();
            } catch (java.util.concurrent.ExecutionException e) {
                throw new AssertionError("seed " + seed, e);
            }
        }
        threads.shutdown();
        assertEventually(() -> figure("CachedBytes") <= MAX_BYTES, "the bound holds");
        assertEquals(hasDisk, figure("DiskCachedBytes") > 0);
        assertEquals(hasDisk, figure("DiskHits") > 0);
        assertEventually(() -> figure("DiskCachedBytes") <= 6 * CHUNK, "the disk's bound holds");
    }

    @Test
    void figuresAndThreadsGoWithTheManager() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 2 * CHUNK);
        rsm.put(segment);
        readAll(segment);
        assertEquals(MAX_BYTES, figure("MaxBytes"));
        assertTrue(readAheadThreads() > 0);

        manager.close();

        assertFalse(ManagementFactory.getPlatformMBeanServer().isRegistered(name()));
        // A thread leaves its pool a moment before it ends.
        assertEventually(() -> readAheadThreads() == 0, "the threads end");
    }

    private static void damageAFile(Random random, Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            for (Path file : files.skip(random.nextInt(4)).limit(1).toList()) {
                Files.write(file, new byte[1 + random.nextInt(100)], StandardOpenOption.WRITE);
            }
        } catch (NoSuchFileException e) {
            // It was deleted meanwhile.
        }
    }

    /** Reads from a position on, perhaps in small steps, perhaps interrupted; returns the next. */
    private int readSome(
        Random random, byte[] log, RemoteLogSegmentMetadata segment, int position
    ) throws Exception {
        int end = Math.min(log.length, position + random.nextInt(2 * MIB));
        boolean isInterrupted = random.nextInt(6) == 0;
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
        ByteArrayOutputStream got = new ByteArrayOutputStream();
        try (InputStream stream = manager.fetchLogSegment(segment, position)) {
            byte[] step = new byte[1 + random.nextInt(300_000)];
            int count = 0;
            while (count >= 0 && got.size() < end - position) {
                count = stream.read(step, 0, Math.min(step.length, end - position - got.size()));
                got.write(step, 0, Math.max(count, 0));
            }
            assertEquals(end - position, got.size());
        } catch (IOException | RetriableRemoteStorageException e) {
            assertTrue(isInterrupted, () -> "uninterrupted read failed: " + e);
        } finally {
            Thread.interrupted();
        }
        int reached = position + got.size();
        assertArrayEquals(Arrays.copyOfRange(log, position, reached), got.toByteArray());
        // Kafka goes back a bit.
        return reached == log.length ? reached : Math.max(position, reached - random.nextInt(BACK));
    }

    /** As Kafka does for a consumer: a fetch, and the next from a bit before its end. */
    private byte[] readAll(RemoteLogSegmentMetadata segment) throws Exception {
        ByteArrayOutputStream log = new ByteArrayOutputStream();
        while (log.size() < segment.segmentSizeInBytes()) {
            int position = Math.max(log.size() - BACK, 0);
            try (InputStream stream = manager.fetchLogSegment(segment, position)) {
                stream.skipNBytes(log.size() - position);
                log.write(stream.readNBytes(FETCH));
            }
        }
        return log.toByteArray();
    }

    private void readThrough(ReadAhead readAhead, RemoteLogSegmentMetadata segment)
        throws Exception {
        byte[] log = rsm.put(segment);
        for (int start = 0; start < log.length; start += FETCH) {
            try (InputStream stream = readAhead.open(segment, start)) {
                assertArrayEquals(
                    Arrays.copyOfRange(log, start, start + FETCH), stream.readNBytes(FETCH));
            }
        }
    }

    private InputStream openRange(RemoteLogSegmentMetadata segment, int start, int end)
        throws RemoteStorageException {
        return manager.fetchLogSegment(segment, start, end);
    }

    private void assertReads(
        byte[] log, RemoteLogSegmentMetadata segment, int position, int length
    ) throws Exception {
        try (InputStream stream = manager.fetchLogSegment(segment, position)) {
            assertArrayEquals(
                Arrays.copyOfRange(log, position, position + length), stream.readNBytes(length));
        }
    }

    private static long figure(String attribute) {
        try {
            MBeanServer beans = ManagementFactory.getPlatformMBeanServer();
            return (long) beans.getAttribute(name(), attribute);
        } catch (javax.management.JMException e) {
            throw new AssertionError(e);
        }
    }

    private static ObjectName name() {
        try {
            return new ObjectName("io.sediment.kafka:type=ReadAhead,broker=5");
        } catch (javax.management.JMException e) {
            throw new AssertionError(e);
        }
    }

    private static long readAheadThreads() {
        return Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().startsWith("sediment-read-ahead"))
            .count();
    }
}
