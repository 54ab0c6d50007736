package io.sediment.kafka;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import io.grpc.Status;
import io.sediment.kafka.StoreReadException.Scope;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads logs from the object store itself, by URLs that RSM hands out for some minutes, and through
 * RSM whatever it cannot read or verify there. Its figures are in JMX. Thread-safe.
 */
final class DirectReads implements ChunkSource, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DirectReads.class);
    private static final long RETRY_NANOS = TimeUnit.MINUTES.toNanos(1);
    // Direct reads may be turned on in RSM meanwhile.
    private static final long UNIMPLEMENTED_RETRY_NANOS = TimeUnit.MINUTES.toNanos(10);
    private static final int MAX_OPENED_LOGS = 256;

    private final Opening opening;
    private final ChunkSource streams;
    private final LongSupplier clock;
    final JmxBean figures;
    private final AtomicLong directBytes = new AtomicLong();
    private final AtomicLong failures = new AtomicLong();

    private final Cache<RemoteLogSegmentId, Slot> slots =
        Caffeine.newBuilder().maximumSize(MAX_OPENED_LOGS).executor(Runnable::run).build();
    private Optional<Long> pausedUntilNanos = Optional.empty();
    /** The store has failed, and has not worked since. */
    private boolean isPaused;
    /** A failure was said, and that it is over was not. */
    private boolean isFailing;
    private boolean isUnimplementedSaid;

    /** Calls OpenLogSegment. */
    interface Opening {
        OpenLogSegmentResponse open(RemoteLogSegmentMetadata segment) throws RemoteStorageException;
    }

    /** What is known of one log; its lock is held while RSM is asked, so that it is asked once. */
    private static final class Slot {
        private Optional<OpenedLog> log = Optional.empty();
        private Optional<Long> refusedUntilNanos = Optional.empty();
    }

    /**
     * @param broker the broker's id, for the name in JMX
     * @param streams of all bytes that are not read directly
     * @param clock as {@link System#nanoTime}
     */
    DirectReads(String broker, Opening opening, ChunkSource streams, LongSupplier clock) {
        this.opening = opening;
        this.streams = streams;
        this.clock = clock;
        figures = new JmxBean("DirectReads", broker,
            Map.of("Bytes", directBytes::get, "Failures", failures::get));
    }

    @Override
    public InputStream open(RemoteLogSegmentMetadata segment, int startPosition, int endPosition)
        throws RemoteStorageException {
        Optional<OpenedLog> log = opened(segment);
        if (log.isPresent()) {
            try {
                return new DirectStream(segment, log.get(), startPosition, endPosition);
            } catch (StoreReadException e) {
                failed(segment, log.get(), e);
            }
        }
        return streams.open(segment, startPosition, endPosition);
    }

    @Override
    public void close() {
        figures.close();
    }

    /** Bytes from the store and, from the first failure on, through RSM. */
    private final class DirectStream extends BulkStream {
        private final RemoteLogSegmentMetadata segment;
        private final OpenedLog log;
        private final int endPosition;

        private InputStream bytes;
        private int position;
        private boolean isDirect = true;

        DirectStream(
            RemoteLogSegmentMetadata segment, OpenedLog log, int startPosition, int endPosition
        ) throws StoreReadException {
            this.segment = segment;
            this.log = log;
            this.endPosition = endPosition;
            position = startPosition;
            bytes = new StoreRange(log, startPosition, endPosition);
        }

        @Override
        public int read(byte[] target, int offset, int length) throws IOException {
            int count;
            try {
                count = bytes.read(target, offset, length);
            } catch (StoreReadException e) {
                failed(segment, log, e);
                streamTheRest();
                count = bytes.read(target, offset, length);
            }
            if (count > 0) {
                position += count;
                directBytes.addAndGet(isDirect ? count : 0);
            } else if (count < 0 && isDirect) {
                worked(log);
            }
            return count;
        }

        @Override
        public void close() throws IOException {
            bytes.close();
        }

        private void streamTheRest() throws IOException {
            bytes.close();
            isDirect = false;
            try {
                bytes = streams.open(segment, position, endPosition);
            } catch (RemoteStorageException e) {
                throw new IOException(e.getMessage(), e);
            }
        }
    }

    /** The log with a URL that can be used, asked for if there is none; empty if it is refused. */
    private Optional<OpenedLog> opened(RemoteLogSegmentMetadata segment) {
        Slot slot;
        synchronized (this) {
            if (isAhead(pausedUntilNanos)) {
                return Optional.empty();
            }
            if (isPaused) {
                // One read tries the store: a store that stands still must not delay the others.
                pausedUntilNanos = Optional.of(clock.getAsLong() + RETRY_NANOS);
            }
            slot = slots.get(segment.remoteLogSegmentId(), id -> new Slot());
        }
        synchronized (slot) {
            long nowNanos = clock.getAsLong();
            slot.log = slot.log.filter(log -> log.isUsable(nowNanos));
            if (slot.log.isEmpty() && !isAhead(slot.refusedUntilNanos)) {
                slot.log = ask(segment, nowNanos);
                if (slot.log.isEmpty()) {
                    slot.refusedUntilNanos = Optional.of(nowNanos + RETRY_NANOS);
                }
            }
            return slot.log;
        }
    }

    private Optional<OpenedLog> ask(RemoteLogSegmentMetadata segment, long nowNanos) {
        try {
            OpenLogSegmentResponse answer = opening.open(segment);
            return Optional.of(OpenedLog.of(segment, answer, nowNanos));
        } catch (RemoteStorageException e) {
            refused(segment, e);
        } catch (IllegalArgumentException e) {
            LOG.warn("{}: unreadable answer of OpenLogSegment: {}; reading the log through RSM",
                segment.remoteLogSegmentId(), e.getMessage());
        }
        return Optional.empty();
    }

    private synchronized void refused(RemoteLogSegmentMetadata segment, RemoteStorageException e) {
        if (Status.fromThrowable(e).getCode() != Status.Code.UNIMPLEMENTED) {
            // Rate limits among them. If RSM is away, the stream's failure says so.
            LOG.debug("{}: reading the log through RSM", segment.remoteLogSegmentId(), e);
            return;
        }
        pausedUntilNanos = Optional.of(clock.getAsLong() + UNIMPLEMENTED_RETRY_NANOS);
        if (!isUnimplementedSaid) {
            isUnimplementedSaid = true;
            LOG.info("logs are read through RSM, which gives no URLs: set"
                + " RSM_DIRECT_READS=true there, or rsm.config.direct.reads=false here. {}",
                e.getMessage());
        }
    }

    private void failed(RemoteLogSegmentMetadata segment, OpenedLog log, StoreReadException e) {
        failures.incrementAndGet();
        refuse(segment);
        if (e.scope() == Scope.DAMAGED_LOG) {
            LOG.warn("{}: damaged in the store at {}: {}; reading the log through RSM",
                segment.remoteLogSegmentId(), log.host(), e.getMessage());
            return;
        }
        synchronized (this) {
            if (e.scope() == Scope.STORE) {
                isPaused = true;
                pausedUntilNanos = Optional.of(clock.getAsLong() + RETRY_NANOS);
                slots.invalidateAll();
            }
            if (!isFailing) {
                isFailing = true;
                LOG.warn("{}: the store at {} cannot be read directly: {}; reading logs through RSM"
                    + " and trying again each minute. Check RSM_PUBLIC_STORE_ENDPOINT, the route to"
                    + " it, its certificate, and the clocks of RSM and store",
                    segment.remoteLogSegmentId(), log.host(), e.getMessage());
            }
        }
    }

    private void refuse(RemoteLogSegmentMetadata segment) {
        Slot slot = slots.get(segment.remoteLogSegmentId(), id -> new Slot());
        synchronized (slot) {
            slot.log = Optional.empty();
            slot.refusedUntilNanos = Optional.of(clock.getAsLong() + RETRY_NANOS);
        }
    }

    private synchronized void worked(OpenedLog log) {
        if (isPaused) {
            isPaused = false;
            pausedUntilNanos = Optional.empty();
        }
        if (isFailing) {
            isFailing = false;
            LOG.info("the store at {} is read directly again", log.host());
        }
    }

    private boolean isAhead(Optional<Long> nanos) {
        return nanos.isPresent() && nanos.get() - clock.getAsLong() > 0;
    }
}
