package io.sediment.kafka;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import com.github.benmanes.caffeine.cache.RemovalCause;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Holds chunks of logs in the broker's heap, so that the fetches of a sequential reader, each about
 * 1 MiB, cost one request for 4 MiB or more, sent before the reader asks.
 *
 * <p>Use: {@link #get} a chunk, read it while it arrives, {@link #release} it; {@link #fetchAhead}
 * the next ones; {@link #pass} those that the reader needs no more. {@link #drop} a segment that is
 * deleted. {@link #freeUnused} regularly.
 *
 * <p>Invariants:
 * <ul>
 * <li>Chunks in memory and those about to arrive take at most {@code maxBytes} together.
 * <li>A chunk is fetched once, by one thread, and to its end, whatever its readers do meanwhile.
 * <li>A needed chunk (arriving, being written to the disk, or awaited by a reader that was here
 *     within 10 s) is never evicted. Passed chunks are, the least recently used first. Without room
 *     for a chunk none is fetched, so that many readers never evict each other's.
 * <li>The memory of a chunk is used again once it is evicted and its last user has released it: as
 *     garbage of the old generation it would cost a tenth of the CPU time of the reads.
 * </ul>
 *
 * <p>A reader that is interrupted leaves the fetch going on for the next one. A fetch that fails
 * fails the readers of the bytes that have not arrived, and is forgotten; chunks of the same request
 * that are complete stay. While a store or RSM stands still for 5 s, no reader joins its fetches:
 * readers open streams of their own, which another RSM may answer. A disk, if there is one, is read
 * first and written behind; its failures cost a fetch and nothing else. Nothing outlives the process.
 * Thread-safe.
 */
final class ChunkCache implements AutoCloseable {
    static final int CHUNK_BYTES = 4 * 1024 * 1024;
    // A consumer that has read nothing for so long may have stopped.
    private static final long STOPPED_AFTER_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final long UNUSED_AFTER_NANOS = TimeUnit.MINUTES.toNanos(1);
    private static final long STANDSTILL_NANOS = TimeUnit.SECONDS.toNanos(5);
    // Of the 8 streams that an RSM serves at a time by default, reads get theirs first.
    private static final int MAX_FETCHES_AHEAD = 8;
    private static final int MAX_CHUNKS_AHEAD = 4;
    // By one request, several of which run at once: each costs RSM and the store as much CPU time
    // as a MiB.
    private static final int CHUNKS_OF_A_REQUEST = 2;
    private static final int CLOSE_TIMEOUT_S = 5;

    private final long maxBytes;
    private final ChunkSource source;
    private final Optional<DiskChunks> disk;
    private final LongSupplier clock;
    private final ExecutorService threads;

    // All below are guarded by this.
    private final Map<Key, Entry> needed = new HashMap<>();
    // Evicted explicitly, by age: a maximum weight would evict by frequency, and so the newest.
    private final Cache<Key, Entry> passed;
    private final Deque<byte[]> spareBuffers = new ArrayDeque<>();
    private long cachedBytes;
    private int fetchesAhead;
    private long hits;
    private long misses;
    private long misfits;
    private long evictions;
    private long fetchedAheadBytes;
    private long neverUsedBytes;

    /**
     * Counts what the cache has done since it was made.
     *
     * @param cachedBytes in memory now, or about to arrive
     * @param hits how many times a reader found its chunk
     * @param misses how many times a sequential reader did not
     * @param misfits how many of the misses had no room
     * @param evictions how many chunks were evicted for others
     * @param fetchedAheadBytes fetched before a reader called for them
     * @param neverUsedBytes of these, evicted or dropped before a reader called for them
     */
    record Counts(long cachedBytes, long hits, long misses, long misfits, long evictions,
        long fetchedAheadBytes, long neverUsedBytes) {
    }

    /** Names a chunk of a segment, both positions inclusive. */
    record Key(RemoteLogSegmentId segment, int startPosition, int endPosition) {
    }

    /** One request for one or more chunks, in the order in which they arrive. */
    private static final class Fetch {
        private final boolean isAhead;
        private final Deque<Entry> missing = new ArrayDeque<>();
        /** The chunk that is arriving. */
        private volatile Chunk current;
        /** When a reader last used one of its chunks: the others wait for the same reader. */
        private long usedNanos;

        Fetch(boolean isAhead, long nowNanos) {
            this.isAhead = isAhead;
            usedNanos = nowNanos;
        }
    }

    /** A chunk with what the cache knows of it, guarded by the cache. */
    private static final class Entry extends Chunk {
        private final Key key;
        private final Fetch fetch;
        private boolean isUsed;
        private boolean isPassed;
        private boolean isFilling = true;
        private boolean isBeingWritten;
        private boolean isRemoved;
        private int users;

        Entry(Key key, Fetch fetch, ChunkCache cache) {
            super(key.startPosition(), key.endPosition(), cache::newBuffer, cache.clock);
            this.key = key;
            this.fetch = fetch;
        }

        boolean isEvictable(long nowNanos) {
            return !isFilling
                && !isBeingWritten
                && (isPassed || nowNanos - fetch.usedNanos >= STOPPED_AFTER_NANOS);
        }
    }

    /**
     * @param maxBytes of all chunks together; 0 fetches none
     * @param source of the bytes, from positions that are multiples of {@link #CHUNK_BYTES}
     * @param disk for whole chunks, if any; its owner closes it
     * @param clock as {@link System#nanoTime}
     */
    ChunkCache(long maxBytes, ChunkSource source, Optional<DiskChunks> disk, LongSupplier clock) {
        this.maxBytes = maxBytes;
        this.source = source;
        this.disk = disk;
        this.clock = clock;
        passed = Caffeine.newBuilder()
            .expireAfterAccess(UNUSED_AFTER_NANOS, TimeUnit.NANOSECONDS)
            .ticker(clock::getAsLong)
            .executor(Runnable::run)
            .removalListener((Key key, Entry entry, RemovalCause cause) -> removed(entry))
            .build();
        AtomicInteger number = new AtomicInteger();
        threads = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "sediment-read-ahead-" + number.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        });
    }

    /** Returns the start of the chunk that a position is in. */
    static int startOf(int position) {
        return position - position % CHUNK_BYTES;
    }

    /**
     * Returns the chunk that begins at a position. The caller calls {@link #release} when it has
     * read what it wants; until then the chunk's memory is not used again.
     *
     * @param mayFetch whether to fetch a chunk that is not there
     * @return empty if the chunk is not there and must not be fetched or has no room, or if its
     *     bytes have stopped arriving
     */
    synchronized Optional<Chunk> get(
        RemoteLogSegmentMetadata segment, int startPosition, boolean mayFetch
    ) {
        Key key = key(segment, startPosition);
        long nowNanos = clock.getAsLong();
        Entry entry = find(key);
        if (entry != null) {
            hits++;
        } else if (mayFetch) {
            misses++;
            entry = fetch(segment, List.of(key), false, nowNanos) ? needed.get(key) : null;
            misfits += entry == null ? 1 : 0;
        }
        // Bytes that arrive behind others wait for these.
        if (entry == null
            || entry.isFilling && entry.fetch.current.standstillNanos() >= STANDSTILL_NANOS) {
            return Optional.empty();
        }
        entry.isUsed = true;
        entry.isPassed = false;
        entry.fetch.usedNanos = nowNanos;
        entry.users++;
        keepAsNeeded(entry);
        return Optional.of(entry);
    }

    /** Ends one use of a chunk, which its caller must not read any more. */
    synchronized void release(Chunk chunk) {
        Entry entry = (Entry) chunk;
        entry.users--;
        recycle(entry);
    }

    /** Returns how many chunks to fetch ahead for a reader of so many bytes in sequence. */
    static int chunksAhead(long readBytes) {
        return (int) Math.max(1, Math.min(MAX_CHUNKS_AHEAD, readBytes / (2 * CHUNK_BYTES)));
    }

    /**
     * Begins to fetch the chunks that a reader will ask for next, if there is room for the first:
     * none if the first is there. Those after it must leave half of all room to other readers.
     */
    synchronized void fetchAhead(
        RemoteLogSegmentMetadata segment, int startPosition, int mostChunks
    ) {
        if (fetchesAhead == MAX_FETCHES_AHEAD) {
            return;
        }
        long nowNanos = clock.getAsLong();
        retire(nowNanos);
        long neededBytes = needed.values().stream().mapToLong(Chunk::sizeBytes).sum();
        long most = Math.max(1, (maxBytes / 2 - neededBytes) / CHUNK_BYTES);
        // The disk is read chunk by chunk.
        most = disk.isPresent() ? 1 : Math.min(most, mostChunks);
        List<Key> keys = new ArrayList<>();
        long position = startPosition;
        while (keys.size() < most && position < segment.segmentSizeInBytes()
            && find(key(segment, (int) position)) == null) {
            keys.add(key(segment, (int) position));
            position += CHUNK_BYTES;
        }
        for (int from = 0; from < keys.size(); from += CHUNKS_OF_A_REQUEST) {
            int to = Math.min(from + CHUNKS_OF_A_REQUEST, keys.size());
            if (fetchesAhead == MAX_FETCHES_AHEAD
                || !fetch(segment, keys.subList(from, to), true, nowNanos)) {
                return;
            }
        }
    }

    /** Makes a chunk, if it is there, evictable: its reader needs it no more. */
    synchronized void pass(RemoteLogSegmentMetadata segment, int startPosition) {
        Entry entry = needed.get(key(segment, startPosition));
        if (entry != null) {
            entry.isPassed = true;
            retire(clock.getAsLong());
        }
    }

    /** Removes a segment's chunks. Streams that are open may go on in the chunk they have. */
    synchronized void drop(RemoteLogSegmentId segment) {
        for (Key key : List.copyOf(needed.keySet())) {
            if (key.segment().equals(segment)) {
                removed(needed.remove(key));
            }
        }
        passed.asMap().keySet().removeIf(key -> key.segment().equals(segment));
        disk.ifPresent(chunks -> chunks.drop(segment));
    }

    /**
     * Frees the memory of passed chunks that no reader used for a minute, and of the buffers that
     * no chunk uses.
     */
    synchronized void freeUnused() {
        retire(clock.getAsLong());
        spareBuffers.clear();
    }

    /** Returns how many bytes are free for chunks that arrive later. */
    synchronized long spareBytes() {
        return (long) spareBuffers.size() * Chunk.PIECE_BYTES;
    }

    /** Returns whether all bytes of a chunk are there. */
    synchronized boolean isWhole(RemoteLogSegmentMetadata segment, int startPosition) {
        Entry entry = find(key(segment, startPosition));
        return entry != null && !entry.isFilling;
    }

    synchronized Counts counts() {
        return new Counts(
            cachedBytes, hits, misses, misfits, evictions, fetchedAheadBytes, neverUsedBytes);
    }

    /** Ends all fetches; readers that wait for them fail. */
    @Override
    public void close() {
        synchronized (this) {
            threads.shutdownNow();
            spareBuffers.clear();
        }
        try {
            threads.awaitTermination(CLOSE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static Key key(RemoteLogSegmentMetadata segment, int startPosition) {
        int lastPosition = segment.segmentSizeInBytes() - 1;
        int endPosition = startPosition + Math.min(CHUNK_BYTES - 1, lastPosition - startPosition);
        return new Key(segment.remoteLogSegmentId(), startPosition, endPosition);
    }

    private Entry find(Key key) {
        Entry entry = needed.get(key);
        return entry == null ? passed.getIfPresent(key) : entry;
    }

    private void keepAsNeeded(Entry entry) {
        needed.put(entry.key, entry);
        passed.invalidate(entry.key);
    }

    /** Moves chunks that no reader awaits any more to those that may be evicted. */
    private void retire(long nowNanos) {
        needed.values().removeIf(entry -> {
            if (entry.isEvictable(nowNanos)) {
                passed.put(entry.key, entry);
                return true;
            }
            return false;
        });
        passed.cleanUp();
    }

    /** Begins one request for chunks that follow one another; returns whether there is room. */
    private boolean fetch(
        RemoteLogSegmentMetadata segment, List<Key> keys, boolean isAhead, long nowNanos
    ) {
        int last = keys.get(keys.size() - 1).endPosition();
        int sizeBytes = last - keys.get(0).startPosition() + 1;
        if (threads.isShutdown() || !makeRoom(sizeBytes, nowNanos)) {
            return false;
        }
        Fetch fetch = new Fetch(isAhead, nowNanos);
        for (Key key : keys) {
            Entry entry = new Entry(key, fetch, this);
            needed.put(key, entry);
            fetch.missing.add(entry);
        }
        fetch.current = fetch.missing.peek();
        cachedBytes += sizeBytes;
        if (isAhead) {
            fetchesAhead++;
            fetchedAheadBytes += sizeBytes;
        }
        try {
            threads.execute(() -> fill(segment, fetch, last));
        } catch (OutOfMemoryError e) {
            // No thread can be started. The caller reads a range of its own.
            end(fetch, new RemoteStorageException(keys.get(0).segment() + ": " + e, e));
            return false;
        }
        return true;
    }

    private boolean makeRoom(int wantedBytes, long nowNanos) {
        retire(nowNanos);
        long evictableBytes = passed.asMap().values().stream().mapToLong(Chunk::sizeBytes).sum();
        if (cachedBytes - evictableBytes + wantedBytes > maxBytes) {
            return false;
        }
        Iterator<Key> oldest = passed.policy().expireAfterAccess().orElseThrow()
            .oldest(Integer.MAX_VALUE).keySet().iterator();
        while (cachedBytes + wantedBytes > maxBytes) {
            passed.invalidate(oldest.next());
            evictions++;
        }
        return true;
    }

    private void fill(RemoteLogSegmentMetadata segment, Fetch fetch, int endPosition) {
        RemoteLogSegmentId id = segment.remoteLogSegmentId();
        RemoteStorageException failure = null;
        try {
            Entry first = fetch.missing.peek();
            // With a disk each request has one chunk.
            if (disk.isEmpty() || !disk.get().load(first.key, first)) {
                fillFromSource(segment, fetch, endPosition);
            }
        } catch (RemoteStorageException e) {
            failure = e;
        } catch (IOException e) {
            failure = e.getCause() instanceof RemoteStorageException cause
                ? cause
                : new RemoteStorageException(id + ": " + e.getMessage(), e);
        } catch (RuntimeException | Error e) {
            failure = new RemoteStorageException(id + ": " + e, e);
            throw e;
        } finally {
            end(fetch, failure);
        }
    }

    private void fillFromSource(RemoteLogSegmentMetadata segment, Fetch fetch, int endPosition)
        throws RemoteStorageException, IOException {
        int startPosition = fetch.missing.peek().key.startPosition();
        try (InputStream bytes = source.open(segment, startPosition, endPosition)) {
            fetch.current.fill(bytes);
            while (fetch.missing.size() > 1) {
                end(fetch.missing.remove(), null);
                fetch.current = fetch.missing.peek();
                fetch.current.fill(bytes);
            }
            if (bytes.read() >= 0) {
                throw new IOException("more bytes than asked for after position " + endPosition);
            }
        }
    }

    /** Ends the chunks that are still missing. */
    private void end(Fetch fetch, RemoteStorageException failure) {
        synchronized (this) {
            fetchesAhead -= fetch.isAhead ? 1 : 0;
        }
        fetch.missing.forEach(entry -> end(entry, failure));
    }

    private void end(Entry entry, RemoteStorageException failure) {
        boolean isHeld;
        synchronized (this) {
            isHeld = !entry.isRemoved;
            entry.isFilling = false;
            if (failure != null && isHeld) {
                needed.remove(entry.key);
            }
            if (failure != null || !isHeld) {
                entry.isRemoved = true;
                cachedBytes -= entry.sizeBytes();
                recycle(entry);
            }
        }
        if (failure != null) {
            entry.fail(failure);
        } else if (isHeld) {
            disk.ifPresent(chunks ->
                chunks.keep(entry.key, () -> beginWriting(entry), this::endWriting));
        }
    }

    /** Begins a use of a chunk by the disk, unless it was evicted or dropped meanwhile. */
    private synchronized Optional<Chunk> beginWriting(Entry entry) {
        if (entry.isRemoved) {
            return Optional.empty();
        }
        keepAsNeeded(entry);
        entry.isBeingWritten = true;
        entry.users++;
        return Optional.of(entry);
    }

    private synchronized void endWriting(Chunk chunk) {
        ((Entry) chunk).isBeingWritten = false;
        release(chunk);
    }

    /** Counts a chunk as removed; one that is arriving keeps its memory until that has ended. */
    private synchronized void removed(Entry entry) {
        if (needed.get(entry.key) == entry) {
            // It has moved there.
            return;
        }
        entry.isRemoved = true;
        neverUsedBytes += entry.fetch.isAhead && !entry.isUsed ? entry.sizeBytes() : 0;
        cachedBytes -= entry.isFilling ? 0 : entry.sizeBytes();
        recycle(entry);
    }

    private synchronized byte[] newBuffer() {
        byte[] spare = spareBuffers.poll();
        return spare == null ? new byte[Chunk.PIECE_BYTES] : spare;
    }

    private void recycle(Entry entry) {
        if (entry.isRemoved && !entry.isFilling && entry.users == 0 && !threads.isShutdown()) {
            spareBuffers.addAll(entry.takeBuffers());
        }
    }
}
