package io.sediment.kafka;

import io.sediment.kafka.LookUpCache.Question;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.LongSupplier;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Answers look-ups of consumers' reads from memory while a watch reports changes, else by calling
 * RLMM. Publishes its figures in JMX. Thread-safe.
 */
final class LookUps implements AutoCloseable {
    // A consumer's fetch waits meanwhile, and Kafka gives it up after remote.fetch.max.wait.ms.
    private static final int AWAY_TIMEOUT_MS = 1_000;
    private static final long ASK_AGAIN_NANOS = TimeUnit.SECONDS.toNanos(1);

    private final LookUpCache cache;
    private final int timeoutMs;
    private final LongSupplier clock;
    final JmxBean figures;
    private final LongAdder hits = new LongAdder();
    private final LongAdder misses = new LongAdder();
    private final LongAdder servedWhileAway = new LongAdder();
    private volatile Optional<Long> awayUntilNanos = Optional.empty();

    /** A call of RLMM. */
    interface Ask {
        Optional<RemoteLogSegmentMetadata> answer(int timeoutMs) throws RemoteStorageException;
    }

    /**
     * @param broker the broker's id, for the name in JMX
     * @param timeoutMs how long a call may take
     * @param clock as {@link System#nanoTime}
     */
    LookUps(String broker, LookUpCache cache, int timeoutMs, LongSupplier clock) {
        this.cache = cache;
        this.timeoutMs = timeoutMs;
        this.clock = clock;
        figures = new JmxBean("LookUps", broker, Map.of(
            "Hits", hits::sum,
            "Misses", misses::sum,
            "ServedWhileAway", servedWhileAway::sum,
            "Current", () -> cache.isCurrent() ? 1 : 0));
    }

    /**
     * Answer a look-up.
     *
     * @throws RemoteStorageException if RLMM refuses the call or is busy, or if it is away and no
     *     answer is held that is young enough
     */
    Optional<RemoteLogSegmentMetadata> answer(Question question, Ask ask)
        throws RemoteStorageException {
        Optional<Optional<RemoteLogSegmentMetadata>> held = cache.find(question);
        if (held.isPresent() && cache.isCurrent()) {
            hits.increment();
            return held.get();
        }
        boolean mayUseHeld = held.isPresent() && cache.isWithinMaxAge();
        if (mayUseHeld
            && awayUntilNanos.filter(until -> until - clock.getAsLong() > 0).isPresent()) {
            servedWhileAway.increment();
            return held.get();
        }
        misses.increment();
        long version = cache.version(question.partition());
        try {
            Optional<RemoteLogSegmentMetadata> answer =
                ask.answer(mayUseHeld ? Math.min(AWAY_TIMEOUT_MS, timeoutMs) : timeoutMs);
            cache.hold(question, answer, version);
            return answer;
        } catch (RetriableRemoteStorageException e) {
            // A change that came while the call failed has dropped the answer.
            Optional<Optional<RemoteLogSegmentMetadata>> still = cache.find(question);
            if (still.isEmpty() || !cache.isWithinMaxAge() || !isAway(e)) {
                throw e;
            }
            awayUntilNanos = Optional.of(clock.getAsLong() + ASK_AGAIN_NANOS);
            servedWhileAway.increment();
            return still.get();
        }
    }

    /** Kafka interrupts the thread of a read that it gives up, which proves nothing of RLMM. */
    private static boolean isAway(RetriableRemoteStorageException failure) {
        return !Thread.currentThread().isInterrupted() && Failures.isAway(failure.getCause());
    }

    @Override
    public void close() {
        figures.close();
    }
}
