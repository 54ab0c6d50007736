package io.sediment.kafka;

import io.sediment.kafka.KeptLog.Read;
import java.io.InputStream;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Opens logs so that a sequential reader finds what it asks for next in memory. Kafka names no
 * consumer: it closes a log after each fetch, about 1 MiB, and opens it again where it stopped. A
 * read is sequential if it begins within the bytes of an earlier read or at their end (Kafka goes
 * back to an entry of the offset index), or in the segment behind one that was read to its end. Its
 * figures are in JMX. Thread-safe.
 */
final class ReadAhead implements AutoCloseable {
    // Of the reads that are remembered; a reader counts once, until so many others have read.
    private static final int MAX_READS = 1024;

    private final ChunkSource ranges;
    private final Optional<DiskChunks> disk;
    private final ChunkCache cache;
    private final JmxBean figures;
    private final long freeEveryMs;

    // All below are guarded by this; the latest read is the first.
    private final Deque<Read> reads = new ArrayDeque<>();
    private CompletableFuture<Void> nextFreeing = new CompletableFuture<>();
    private boolean isClosed;

    /**
     * @param broker the broker's id, for the name in JMX
     * @param maxBytes to hold in memory for all readers; 0 reads nothing ahead
     * @param chunks of the bytes to hold; positions are multiples of {@link ChunkCache#CHUNK_BYTES}
     * @param ranges of all other bytes
     * @param disk for more chunks than fit in memory, if any; closed with this
     * @param clock as {@link System#nanoTime}
     * @param freeEveryMs how often to free memory that has not been used for a minute
     */
    ReadAhead(
        String broker,
        long maxBytes,
        ChunkSource chunks,
        ChunkSource ranges,
        Optional<DiskChunks> disk,
        LongSupplier clock,
        long freeEveryMs
    ) {
        this.ranges = ranges;
        this.disk = disk;
        cache = new ChunkCache(maxBytes, chunks, disk, clock);
        figures = new JmxBean("ReadAhead", broker, Map.ofEntries(
            Map.entry("MaxBytes", () -> maxBytes),
            Map.entry("CachedBytes", () -> counts().cachedBytes()),
            Map.entry("Hits", () -> counts().hits()),
            Map.entry("Misses", () -> counts().misses()),
            Map.entry("Misfits", () -> counts().misfits()),
            Map.entry("Evictions", () -> counts().evictions()),
            Map.entry("FetchedAheadBytes", () -> counts().fetchedAheadBytes()),
            Map.entry("NeverUsedBytes", () -> counts().neverUsedBytes()),
            Map.entry("DiskCachedBytes", () -> diskCounts().cachedBytes()),
            Map.entry("DiskHits", () -> diskCounts().hits()),
            Map.entry("DiskFailures", () -> diskCounts().failures())));
        this.freeEveryMs = freeEveryMs;
        freeRegularly();
    }

    /**
     * Opens a log from a position before its end.
     *
     * @throws RemoteStorageException if the first byte cannot be read
     */
    InputStream open(RemoteLogSegmentMetadata segment, int startPosition)
        throws RemoteStorageException {
        return new KeptLog(cache, ranges, begin(segment, startPosition));
    }

    /** Fetches a segment's first chunk if a sequential reader is at the end of the one before. */
    void expect(RemoteLogSegmentMetadata segment) {
        if (segment.segmentSizeInBytes() > 0 && isAwaited(segment)) {
            cache.fetchAhead(segment, 0, 1);
        }
    }

    /** Removes what is held of a segment. */
    void drop(RemoteLogSegmentId segment) {
        cache.drop(segment);
    }

    ChunkCache.Counts counts() {
        return cache.counts();
    }

    @Override
    public void close() {
        synchronized (this) {
            isClosed = true;
            nextFreeing.cancel(false);
        }
        cache.close();
        disk.ifPresent(DiskChunks::close);
        figures.close();
    }

    /** Remembers a read in place of the one that it continues. */
    private synchronized Read begin(RemoteLogSegmentMetadata segment, int startPosition) {
        Optional<Read> earlier = reads.stream()
            .filter(read -> read.isContinuedAt(segment, startPosition))
            .findFirst();
        Read read = new Read(segment, startPosition, earlier);
        if (earlier.isPresent()) {
            reads.remove(earlier.get());
            passChunks(earlier.get(), read);
        } else if (reads.size() == MAX_READS) {
            reads.removeLast();
        }
        reads.addFirst(read);
        return read;
    }

    /** Returns whether a sequential reader is at the end of the segment before. */
    private synchronized boolean isAwaited(RemoteLogSegmentMetadata segment) {
        return reads.stream().anyMatch(read -> read.isSequential() && read.isAtEndBefore(segment));
    }

    private synchronized void freeRegularly() {
        if (isClosed) {
            return;
        }
        nextFreeing = new CompletableFuture<Void>()
            .completeOnTimeout(null, freeEveryMs, TimeUnit.MILLISECONDS);
        nextFreeing.thenRunAsync(() -> {
            cache.freeUnused();
            freeRegularly();
        });
    }

    private DiskChunks.Counts diskCounts() {
        return disk.map(DiskChunks::counts).orElse(DiskChunks.Counts.NONE);
    }

    /** Passes the chunks from where the earlier read began to the one where the next begins. */
    private void passChunks(Read earlier, Read next) {
        RemoteLogSegmentMetadata segment = earlier.segment();
        boolean isSame =
            segment.remoteLogSegmentId().equals(next.segment().remoteLogSegmentId());
        int end = isSame ? ChunkCache.startOf(next.startPosition()) : segment.segmentSizeInBytes();
        long start = ChunkCache.startOf(earlier.startPosition());
        for (; start < end; start += ChunkCache.CHUNK_BYTES) {
            cache.pass(segment, (int) start);
        }
    }
}
