package io.sediment.kafka;

import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import io.sediment.tieredstorage.v1.WatchPartitionsRequest;
import io.sediment.tieredstorage.v1.WatchPartitionsResponse;
import io.sediment.tieredstorage.v1.WatchedPartition;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.function.LongSupplier;

import org.apache.kafka.common.TopicIdPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Watches the broker's partitions in RLMM, from a thread of its own, and updates the cache of
 * look-ups. A watch that ends, or is not complete for 10 s, is replaced by another one, which
 * resumes from the known revisions.
 */
final class LookUpWatch implements AutoCloseable {
    /** The most partitions of a watch; look-ups of others are not cached. */
    static final int MAX_PARTITIONS = 10_000;
    private static final Logger LOG = LoggerFactory.getLogger(LookUpWatch.class);
    // RLMM sends a heartbeat each second. Its complete_through_ms does not change while that RLMM
    // cannot read its database; another one may.
    static final long STALLED_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final long READ_TIMEOUT_MS = 500;
    private static final long FIRST_BACKOFF_MS = 200;
    private static final long MAX_BACKOFF_MS = 5_000;
    // After a failure that a retry does not mend: a missing grant.
    static final long REFUSED_BACKOFF_MS = 60_000;
    private static final long CLOSE_TIMEOUT_MS = 5_000;

    private final Function<WatchPartitionsRequest, BlockingClientCall<?, WatchPartitionsResponse>>
        open;
    private final IntFunction<List<TopicIdPartition>> partitions;
    private final LookUpCache cache;
    private final LongSupplier clock;
    private final long refusedBackoffMs;
    private final Thread thread;

    // These belong to the thread alone.
    private List<TopicIdPartition> wanted = List.of();
    private long backoffMs = FIRST_BACKOFF_MS;
    private boolean isRefusalLogged;
    // Guarded by this.
    private boolean changed;

    /**
     * Starts the thread, which waits for {@link #partitionsChanged}.
     *
     * @param open begins a watch
     * @param partitions returns the broker's partitions, at most as many as its argument
     * @param clock as {@link System#nanoTime}
     * @param refusedBackoffMs how long to wait, at most, after RLMM has refused a watch
     */
    LookUpWatch(
        Function<WatchPartitionsRequest, BlockingClientCall<?, WatchPartitionsResponse>> open,
        IntFunction<List<TopicIdPartition>> partitions,
        LookUpCache cache,
        LongSupplier clock,
        long refusedBackoffMs
    ) {
        this.open = open;
        this.partitions = partitions;
        this.cache = cache;
        this.clock = clock;
        this.refusedBackoffMs = refusedBackoffMs;
        thread = new Thread(this::run, "sediment-look-up-watch");
        thread.setDaemon(true);
        thread.start();
    }

    /** Watches again, with the partitions that the broker has now. Never throws, never waits. */
    synchronized void partitionsChanged() {
        changed = true;
        notifyAll();
    }

    /** Idempotent. */
    @Override
    public void close() {
        thread.interrupt();
        try {
            thread.join(CLOSE_TIMEOUT_MS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        try {
            while (true) {
                watchOrPause();
            }
        } catch (InterruptedException e) {
            LOG.debug("closed");
        }
    }

    private void awaitPartitions() throws InterruptedException {
        while (wanted.isEmpty() || hasOtherPartitions()) {
            synchronized (this) {
                while (!changed) {
                    wait();
                }
                changed = false;
            }
            wanted = partitions.apply(MAX_PARTITIONS);
            cache.watch(wanted);
        }
    }

    private void watchOrPause() throws InterruptedException {
        try {
            awaitPartitions();
            watch();
        } catch (StatusException e) {
            String why = Failures.describe(e.getStatus());
            if (Failures.isPermanent(e)) {
                if (!isRefusalLogged) {
                    LOG.info("RLMM refuses to watch the broker's partitions: {}; calling it for"
                        + " each look-up and watching again each minute; grant the broker's"
                        + " identity the role reader for all its topics", why);
                }
                isRefusalLogged = true;
                pause(refusedBackoffMs);
            } else {
                LOG.debug("the watch has ended; watching again: {}", why);
                pause(backoffMs);
                backoffMs = Math.min(2 * backoffMs, MAX_BACKOFF_MS);
            }
        } catch (RuntimeException | Error e) {
            // An Error: a thread of the call cannot be started, for example. Without this thread
            // every look-up would call RLMM until the broker restarts.
            LOG.error("watching partitions in RLMM failed; watching again", e);
            partitionsChanged();
            pause(MAX_BACKOFF_MS);
        }
    }

    /** Watches until the broker has other partitions. */
    private void watch() throws StatusException, InterruptedException {
        long beganNanos = clock.getAsLong();
        long completeMs = -1;
        long progressNanos = beganNanos;
        BlockingClientCall<?, WatchPartitionsResponse> call = open.apply(request());
        try {
            while (!hasOtherPartitions()) {
                Optional<WatchPartitionsResponse> news = read(call);
                news.ifPresent(this::update);
                if (news.isPresent() && news.get().getCompleteThroughMs() > completeMs) {
                    completeMs = news.get().getCompleteThroughMs();
                    progressNanos = clock.getAsLong();
                    cache.completeThrough(beganNanos + TimeUnit.MILLISECONDS.toNanos(completeMs));
                    backoffMs = FIRST_BACKOFF_MS;
                } else if (clock.getAsLong() - progressNanos > STALLED_NANOS) {
                    throw Status.UNAVAILABLE.withDescription("not complete for 10 s").asException();
                }
            }
        } finally {
            StreamingCalls.cancel(call, "watching again", null);
        }
    }

    private static Optional<WatchPartitionsResponse> read(
        BlockingClientCall<?, WatchPartitionsResponse> call
    ) throws StatusException, InterruptedException {
        try {
            WatchPartitionsResponse news = call.read(READ_TIMEOUT_MS, TimeUnit.MILLISECONDS);
            if (news == null) {
                throw Status.UNAVAILABLE.withDescription("RLMM has ended it").asException();
            }
            return Optional.of(news);
        } catch (TimeoutException e) {
            return Optional.empty();
        }
    }

    private void update(WatchPartitionsResponse news) {
        news.getPartitionsList()
            .forEach(update -> cache.update(wanted.get(update.getIndex()), update));
        if (isRefusalLogged) {
            isRefusalLogged = false;
            LOG.info("RLMM reports changes of the broker's partitions again; answering look-ups"
                + " from memory");
        }
    }

    private WatchPartitionsRequest request() {
        WatchPartitionsRequest.Builder request = WatchPartitionsRequest.newBuilder();
        for (TopicIdPartition partition : wanted) {
            WatchedPartition.Builder watched = WatchedPartition.newBuilder()
                .setTopicIdPartition(Conversions.toMessage(partition));
            cache.known(partition).ifPresent(known -> {
                watched.setAfterRevision(known.revision());
                if (known.changedAtUs() != 0) {
                    watched.setAfterChangedAtUs(known.changedAtUs());
                }
            });
            request.addPartitions(watched);
        }
        return request.build();
    }

    private synchronized boolean hasOtherPartitions() {
        return changed;
    }

    /** Sleeps for half to all of the time, so that brokers do not return at one instant. */
    private static void pause(long longestMs) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(
            ThreadLocalRandom.current().nextLong(longestMs / 2, longestMs + 1));
    }
}
