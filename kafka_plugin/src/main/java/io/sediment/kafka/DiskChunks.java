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
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.LinkedBlockingQueue;
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
 * chunk that would wait behind eight others is not kept. What a file must contain is known only in
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
    // Null also if its segment was dropped while it was written.
    private Key writing;
    private long lastNumber;
    private long cachedBytes;
    private long hits;
    private long failures;
    private boolean isFailing;
    private long failedNanos;

    /**
     * What the directory holds and has done since the start.
     *
     * @param cachedBytes in files
     * @param hits how many chunks were read from a file
     * @param failures how many files were damaged or missing, and writes, reads and deletions failed
     */
    record Counts(long cachedBytes, long hits, long failures) {
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
            1, 1, 0, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> {
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
            if (isPaused() || index.containsKey(key) || writer.getQueue().size() >= MAX_QUEUED) {
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
        IOException failure = null;
        try (InputStream bytes = Files.newInputStream(stored.file())) {
            if (chunk.fillIfIntact(bytes, stored.crc32c())) {
                synchronized (this) {
                    hits++;
                }
                return true;
            }
        } catch (ClosedByInterruptException e) {
            // The plugin is being closed.
            return false;
        } catch (IOException e) {
            failure = e;
        }
        synchronized (this) {
            if (!index.remove(key, stored)) {
                // It was evicted or dropped meanwhile.
                return false;
            }
        }
        queue(() -> delete(stored));
        if (failure == null || failure instanceof NoSuchFileException
            && Files.isDirectory(directory)) {
            synchronized (this) {
                failures++;
            }
            LOG.warn("{} is damaged or missing: it is deleted, and its chunk fetched again; if this"
                + " continues, check the disk, and whether another program uses the directory",
                stored.file());
        } else {
            fail(failure);
        }
        return false;
    }

    /** Forgets a segment's chunks, also one that is being written; deletes their files soon. */
    synchronized void drop(RemoteLogSegmentId segment) {
        for (Key key : List.copyOf(index.keySet())) {
            if (key.segment().equals(segment)) {
                Stored stored = index.remove(key);
                queue(() -> delete(stored));
            }
        }
        if (writing != null && writing.segment().equals(segment)) {
            writing = null;
        }
    }

    synchronized Counts counts() {
        return new Counts(cachedBytes, hits, failures);
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
        if (!makeRoom(chunk.sizeBytes())) {
            return;
        }
        Path file = directory.resolve(PREFIX + ++lastNumber);
        Path unfinished = directory.resolve(file.getFileName() + UNFINISHED);
        CRC32C crc32c = new CRC32C();
        try {
            try (OutputStream bytes =
                new CheckedOutputStream(output.create(unfinished), crc32c)) {
                chunk.writeTo(bytes);
            }
            Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException e) {
            delete(new Stored(unfinished, chunk.sizeBytes(), 0));
            fail(e);
            return;
        }
        commit(key, new Stored(file, chunk.sizeBytes(), (int) crc32c.getValue()));
        succeed();
    }

    /** Counts the bytes as held if there is room. */
    private boolean makeRoom(int sizeBytes) {
        List<Stored> victims = new ArrayList<>();
        synchronized (this) {
            long excessBytes = cachedBytes + sizeBytes - maxBytes;
            for (Key key : List.copyOf(index.keySet())) {
                if (excessBytes > 0) {
                    Stored victim = index.remove(key);
                    victims.add(victim);
                    excessBytes -= victim.sizeBytes();
                }
            }
        }
        victims.forEach(this::delete);
        synchronized (this) {
            boolean hasRoom = cachedBytes + sizeBytes <= maxBytes;
            cachedBytes += hasRoom ? sizeBytes : 0;
            return hasRoom;
        }
    }

    private void commit(Key key, Stored stored) {
        Stored obsolete;
        synchronized (this) {
            obsolete = key.equals(writing) ? index.put(key, stored) : stored;
        }
        if (obsolete != null) {
            delete(obsolete);
        }
    }

    /** Runs in the writer's thread only. A file that cannot be deleted keeps its room. */
    private void delete(Stored stored) {
        try {
            Files.deleteIfExists(stored.file());
            synchronized (this) {
                cachedBytes -= stored.sizeBytes();
            }
        } catch (IOException e) {
            fail(e);
        }
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
