package io.sediment.kafka;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientStreamTracer;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.LongAdder;

/** Counts a service's calls, by RPC, in JMX, and reports to an observer how they end. Thread-safe. */
final class CallFigures implements ClientInterceptor, AutoCloseable {
    /** Which attempt of its caller a call is; {@link Attempt#ONLY} if it is not set. */
    static final CallOptions.Key<Attempt> ATTEMPT =
        CallOptions.Key.createWithDefault("sediment.attempt", Attempt.ONLY);

    private final Map<String, Figures> figures = new ConcurrentHashMap<>();
    private final String service;
    private final String broker;
    private final Observer observer;

    /** The attempts of a call that its caller, and not gRPC, repeats. */
    enum Attempt {
        ONLY,
        /** Repeated if {@link Failures#isLost} holds after the headers, before a message. */
        FIRST,
        REPEAT
    }

    /** Sees the answers of all calls, in their threads. */
    interface Observer {
        /** Sees that a service has sent a message. */
        void answered();

        /** Sees the end of a call of an RPC. */
        void ended(String call, Status status, Metadata trailers);
    }

    /** The figures of one RPC. */
    private static final class Figures extends ClientStreamTracer.Factory {
        private final LongAdder calls = new LongAdder();
        private final LongAdder failures = new LongAdder();
        private final LongAdder repeats = new LongAdder();
        private final LongAdder timeMs = new LongAdder();
        private final JmxBean bean;

        Figures(String service, String broker, String call) {
            bean = new JmxBean("Calls,service=" + service + ",call=" + call, broker, Map.of(
                "Calls", calls::sum,
                "Failures", failures::sum,
                "Repeats", repeats::sum,
                "TimeMs", timeMs::sum));
        }

        /** Counts the attempts of gRPC after the first of a call. */
        @Override
        public ClientStreamTracer newClientStreamTracer(
            ClientStreamTracer.StreamInfo info, Metadata headers
        ) {
            if (info.getPreviousAttempts() > 0) {
                repeats.increment();
            }
            return new ClientStreamTracer() { };
        }
    }

    /**
     * @param service the service's short name, for the names in JMX
     * @param broker the broker's id, for the same
     */
    CallFigures(String service, String broker, Observer observer) {
        this.service = service;
        this.broker = broker;
        this.observer = observer;
    }

    @Override
    public <ReqT, RespT> ClientCall<ReqT, RespT> interceptCall(
        MethodDescriptor<ReqT, RespT> method, CallOptions options, Channel next
    ) {
        Figures counted = figures.computeIfAbsent(
            method.getBareMethodName(), call -> new Figures(service, broker, call));
        Attempt attempt = options.getOption(ATTEMPT);
        (attempt == Attempt.REPEAT ? counted.repeats : counted.calls).increment();
        CallOptions observed = options.withStreamTracerFactory(counted);
        return new CountedCall<>(
            next.newCall(method, observed), method.getBareMethodName(), counted, attempt);
    }

    /** Removes the figures from JMX; call it when no call can begin any more. */
    @Override
    public void close() {
        figures.values().forEach(counted -> counted.bean.close());
    }

    /** Counts the end of one call. */
    private final class CountedCall<ReqT, RespT>
        extends SimpleForwardingClientCall<ReqT, RespT> {
        private final String name;
        private final Figures counted;
        private final Attempt attempt;
        private final long beganNanos = System.nanoTime();
        private volatile boolean isClosedByKafka;
        private volatile boolean hasHeaders;
        private volatile boolean hasMessage;

        CountedCall(
            ClientCall<ReqT, RespT> call, String name, Figures counted, Attempt attempt
        ) {
            super(call);
            this.name = name;
            this.counted = counted;
            this.attempt = attempt;
        }

        @Override
        public void start(Listener<RespT> listener, Metadata headers) {
            super.start(new SimpleForwardingClientCallListener<>(listener) {
                @Override
                public void onHeaders(Metadata received) {
                    hasHeaders = true;
                    super.onHeaders(received);
                }

                @Override
                public void onMessage(RespT message) {
                    hasMessage = true;
                    observer.answered();
                    super.onMessage(message);
                }

                @Override
                public void onClose(Status status, Metadata trailers) {
                    if (isFailure(status) && !isClosedByKafka && !isRepeated(status, trailers)) {
                        counted.failures.increment();
                    }
                    counted.timeMs.add(
                        TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - beganNanos));
                    observer.ended(name, status, trailers);
                    super.onClose(status, trailers);
                }
            }, headers);
        }

        @Override
        public void cancel(String message, Throwable cause) {
            // Kafka closes most reads before their end. A call without progress has failed.
            isClosedByKafka = !(cause instanceof TimeoutException);
            super.cancel(message, cause);
        }

        /** A transaction index that a segment does not have is not found: that is an answer. */
        private static boolean isFailure(Status status) {
            return !status.isOk() && status.getCode() != Status.Code.NOT_FOUND;
        }

        private boolean isRepeated(Status status, Metadata trailers) {
            return attempt == Attempt.FIRST && hasHeaders && !hasMessage
                && Failures.isLost(status.asException(trailers));
        }
    }
}
