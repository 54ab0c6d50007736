package io.sediment.kafka;

import java.io.InputStream;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Opens logs so that a sequential reader finds what it asks for next in memory. Kafka closes a log
 * after each fetch of a consumer, about 1 MiB, and opens it again where it stopped. Its figures are
 * in JMX. Thread-safe.
 */
final class ReadAhead implements ReadAheadMXBean, AutoCloseable {
    private final long maxBytes;
    private final ChunkSource ranges;
    private final Optional<DiskChunks> disk;
    private final ChunkCache cache;
    private final Readers readers = new Readers();
    private final JmxBean figures;
    private final long freeEveryMs;
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
        this.maxBytes = maxBytes;
        this.ranges = ranges;
        this.disk = disk;
        cache = new ChunkCache(maxBytes, chunks, disk, clock);
        figures = new JmxBean("ReadAhead", broker, this);
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
        Readers.Begun begun = readers.begin(segment, startPosition);
        begun.earlier().ifPresent(earlier -> passChunks(earlier, begun.read()));
        return new KeptLog(cache, ranges, begun.read());
    }

    /** Fetches a segment's first chunk if a sequential reader is at the end of the one before. */
    void expect(RemoteLogSegmentMetadata segment) {
        if (segment.segmentSizeInBytes() > 0 && readers.anyBegins(segment)) {
            cache.fetchAhead(segment, 0, 1);
        }
    }

    /** Removes what is held of a segment. */
    void drop(RemoteLogSegmentId segment) {
        cache.drop(segment);
    }

    /** Publishes the same figures among the broker's metrics. */
    void publish(PluginFigures plugin) {
        plugin.add("read-ahead-max-bytes", "The bound of the bytes held.", this::getMaxBytes);
        plugin.add("read-ahead-held-bytes", "Bytes of logs in memory, or about to arrive.",
            this::getHeldBytes);
        plugin.add("read-ahead-hits-total", "Chunks that a reader found in memory.", this::getHits);
        plugin.add("read-ahead-misses-total", "Chunks that a sequential reader did not find.",
            this::getMisses);
        plugin.add("read-ahead-misfits-total", "Of these, chunks without room.", this::getMisfits);
        plugin.add("read-ahead-evictions-total", "Chunks evicted for others.", this::getEvictions);
        plugin.add("read-ahead-fetched-bytes-total", "Bytes asked for before a reader needed them.",
            this::getFetchedAheadBytes);
        plugin.add("read-ahead-never-used-bytes-total", "Of these, bytes that none needed.",
            this::getNeverUsedBytes);
        plugin.add("read-ahead-disk-held-bytes", "Bytes of logs on the disk.",
            this::getDiskHeldBytes);
        plugin.add("read-ahead-disk-hits-total", "Chunks read from the disk.", this::getDiskHits);
        plugin.add("read-ahead-disk-failures-total",
            "Files damaged or missing, and failures of the disk.", this::getDiskFailures);
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

    @Override
    public long getMaxBytes() {
        return maxBytes;
    }

    @Override
    public long getHeldBytes() {
        return cache.counts().heldBytes();
    }

    @Override
    public long getHits() {
        return cache.counts().hits();
    }

    @Override
    public long getMisses() {
        return cache.counts().misses();
    }

    @Override
    public long getMisfits() {
        return cache.counts().misfits();
    }

    @Override
    public long getEvictions() {
        return cache.counts().evictions();
    }

    @Override
    public long getFetchedAheadBytes() {
        return cache.counts().fetchedAheadBytes();
    }

    @Override
    public long getNeverUsedBytes() {
        return cache.counts().neverUsedBytes();
    }

    @Override
    public long getDiskHeldBytes() {
        return diskCounts().heldBytes();
    }

    @Override
    public long getDiskHits() {
        return diskCounts().hits();
    }

    @Override
    public long getDiskFailures() {
        return diskCounts().failures();
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

    /** The chunks from where the earlier read began to the one where the next begins. */
    private void passChunks(Readers.Read earlier, Readers.Read next) {
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
