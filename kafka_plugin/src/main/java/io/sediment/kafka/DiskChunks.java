package io.sediment.kafka;

import io.sediment.kafka.ChunkCache.Key;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import java.util.zip.CRC32C;
import java.util.zip.CheckedOutputStream;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Chunks of logs in files of a directory, bounded by bytes. One thread writes and deletes files; a
 * chunk for which its queue has no room is not kept. What a file must contain is known only in
 * memory, so that no file of an earlier run or of another program is ever read. No failure here fails
 * a read. Thread-safe; waits for no file while it holds its lock.
 */
final class DiskChunks implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DiskChunks.class);
    private static final String PREFIX = "sediment-chunk-";
    private static final String UNFINISHED = ".tmp";
    private static final Pattern OURS = Pattern.compile(PREFIX + "\\d+(\\.tmp)?");
    private static final int MAX_QUEUED = 8;
    private static final long PAUSE_NANOS = TimeUnit.MINUTES.toNanos(1);
    private static final int CLOSE_TIMEOUT_S = 5;

    private final Path directory;
    private final long maxBytes;
    private final Output output;
    private final LongSupplier clock;
    private final ThreadPoolExecutor writer;

    // The least recently used first.
    private final Map<Key, Stored> index = new LinkedHashMap<>(16, 0.75f, true);
    // Files that are never read again. Only the writer takes them out, when they are deleted.
    private final Deque<Stored> doomed = new ArrayDeque<>();
    // Null also if its segment was dropped while it was written.
    private Key writing;
    private long lastNumber;
    private long heldBytes;
    private long hits;
    private long failures;
    private boolean isFailing;
    private long failedNanos;

    /**
     * What the directory holds and has done since the start.
     *
     * @param heldBytes in files
     * @param hits how many chunks were read from a file
     * @param failures how many files were damaged or missing, and writes, reads and deletions failed
     */
    record Counts(long heldBytes, long hits, long failures) {
        static final Counts NONE = new Counts(0, 0, 0);
    }

    /** Creates a file for writing. */
    interface Output {
        OutputStream create(Path file) throws IOException;
    }

    private record Stored(Path file, int sizeBytes, int crc32c) {
    }

    /**
     * Creates the directory if it is missing, and deletes what an earlier run has left there.
     *
     * @param maxBytes of all files together
     * @param output of the files
     * @param clock as {@link System#nanoTime}
     * @throws IOException if files cannot be created and deleted there
     */
    DiskChunks(Path directory, long maxBytes, Output output, LongSupplier clock)
        throws IOException {
        this.directory = directory;
        this.maxBytes = maxBytes;
        this.output = output;
        this.clock = clock;
        if (!Files.isDirectory(directory)) {
            Files.createDirectories(directory);
        }
        deleteLeftovers();
        Path probe = directory.resolve(PREFIX + 0 + UNFINISHED);
        Files.write(probe, new byte[1]);
        Files.delete(probe);
        writer = new ThreadPoolExecutor(
            1, 1, 0, TimeUnit.SECONDS, new ArrayBlockingQueue<>(MAX_QUEUED), task -> {
                Thread thread = new Thread(task, "sediment-read-ahead-disk");
                thread.setDaemon(true);
                return thread;
            });
    }

    /**
     * Queues a chunk, unless it is held already.
     *
     * @param take when it is its turn; empty if it is not to be written any more
     * @param release of a chunk that was taken, when it is written
     */
    void keep(Key key, Supplier<Optional<Chunk>> take, Consumer<Chunk> release) {
        synchronized (this) {
            if (isPaused() || index.containsKey(key)) {
                return;
            }
        }
        queue(() -> write(key, take, release));
    }

    /**
     * Fills a chunk from its file. Its bytes can be read only when all have arrived and have their
     * crc32c.
     *
     * @return false if there is no such file; nothing of it can be read then
     */
    boolean load(Key key, Chunk chunk) {
        Stored stored;
        synchronized (this) {
            stored = isPaused() ? null : index.get(key);
        }
        if (stored == null) {
            return false;
        }
        try (InputStream bytes = Files.newInputStream(stored.file())) {
            if (chunk.fillIfIntact(bytes, stored.crc32c())) {
                synchronized (this) {
                    hits++;
                }
                return true;
            }
            if (lose(key, stored)) {
                reportLost(stored, "is damaged");
            }
        } catch (ClosedByInterruptException e) {
            // The plugin is being closed.
            return false;
        } catch (NoSuchFileException e) {
            if (!lose(key, stored)) {
                return false;
            }
            if (Files.isDirectory(directory)) {
                reportLost(stored, "is missing");
            } else {
                fail(e);
            }
        } catch (IOException e) {
            if (lose(key, stored)) {
                fail(e);
            }
        }
        return false;
    }

    /** Forgets a segment's chunks, also one that is being written; deletes their files soon. */
    synchronized void drop(RemoteLogSegmentId segment) {
        for (Key key : List.copyOf(index.keySet())) {
            if (key.segment().equals(segment)) {
                doomed.add(index.remove(key));
            }
        }
        if (writing != null && writing.segment().equals(segment)) {
            writing = null;
        }
        if (!doomed.isEmpty() && !isPaused()) {
            // Without room in the queue the next task deletes them.
            queue(this::tidy);
        }
    }

    synchronized Counts counts() {
        return new Counts(heldBytes, hits, failures);
    }

    /** Deletes all files. */
    @Override
    public void close() {
        writer.shutdownNow();
        try {
            writer.awaitTermination(CLOSE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        synchronized (this) {
            index.clear();
        }
        try {
            deleteLeftovers();
        } catch (IOException e) {
            LOG.debug("{}: files are left for the next start", directory, e);
        }
    }

    private void deleteLeftovers() throws IOException {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(directory,
            file -> OURS.matcher(file.getFileName().toString()).matches()
                && Files.isRegularFile(file))) {
            for (Path file : files) {
                Files.deleteIfExists(file);
            }
        } catch (DirectoryIteratorException e) {
            throw e.getCause();
        }
    }

    private void queue(Runnable task) {
        try {
            writer.execute(task);
        } catch (RejectedExecutionException | OutOfMemoryError e) {
            LOG.debug("{}: the queue is full, closed or has no thread", directory, e);
        }
    }

    private void write(Key key, Supplier<Optional<Chunk>> take, Consumer<Chunk> release) {
        synchronized (this) {
            if (isPaused()) {
                return;
            }
            // Before the chunk is taken, so that no drop of its segment is missed.
            writing = key;
        }
        try {
            take.get().ifPresent(chunk -> {
                try {
                    write(key, chunk);
                } finally {
                    release.accept(chunk);
                }
            });
        } finally {
            synchronized (this) {
                writing = null;
            }
        }
    }

    private void write(Key key, Chunk chunk) {
        try {
            if (!makeRoom(chunk.sizeBytes())) {
                return;
            }
            Path file = directory.resolve(PREFIX + ++lastNumber);
            int crc32c = write(file, chunk);
            commit(key, new Stored(file, chunk.sizeBytes(), crc32c));
            deleteDoomed();
            succeed();
        } catch (IOException e) {
            fail(e);
        }
    }

    /** Counts the bytes as held if there is room. */
    private boolean makeRoom(int sizeBytes) throws IOException {
        synchronized (this) {
            long doomedBytes = doomed.stream().mapToLong(Stored::sizeBytes).sum();
            long excessBytes = heldBytes - doomedBytes + sizeBytes - maxBytes;
            for (Key key : List.copyOf(index.keySet())) {
                if (excessBytes > 0) {
                    Stored victim = index.remove(key);
                    doomed.add(victim);
                    excessBytes -= victim.sizeBytes();
                }
            }
        }
        deleteDoomed();
        synchronized (this) {
            boolean hasRoom = heldBytes + sizeBytes <= maxBytes;
            heldBytes += hasRoom ? sizeBytes : 0;
            return hasRoom;
        }
    }

    /** Writes a file, or leaves it among the doomed. */
    private int write(Path file, Chunk chunk) throws IOException {
        Path unfinished = directory.resolve(file.getFileName() + UNFINISHED);
        CRC32C crc32c = new CRC32C();
        try {
            try (OutputStream bytes =
                new CheckedOutputStream(output.create(unfinished), crc32c)) {
                chunk.writeTo(bytes);
            }
            Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException | RuntimeException | Error e) {
            synchronized (this) {
                doomed.add(new Stored(unfinished, chunk.sizeBytes(), 0));
            }
            try {
                deleteDoomed();
            } catch (IOException alsoFailed) {
                e.addSuppressed(alsoFailed);
            }
            throw e;
        }
        return (int) crc32c.getValue();
    }

    private synchronized void commit(Key key, Stored stored) {
        if (!key.equals(writing)) {
            doomed.add(stored);
            return;
        }
        Stored earlier = index.put(key, stored);
        if (earlier != null) {
            doomed.add(earlier);
        }
    }

    private void tidy() {
        synchronized (this) {
            if (isPaused()) {
                return;
            }
        }
        try {
            deleteDoomed();
        } catch (IOException e) {
            fail(e);
        }
    }

    /** Runs in the writer's thread only. */
    private void deleteDoomed() throws IOException {
        while (true) {
            Stored next;
            synchronized (this) {
                next = doomed.peek();
            }
            if (next == null) {
                return;
            }
            Files.deleteIfExists(next.file());
            synchronized (this) {
                doomed.remove();
                heldBytes -= next.sizeBytes();
            }
        }
    }

    /** Returns whether the file was still held: not evicted or dropped meanwhile. */
    private synchronized boolean lose(Key key, Stored stored) {
        if (!index.remove(key, stored)) {
            return false;
        }
        doomed.add(stored);
        return true;
    }

    private void reportLost(Stored stored, String what) {
        synchronized (this) {
            failures++;
        }
        LOG.warn("{} {}: it is deleted, and its chunk fetched again; if this continues, check the"
            + " disk, and whether another program uses the directory", stored.file(), what);
        queue(this::tidy);
    }

    private void fail(IOException cause) {
        boolean isFirst;
        synchronized (this) {
            if (writer.isShutdown()) {
                return;
            }
            failures++;
            isFirst = !isFailing;
            isFailing = true;
            failedNanos = clock.getAsLong();
        }
        if (isFirst) {
            LOG.warn("cannot keep chunks of logs in {}: {}; reads go on without it, and it is tried"
                + " again each minute: check its free space, its mount and its permissions",
                directory, cause.toString());
        }
    }

    /** Called for writes only: on a full disk files can still be read. */
    private void succeed() {
        synchronized (this) {
            if (!isFailing) {
                return;
            }
            isFailing = false;
        }
        LOG.info("chunks of logs are kept in {} again", directory);
    }

    private boolean isPaused() {
        return isFailing && clock.getAsLong() - failedNanos < PAUSE_NANOS;
    }
}
