package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
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
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Chunks of logs in memory, bounded by bytes. Fetches each chunk once and to its end, whatever its
 * readers do meanwhile. Evicts, oldest first, only chunks whose reader has passed them or has
 * stopped; without room for a chunk it fetches none, so that many readers never evict each other's.
 * Uses the memory of evicted chunks again: as garbage of the old generation it would cost the broker
 * a tenth of the CPU time of its reads. Frees what has not been used for a minute. Whole chunks are
 * also kept on a disk, if there is one, and read from there first. Thread-safe.
 */
final class ChunkCache implements AutoCloseable {
    static final int CHUNK_BYTES = 4 * 1024 * 1024;
    // A consumer that has read nothing for so long may have stopped.
    private static final long STOPPED_AFTER_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final long UNUSED_AFTER_NANOS = TimeUnit.MINUTES.toNanos(1);
    // Readers open a stream of their own then: another RSM may answer it.
    private static final long STANDSTILL_NANOS = TimeUnit.SECONDS.toNanos(5);
    // Of the 8 streams that an RSM serves at a time by default, reads get theirs first.
    private static final int MAX_FETCHES_AHEAD = 8;
    // By one request: each costs RSM and the store as much CPU time as a MiB.
    private static final int MAX_CHUNKS_AHEAD = 4;
    private static final int CLOSE_TIMEOUT_S = 5;

    private final long maxBytes;
    private final ChunkSource source;
    private final Optional<DiskChunks> disk;
    private final LongSupplier clock;
    private final ExecutorService threads;

    // The oldest first.
    private final Map<Key, Entry> entries = new LinkedHashMap<>();
    private final Map<Chunk, Entry> inUse = new IdentityHashMap<>();
    private final Deque<byte[]> spareBuffers = new ArrayDeque<>();
    // The fewest spare buffers since they were last freed.
    private int unneededBuffers;
    private long heldBytes;
    private int fetchesAhead;
    private long hits;
    private long misses;
    private long misfits;
    private long evictions;
    private long fetchedAheadBytes;
    private long neverUsedBytes;

    /**
     * What the cache has done since it was made.
     *
     * @param heldBytes in memory now, or about to arrive
     * @param hits how many times a reader found its chunk
     * @param misses how many times a sequential reader did not
     * @param misfits how many of the misses had no room
     * @param evictions how many chunks were evicted for others
     * @param fetchedAheadBytes fetched before a reader asked for them
     * @param neverUsedBytes of these, evicted or dropped before a reader asked for them
     */
    record Counts(long heldBytes, long hits, long misses, long misfits, long evictions,
        long fetchedAheadBytes, long neverUsedBytes) {
    }

    /** A chunk of a segment, both positions inclusive. */
    record Key(RemoteLogSegmentId segment, int startPosition, int endPosition) {
    }

    /** One request for one or more chunks, in the order in which they arrive. */
    private static final class Fetch {
        private final boolean isAhead;
        private final Map<Key, Entry> missing = new LinkedHashMap<>();
        /** The one that is arriving. */
        private volatile Chunk current;
        /** When a reader last took one of its chunks: the others wait for the same reader. */
        private long usedNanos;

        Fetch(boolean isAhead, long nowNanos) {
            this.isAhead = isAhead;
            usedNanos = nowNanos;
        }
    }

    private static final class Entry {
        private final Chunk chunk;
        private final Fetch fetch;
        private boolean isUsed;
        private boolean isPassed;
        private boolean isFilling = true;
        private boolean isBeingWritten;
        private boolean isRemoved;
        private int users;

        Entry(Chunk chunk, Fetch fetch) {
            this.chunk = chunk;
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
        AtomicInteger number = new AtomicInteger();
        threads = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "sediment-read-ahead-" + number.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        });
    }

    /** The start of the chunk that a position is in. */
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
        Entry entry = entries.remove(key);
        if (entry != null) {
            hits++;
            entries.put(key, entry);
        } else if (mayFetch) {
            misses++;
            entry = fetch(segment, List.of(key), false, nowNanos) ? entries.get(key) : null;
            misfits += entry == null ? 1 : 0;
        }
        if (entry == null || isAtAStandstill(entry)) {
            return Optional.empty();
        }
        entry.isUsed = true;
        entry.isPassed = false;
        entry.fetch.usedNanos = nowNanos;
        entry.users++;
        inUse.put(entry.chunk, entry);
        return Optional.of(entry.chunk);
    }

    /** Ends one use of a chunk, which its caller must not read any more. */
    synchronized void release(Chunk chunk) {
        Entry entry = inUse.get(chunk);
        if (--entry.users == 0) {
            inUse.remove(chunk);
            keepBuffers(entry);
        }
    }

    /** How many chunks to fetch ahead for a reader that has read so many bytes in sequence. */
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
        long neededBytes = entries.values().stream()
            .filter(entry -> !entry.isEvictable(nowNanos))
            .mapToLong(entry -> entry.chunk.sizeBytes())
            .sum();
        long most = Math.max(1, (maxBytes / 2 - neededBytes) / CHUNK_BYTES);
        // The disk is read chunk by chunk.
        most = disk.isPresent() ? 1 : Math.min(most, mostChunks);
        List<Key> keys = new ArrayList<>();
        long position = startPosition;
        while (keys.size() < most && position < segment.segmentSizeInBytes()
            && !entries.containsKey(key(segment, (int) position))) {
            keys.add(key(segment, (int) position));
            position += CHUNK_BYTES;
        }
        if (!keys.isEmpty()) {
            fetch(segment, keys, true, nowNanos);
        }
    }

    /** Makes a chunk, if it is there, evictable: its reader needs it no more. */
    synchronized void pass(RemoteLogSegmentMetadata segment, int startPosition) {
        Entry entry = entries.get(key(segment, startPosition));
        if (entry != null) {
            entry.isPassed = true;
        }
    }

    /** Removes a segment's chunks. Streams that are open may go on in the chunk they have. */
    synchronized void drop(RemoteLogSegmentId segment) {
        for (Key key : List.copyOf(entries.keySet())) {
            if (key.segment().equals(segment)) {
                remove(key);
            }
        }
        disk.ifPresent(chunks -> chunks.drop(segment));
    }

    /**
     * Frees the memory of chunks that no reader used for a minute, unless they are awaited, and of
     * the buffers that were spare ever since the last call.
     */
    synchronized void freeUnused() {
        long nowNanos = clock.getAsLong();
        for (Map.Entry<Key, Entry> each : List.copyOf(entries.entrySet())) {
            Entry entry = each.getValue();
            if (entry.isEvictable(nowNanos)
                && nowNanos - entry.fetch.usedNanos >= UNUSED_AFTER_NANOS) {
                remove(each.getKey());
            }
        }
        for (; unneededBuffers > 0; unneededBuffers--) {
            spareBuffers.remove();
        }
        unneededBuffers = spareBuffers.size();
    }

    /** How many bytes are free for chunks that arrive later. */
    synchronized long spareBytes() {
        return (long) spareBuffers.size() * Chunk.PIECE_BYTES;
    }

    /** Whether all bytes of a chunk are there. */
    synchronized boolean isWhole(RemoteLogSegmentMetadata segment, int startPosition) {
        Entry entry = entries.get(key(segment, startPosition));
        return entry != null && !entry.isFilling;
    }

    synchronized Counts counts() {
        return new Counts(
            heldBytes, hits, misses, misfits, evictions, fetchedAheadBytes, neverUsedBytes);
    }

    /** Ends all fetches; readers that wait for them fail. */
    @Override
    public void close() {
        synchronized (this) {
            threads.shutdownNow();
            spareBuffers.clear();
            unneededBuffers = 0;
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

    /** Bytes that arrive behind others wait for these. */
    private static boolean isAtAStandstill(Entry entry) {
        return entry.isFilling && entry.fetch.current.standstillNanos() >= STANDSTILL_NANOS;
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
            Chunk chunk = new Chunk(key.startPosition(), key.endPosition(), this::newBuffer, clock);
            Entry entry = new Entry(chunk, fetch);
            entries.put(key, entry);
            fetch.missing.put(key, entry);
            fetch.current = fetch.current == null ? chunk : fetch.current;
        }
        heldBytes += sizeBytes;
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
        List<Key> victims = new ArrayList<>();
        long missingBytes = heldBytes + wantedBytes - maxBytes;
        Iterator<Map.Entry<Key, Entry>> oldest = entries.entrySet().iterator();
        while (missingBytes > 0) {
            if (!oldest.hasNext()) {
                return false;
            }
            Map.Entry<Key, Entry> each = oldest.next();
            if (each.getValue().isEvictable(nowNanos)) {
                victims.add(each.getKey());
                missingBytes -= each.getValue().chunk.sizeBytes();
            }
        }
        evictions += victims.size();
        victims.forEach(this::remove);
        return true;
    }

    private void fill(RemoteLogSegmentMetadata segment, Fetch fetch, int endPosition) {
        RemoteLogSegmentId id = segment.remoteLogSegmentId();
        RemoteStorageException failure = null;
        try {
            if (disk.isEmpty() || !isLoaded(disk.get(), fetch)) {
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

    /** Whether the disk had the only chunk of a request. */
    private boolean isLoaded(DiskChunks chunks, Fetch fetch) {
        Map.Entry<Key, Entry> only = fetch.missing.entrySet().iterator().next();
        return chunks.load(only.getKey(), only.getValue().chunk);
    }

    private void fillFromSource(RemoteLogSegmentMetadata segment, Fetch fetch, int endPosition)
        throws RemoteStorageException, IOException {
        Iterator<Map.Entry<Key, Entry>> missing = fetch.missing.entrySet().iterator();
        Map.Entry<Key, Entry> next = missing.next();
        try (InputStream bytes =
                source.open(segment, next.getKey().startPosition(), endPosition)) {
            next.getValue().chunk.fill(bytes);
            while (missing.hasNext()) {
                missing.remove();
                end(next.getKey(), next.getValue(), null);
                next = missing.next();
                fetch.current = next.getValue().chunk;
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
        fetch.missing.forEach((key, entry) -> end(key, entry, failure));
    }

    private void end(Key key, Entry entry, RemoteStorageException failure) {
        boolean isHeld;
        synchronized (this) {
            entry.isFilling = false;
            isHeld = entries.get(key) == entry;
            if (failure != null && isHeld) {
                entries.remove(key);
                entry.isRemoved = true;
            }
            if (entry.isRemoved) {
                heldBytes -= entry.chunk.sizeBytes();
                keepBuffers(entry);
            }
        }
        if (failure != null) {
            entry.chunk.fail(failure);
        } else if (isHeld) {
            disk.ifPresent(chunks ->
                chunks.keep(key, () -> takeForDisk(key, entry), this::releaseFromDisk));
        }
    }

    /** Begins a use of a chunk by the disk, unless it was evicted or dropped meanwhile. */
    private synchronized Optional<Chunk> takeForDisk(Key key, Entry entry) {
        if (entries.get(key) != entry) {
            return Optional.empty();
        }
        entry.isBeingWritten = true;
        entry.users++;
        inUse.put(entry.chunk, entry);
        return Optional.of(entry.chunk);
    }

    private synchronized void releaseFromDisk(Chunk chunk) {
        inUse.get(chunk).isBeingWritten = false;
        release(chunk);
    }

    private void remove(Key key) {
        Entry entry = entries.remove(key);
        neverUsedBytes += entry.fetch.isAhead && !entry.isUsed ? entry.chunk.sizeBytes() : 0;
        // The memory of one that is being filled is free when that has ended.
        heldBytes -= entry.isFilling ? 0 : entry.chunk.sizeBytes();
        entry.isRemoved = true;
        keepBuffers(entry);
    }

    private synchronized byte[] newBuffer() {
        byte[] spare = spareBuffers.poll();
        unneededBuffers = Math.min(unneededBuffers, spareBuffers.size());
        return spare == null ? new byte[Chunk.PIECE_BYTES] : spare;
    }

    private void keepBuffers(Entry entry) {
        if (entry.isRemoved && !entry.isFilling && entry.users == 0 && !threads.isShutdown()) {
            spareBuffers.addAll(entry.chunk.takeBuffers());
        }
    }
}
