package io.sediment.kafka;

import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.util.Optional;
import java.util.function.LongSupplier;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Opens logs so that a sequential reader finds what it asks for next in memory. Kafka closes a log
 * after each fetch of a consumer, about 1 MiB, and opens it again where it stopped. Its figures are
 * in JMX. Thread-safe.
 */
final class ReadAhead implements ReadAheadMXBean, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ReadAhead.class);

    private final long maxBytes;
    private final ChunkSource ranges;
    private final ChunkCache cache;
    private final Readers readers = new Readers();
    private final Optional<ObjectName> figures;

    /**
     * @param broker the broker's id, for the name in JMX
     * @param maxBytes to hold in memory for all readers; 0 reads nothing ahead
     * @param chunks of the bytes to hold; positions are multiples of {@link ChunkCache#CHUNK_BYTES}
     * @param ranges of all other bytes
     * @param clock as {@link System#nanoTime}
     */
    ReadAhead(
        String broker,
        long maxBytes,
        ChunkSource chunks,
        ChunkSource ranges,
        LongSupplier clock
    ) {
        this.maxBytes = maxBytes;
        this.ranges = ranges;
        cache = new ChunkCache(maxBytes, chunks, clock);
        figures = publish("io.sediment.kafka:type=ReadAhead,broker=" + broker);
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
            cache.fetchAhead(segment, 0);
        }
    }

    /** Removes what is held of a segment. */
    void drop(RemoteLogSegmentId segment) {
        cache.drop(segment);
    }

    @Override
    public void close() {
        cache.close();
        figures.ifPresent(name -> {
            try {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(name);
            } catch (JMException e) {
                LOG.debug("{} was not in JMX", name, e);
            }
        });
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

    private Optional<ObjectName> publish(String name) {
        try {
            ObjectName made = new ObjectName(name);
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, made);
            return Optional.of(made);
        } catch (InstanceAlreadyExistsException e) {
            LOG.debug("{} is in JMX already", name);
            return Optional.empty();
        } catch (JMException e) {
            LOG.warn("the figures of the read-ahead are not in JMX", e);
            return Optional.empty();
        }
    }
}
