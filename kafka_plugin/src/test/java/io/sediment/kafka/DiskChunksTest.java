package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.UnixOperatingSystemMXBean;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Segments of one chunk each; two fit in memory, three on the disk. */
class DiskChunksTest {
    private static final int SIZE = Chunk.PIECE_BYTES + 1000;
    private static final String FULL = "No space left on device";

    @TempDir
    Path parent;
    private Path directory;
    private final List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
    private final ConcurrentHashMap<RemoteLogSegmentMetadata, byte[]> logs =
        new ConcurrentHashMap<>();
    private final AtomicInteger fetches = new AtomicInteger();
    private final AtomicLong nowNanos = new AtomicLong();
    private final AtomicInteger created = new AtomicInteger();
    private volatile boolean isFull;
    private volatile CountDownLatch writing = new CountDownLatch(0);
    private DiskChunks disk;
    private ChunkCache cache;

    @BeforeEach
    void open() throws Exception {
        directory = parent.resolve("chunks/of-5");
        disk = new DiskChunks(directory, 3 * SIZE, this::create, nowNanos::get);
        cache = new ChunkCache(2 * SIZE, (segment, start, end) -> {
            fetches.incrementAndGet();
            return new ByteArrayInputStream(logs.get(segment));
        }, Optional.of(disk), nowNanos::get);
        for (int number = 0; number < 20; number++) {
            RemoteLogSegmentMetadata segment = Samples.newSegment(100L * number, SIZE);
            byte[] log = new byte[SIZE];
            new Random(number).nextBytes(log);
            segments.add(segment);
            logs.put(segment, log);
        }
    }

    @AfterEach
    void close() {
        writing.countDown();
        cache.close();
        disk.close();
    }

    @Test
    void evictedChunkIsReadFromItsFileAndNotFetchedAgain() throws Exception {
        readAndEvict(0);
        read(0);
        assertEquals(3, fetches.get());
        assertEquals(1, disk.counts().hits());
        assertEquals(3 * SIZE, disk.counts().cachedBytes());
        assertEquals(3, files().size(), "a chunk from the disk is not written again");
        assertEquals(0, disk.counts().failures());
    }

    @Test
    void leastRecentlyUsedFilesAreDeletedBeyondTheBound() throws Exception {
        readAndEvict(0);
        read(0);
        readAndKeep(3);
        assertEquals(3, files().size());
        assertEquals(3 * SIZE, disk.counts().cachedBytes());
        int fetched = fetches.get();
        readAndKeep(4);
        read(0);
        assertEquals(fetched + 1, fetches.get(), "0 was used, 1 and 2 were deleted");
        read(1);
        assertEquals(fetched + 2, fetches.get());
    }

    @ParameterizedTest
    @ValueSource(strings = {"flipped", "short", "long", "missing"})
    void damagedFileIsDeletedCountedAndItsChunkFetchedAgain(String damage) throws Exception {
        readAndEvict(0);
        Path file = fileOf(0);
        byte[] bytes = Files.readAllBytes(file);
        switch (damage) {
            case "flipped" -> bytes[SIZE - 1] ^= 1;
            case "short" -> bytes = Arrays.copyOf(bytes, SIZE - 1);
            case "long" -> bytes = Arrays.copyOf(bytes, SIZE + 1);
            default -> Files.delete(file);
        }
        if (!damage.equals("missing")) {
            Files.write(file, bytes);
        }
        List<String> lines = LogLines.during(() -> {
            read(0);
            assertEventually(() -> !Files.exists(file), "the file is deleted");
            assertEventually(() -> disk.counts().cachedBytes() == 3 * SIZE, "0 is written again");
        });
        assertEquals(4, fetches.get());
        assertEquals(0, disk.counts().hits());
        assertEquals(1, disk.counts().failures());
        assertEquals(1, lines.stream()
            .filter(line -> line.contains("WARN") && line.contains(file.toString())).count());
        pass(1);
        pass(2);
        readAndEvict(0);
        read(0);
        assertTrue(disk.counts().hits() > 0, "the disk was not turned off");
    }

    @Test
    void directoryThatIsRemovedIsTurnedOffUntilItIsThereAgain() throws Exception {
        readAndEvict(0);
        List<String> lines = LogLines.during(() -> {
            removeDirectory();
            read(0);
            assertEventually(() -> disk.counts().failures() > 0, "a failure");
            readAll(10);
        });
        assertOneWarning(lines, "NoSuchFileException");
        assertEquals(0, disk.counts().hits());
        // Recovers by itself.
        Files.createDirectories(directory);
        nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(60));
        lines = LogLines.during(() -> {
            readAll(10);
            assertEventually(() -> disk.counts().cachedBytes() > 0 && !files().isEmpty(), "a file");
            assertEventually(() -> cache.counts().cachedBytes() == 2 * SIZE, "memory");
            disk.close();
        });
        assertEquals(1, count(lines, "INFO"), lines::toString);
        assertEquals(0, count(lines, "cannot keep"), lines::toString);
    }

    @Test
    void fileThatCannotBeReadTurnsTheDiskOff() throws Exception {
        readAndEvict(0);
        Path file = fileOf(0);
        Files.delete(file);
        // It can be opened, but not read.
        Files.createDirectory(file);
        List<String> lines = LogLines.during(() -> {
            read(0);
            readAll(10);
        });
        assertOneWarning(lines, "Is a directory");
        assertEquals(1, disk.counts().failures());
    }

    @Test
    void fullDiskIsTurnedOffForAMinuteAndLeavesNoPartOfAFile() throws Exception {
        isFull = true;
        List<String> lines = LogLines.during(() -> {
            read(0);
            assertEventually(() -> disk.counts().failures() == 1, "the write fails");
            readAll(10);
            nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(59));
            readAll(10);
            assertEquals(1, created.get());
            nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(1));
            read(11);
            assertEventually(() -> disk.counts().failures() == 2, "it is tried again");
            nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(60));
            read(13);
            assertEventually(() -> disk.counts().failures() == 3, "and again");
        });
        assertOneWarning(lines, FULL);
        assertEventually(() -> disk.counts().cachedBytes() == 0, "nothing is held");
        assertEquals(List.of(), files());

        isFull = false;
        nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(60));
        LogLines.during(written -> {
            read(12);
            assertEventually(() -> count(written.get(), "INFO") == 1, "it works again");
        });
        assertEquals(1, files().size());
    }

    @Test
    void droppedSegmentIsNotHeldThoughItsWriteHasBegunOrIsQueued() throws Exception {
        writing = new CountDownLatch(1);
        read(0);
        assertEventually(() -> created.get() == 1, "the write begins");
        read(1);
        cache.drop(id(0));
        cache.drop(id(1));
        writing.countDown();
        readAndKeep(2);
        assertEventually(() -> disk.counts().cachedBytes() == SIZE, "only the third is held");
        assertEquals(1, files().size());
        pass(2);
        read(0);
        read(1);
        assertEquals(5, fetches.get());
        assertEquals(0, disk.counts().hits());
    }

    @Test
    void droppedSegmentsFileIsDeletedAndNeverReadAgain() throws Exception {
        readAndEvict(0);
        cache.drop(id(0));
        assertEventually(() -> files().size() == 2, "its file is deleted");
        assertEventually(() -> disk.counts().cachedBytes() == 2 * SIZE, "its bytes are counted off");
        read(0);
        assertEquals(4, fetches.get());
    }

    @Test
    void memoryOfAChunkIsNotUsedAgainWhileItIsWritten() throws Exception {
        writing = new CountDownLatch(1);
        read(0);
        assertEventually(() -> created.get() == 1, "the write begins");
        read(1);
        read(2);
        // Its reader goes back.
        assertTrue(get(2).isPresent());
        assertFalse(get(3).isPresent(), "0 is being written, 2 is not passed");
        assertTrue(cache.counts().cachedBytes() <= 2 * SIZE);
        writing.countDown();
        assertEventually(() -> !files().isEmpty() && get(3).isPresent(), "room");
        assertArrayEquals(logs.get(segments.get(0)), Files.readAllBytes(files().get(0)));
    }

    /** A file that stays open keeps its room on the disk after its deletion. */
    @Test
    void filesAreClosedAfterReadsAndWrites() throws Exception {
        UnixOperatingSystemMXBean process =
            ManagementFactory.getPlatformMXBean(UnixOperatingSystemMXBean.class);
        readAndEvict(0);
        long openAtMost = process.getOpenFileDescriptorCount() + 10;
        for (int round = 0; round < 10; round++) {
            readAll(3);
        }
        assertTrue(disk.counts().hits() > 20, () -> disk.counts() + ": too few reads");
        assertTrue(process.getOpenFileDescriptorCount() <= openAtMost, "after reads");
        for (int number = 3; number < segments.size(); number++) {
            readAndKeep(number);
        }
        assertTrue(process.getOpenFileDescriptorCount() <= openAtMost, "after writes");
    }

    @Test
    void chunksAreNotKeptIfTheQueueIsFull() throws Exception {
        writing = new CountDownLatch(1);
        try (ChunkCache large = new ChunkCache(20 * SIZE, (segment, start, end) ->
            new ByteArrayInputStream(logs.get(segment)), Optional.of(disk), nowNanos::get)) {
            for (RemoteLogSegmentMetadata segment : segments) {
                large.get(segment, 0, true);
                assertEventually(() -> large.isWhole(segment, 0), "it is fetched");
            }
            // The fetches end a moment after their chunks are whole.
            writing.countDown();
            assertEventually(() -> disk.counts().cachedBytes() == 3 * SIZE, "some are written");
        }
        assertTrue(created.get() <= 10 + 2, () -> created + " of 20 were queued");
    }

    @Test
    void leftoversAreDeletedAtStartAndAtTheEndButNoFilesOfOthers() throws Exception {
        readAndEvict(0);
        for (String name : List.of("sediment-chunk-7", "sediment-chunk-8.tmp",
            "sediment-chunk-9.bak", "sediment-chunk-", "my-sediment-chunk-1", "00000.log")) {
            Files.writeString(directory.resolve(name), "x");
        }
        Files.createDirectory(directory.resolve("sediment-chunk-11"));
        List<String> foreign = List.of("00000.log", "my-sediment-chunk-1", "sediment-chunk-",
            "sediment-chunk-11", "sediment-chunk-9.bak");
        try (DiskChunks other =
            new DiskChunks(directory, 3 * SIZE, this::create, nowNanos::get)) {
            assertEquals(0, other.counts().cachedBytes());
            assertEquals(foreign, names());
        }
        assertEquals(foreign, names());
        // As if two brokers used the directory.
        read(0);
        assertEquals(1, disk.counts().failures());
        assertEventually(() -> files().size() == foreign.size() + 1, "0 is written again");
        disk.close();
        assertEquals(foreign, names());
    }

    @Test
    void whereNoDirectoryCanBeTheStartFails() throws Exception {
        Path file = Files.writeString(parent.resolve("file"), "x");
        for (Path bad : List.of(file, file.resolve("below"))) {
            assertThrows(IOException.class,
                () -> new DiskChunks(bad, 3 * SIZE, this::create, nowNanos::get));
        }
    }

    /** Reads a chunk and two more, so that it is on the disk and no longer in memory. */
    private void readAndEvict(int number) throws Exception {
        for (int each = number; each < number + 3; each++) {
            readAndKeep(each);
        }
        assertFalse(cache.isWhole(segments.get(number), 0));
    }

    private void readAndKeep(int number) throws Exception {
        read(number);
        assertEventually(() -> keeps(number), "it is kept");
    }

    private boolean keeps(int number) {
        return files().stream().anyMatch(file -> isOf(file, number));
    }

    private boolean isOf(Path file, int number) {
        try {
            return !file.toString().endsWith(".tmp")
                && Arrays.equals(logs.get(segments.get(number)), Files.readAllBytes(file));
        } catch (IOException e) {
            // It was deleted meanwhile, or is a directory.
            return false;
        }
    }

    private Path fileOf(int number) {
        return files().stream()
            .filter(file -> isOf(file, number))
            .findFirst()
            .orElseThrow();
    }

    private void readAll(int count) throws Exception {
        for (int number = 0; number < count; number++) {
            read(number);
        }
    }

    /** Reads a chunk as a consumer that then goes on. */
    private void read(int number) throws Exception {
        assertEventually(() -> get(number).isPresent(), "room for chunk " + number);
        RemoteLogSegmentMetadata segment = segments.get(number);
        Chunk chunk = cache.get(segment, 0, true).orElseThrow();
        chunk.await(SIZE - 1);
        byte[] bytes = new byte[SIZE];
        chunk.copy(0, bytes, 0, SIZE);
        assertArrayEquals(logs.get(segment), bytes);
        cache.release(chunk);
        assertEventually(() -> cache.isWhole(segment, 0), "the fetch ends");
        pass(number);
    }

    private Optional<Chunk> get(int number) {
        Optional<Chunk> chunk = cache.get(segments.get(number), 0, true);
        chunk.ifPresent(cache::release);
        return chunk;
    }

    private void pass(int number) {
        cache.pass(segments.get(number), 0);
    }

    private RemoteLogSegmentId id(int number) {
        return segments.get(number).remoteLogSegmentId();
    }

    private OutputStream create(Path file) throws IOException {
        created.incrementAndGet();
        try {
            writing.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        OutputStream bytes = Files.newOutputStream(file);
        if (!isFull) {
            return bytes;
        }
        return new OutputStream() {
            private int writes;

            @Override
            public void write(int one) throws IOException {
                throw new AssertionError("not by bytes");
            }

            @Override
            public void write(byte[] source, int offset, int length) throws IOException {
                if (writes++ > 0) {
                    throw new IOException(FULL);
                }
                bytes.write(source, offset, length);
            }

            @Override
            public void close() throws IOException {
                bytes.close();
            }
        };
    }

    private List<Path> files() {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted().toList();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private List<String> names() {
        return files().stream().map(file -> file.getFileName().toString()).toList();
    }

    private void removeDirectory() throws IOException {
        for (Path file : files()) {
            Files.delete(file);
        }
        Files.delete(directory);
    }

    private void assertOneWarning(List<String> lines, String cause) {
        List<String> warnings = lines.stream().filter(line -> line.contains("WARN")).toList();
        assertEquals(1, warnings.size(), lines::toString);
        assertTrue(warnings.get(0).contains(directory.toString()), warnings::toString);
        assertTrue(warnings.get(0).contains(cause), warnings::toString);
    }

    private static long count(List<String> lines, String word) {
        return lines.stream().filter(line -> line.contains(word)).count();
    }
}
