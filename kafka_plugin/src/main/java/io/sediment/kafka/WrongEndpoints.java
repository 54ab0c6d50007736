package io.sediment.kafka;

import io.grpc.Attributes;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientStreamTracer;
import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.net.SocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds addresses at which another service listens, from the answers to calls, and logs each once.
 * Calls leave them out for a minute at a time. Thread-safe.
 */
final class WrongEndpoints implements ClientInterceptor {
    private static final Logger LOG = LoggerFactory.getLogger(WrongEndpoints.class);
    private static final long LEFT_OUT_NANOS = TimeUnit.MINUTES.toNanos(1);
    // Names may resolve to other addresses.
    private static final long FORGOTTEN_NANOS = TimeUnit.HOURS.toNanos(1);

    /** RPCs that the service of an earlier release does not have: they prove nothing. */
    static final Set<String> OPTIONAL_CALLS = Set.of("OpenLogSegment", "WatchPartitions");

    private final String service;
    private final String property;
    private final LongSupplier clock;
    private volatile Runnable onFound = () -> { };

    // Guarded by this. An address stays, and is not logged again, until the service answers there.
    private final Map<SocketAddress, Long> leftOutUntilNanos = new HashMap<>();

    /**
     * @param service the called service, for messages: "RSM at host:port"
     * @param property which names its endpoints
     * @param clock as {@link System#nanoTime}
     */
    WrongEndpoints(String service, String property, LongSupplier clock) {
        this.service = service;
        this.property = property;
        this.clock = clock;
    }

    /** Sets what to do when another address is left out, before its call fails or is repeated. */
    void whenFound(Runnable action) {
        onFound = action;
    }

    /** Whether calls leave out an address now. */
    synchronized boolean isLeftOut(SocketAddress address) {
        Long untilNanos = leftOutUntilNanos.get(address);
        return untilNanos != null && untilNanos - clock.getAsLong() > 0;
    }

    @Override
    public <ReqT, RespT> ClientCall<ReqT, RespT> interceptCall(
        MethodDescriptor<ReqT, RespT> method, CallOptions options, Channel next
    ) {
        String call = method.getBareMethodName();
        return next.newCall(method, OPTIONAL_CALLS.contains(call)
            ? options
            : options.withStreamTracerFactory(new ClientStreamTracer.Factory() {
                @Override
                public ClientStreamTracer newClientStreamTracer(
                    ClientStreamTracer.StreamInfo info, Metadata headers
                ) {
                    return new Attempt(call);
                }
            }));
    }

    /** One attempt of a call, at one address. */
    private final class Attempt extends ClientStreamTracer {
        private final String call;
        private volatile SocketAddress address;
        private volatile Metadata trailers = new Metadata();

        Attempt(String call) {
            this.call = call;
        }

        @Override
        public void streamCreated(Attributes transport, Metadata headers) {
            address = transport.get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR);
        }

        @Override
        public void inboundTrailers(Metadata received) {
            trailers = received;
        }

        @Override
        public void streamClosed(Status status) {
            if (address == null) {
                return;
            }
            if (Failures.isOfAnotherService(status.asException(trailers))) {
                found(address, call + ": " + Failures.describe(status));
            } else if (status.isOk()) {
                answered(address);
            }
        }
    }

    private void found(SocketAddress address, String answer) {
        boolean isKnown;
        boolean isLeftOut;
        synchronized (this) {
            long nowNanos = clock.getAsLong();
            leftOutUntilNanos.values().removeIf(until -> nowNanos - until > FORGOTTEN_NANOS);
            isKnown = leftOutUntilNanos.containsKey(address);
            isLeftOut = isLeftOut(address);
            leftOutUntilNanos.put(address, nowNanos + LEFT_OUT_NANOS);
        }
        if (!isKnown) {
            LOG.warn("{}: another service listens at {} ({}); calling the other endpoints, if any,"
                + " and this one again each minute. Correct {}",
                service, String.valueOf(address).replaceFirst("^.*/", ""), answer, property);
        }
        if (!isLeftOut) {
            onFound.run();
        }
    }

    private synchronized void answered(SocketAddress address) {
        leftOutUntilNanos.remove(address);
    }
}
