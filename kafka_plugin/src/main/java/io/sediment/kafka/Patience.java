package io.sediment.kafka;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusException;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;

/**
 * Limits how long one stream may make no progress: a long time until the server begins to serve it,
 * a short time from then on. RSM accepts more streams than it has threads and serves them in turn.
 * It sends its headers when a thread begins to serve a stream, which distinguishes the two waits.
 */
final class Patience implements ClientInterceptor {
    // Ten copies of a broker may wait behind six (RSM's defaults): of 1 GiB each they are through
    // in this time if the store takes 10 MiB/s.
    private static final Duration COPY_TURN = Duration.ofMinutes(30);
    private static final Duration READ_TURN = Duration.ofMinutes(5);

    private final long turnNanos;
    private final long progressNanos;
    private final LongSupplier clock;
    private volatile Long takenUpNanos;

    /** Limits the waits by a clock in nanoseconds, such as {@link System#nanoTime}. */
    Patience(Duration turn, Duration progress, LongSupplier clock) {
        turnNanos = turn.toNanos();
        progressNanos = progress.toNanos();
        this.clock = clock;
    }

    static Patience withCopy(long progressTimeoutMs) {
        return new Patience(COPY_TURN, Duration.ofMillis(progressTimeoutMs), System::nanoTime);
    }

    static Patience withRead(long progressTimeoutMs) {
        return new Patience(READ_TURN, Duration.ofMillis(progressTimeoutMs), System::nanoTime);
    }

    /** Moves one message, or none if that is not possible within a time. */
    interface Step<T> {
        T within(long timeout, TimeUnit unit)
            throws StatusException, InterruptedException, TimeoutException;
    }

    /**
     * Makes one step of the call.
     *
     * @throws TimeoutException if the server has made no progress for too long; {@link #complaint}
     *     has the time
     */
    <T> T take(Step<T> step) throws StatusException, InterruptedException, TimeoutException {
        long sinceNanos = clock.getAsLong();
        while (true) {
            try {
                // If the server begins to serve the call meanwhile, its time ends no earlier.
                long timeoutNanos = Math.min(leftNanos(sinceNanos), progressNanos);
                return step.within(timeoutNanos, TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                if (leftNanos(sinceNanos) <= 0) {
                    throw e;
                }
            }
        }
    }

    /** Returns whether the server has begun to serve the stream. */
    boolean isTakenUp() {
        return takenUpNanos != null;
    }

    /** Describes the limit that was exceeded: {@code no progress for 60000 ms}. */
    String complaint() {
        return takenUpNanos == null
            ? "not taken up for " + TimeUnit.NANOSECONDS.toMillis(turnNanos) + " ms"
            : "no progress for " + TimeUnit.NANOSECONDS.toMillis(progressNanos) + " ms";
    }

    @Override
    public <ReqT, RespT> ClientCall<ReqT, RespT> interceptCall(
        MethodDescriptor<ReqT, RespT> method, CallOptions options, Channel next
    ) {
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            public void start(Listener<RespT> listener, Metadata headers) {
                super.start(new SimpleForwardingClientCallListener<>(listener) {
                    @Override
                    public void onHeaders(Metadata headers) {
                        takenUpNanos = clock.getAsLong();
                        super.onHeaders(headers);
                    }
                }, headers);
            }
        };
    }

    /** Returns the rest of a wait that began at {@code sinceNanos}. */
    private long leftNanos(long sinceNanos) {
        long nowNanos = clock.getAsLong();
        Long takenUp = takenUpNanos;
        return takenUp == null
            ? turnNanos - (nowNanos - sinceNanos)
            : progressNanos - Math.min(nowNanos - sinceNanos, nowNanos - takenUp);
    }
}
