package io.sediment.kafka;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Logs once that a service does not serve, once that it serves again, and that it refuses the
 * broker. Kafka itself logs a failure that it retries only at DEBUG, which operators do not see.
 */
final class Reachability implements ClientInterceptor {
    private static final Logger LOG = LoggerFactory.getLogger(Reachability.class);
    private static final long WARN_INTERVAL_NANOS = TimeUnit.MINUTES.toNanos(1);

    private final String service;
    private boolean reachable = true;
    private boolean silent;
    private long lastWarnNanos = System.nanoTime() - WARN_INTERVAL_NANOS;
    private long lastRefusalNanos = lastWarnNanos;

    /** @param service the called service: "RSM at host:port" */
    Reachability(String service) {
        this.service = service;
    }

    @Override
    public <ReqT, RespT> ClientCall<ReqT, RespT> interceptCall(
        MethodDescriptor<ReqT, RespT> method, CallOptions options, Channel next
    ) {
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            public void start(Listener<RespT> listener, Metadata headers) {
                super.start(observe(method, listener), headers);
            }
        };
    }

    private <RespT> ClientCall.Listener<RespT> observe(
        MethodDescriptor<?, RespT> method, ClientCall.Listener<RespT> listener
    ) {
        return new SimpleForwardingClientCallListener<>(listener) {
            @Override
            public void onMessage(RespT message) {
                reached();
                super.onMessage(message);
            }

            @Override
            public void onClose(Status status, Metadata trailers) {
                if (isRefusalOfTheBroker(status)) {
                    refused(method.getBareMethodName() + ": " + Failures.describe(status));
                } else if (status.isOk() || Failures.isPermanent(status.asException(trailers))) {
                    reached();
                } else if (!isClosedByKafka(status)
                    && !Failures.isOfAnotherService(status.asException(trailers))
                    && !WrongEndpoints.OPTIONAL_CALLS.contains(method.getBareMethodName())) {
                    // Other calls replace the optional ones. WrongEndpoints logs other services.
                    missed(method.getBareMethodName() + ": " + Failures.describe(status));
                }
                super.onClose(status, trailers);
            }
        };
    }

    /** Returns whether calls keep failing until an operator changes the policy. */
    private static boolean isRefusalOfTheBroker(Status status) {
        return status.getCode() == Status.Code.PERMISSION_DENIED
            || status.getCode() == Status.Code.UNAUTHENTICATED;
    }

    /** Kafka closes most reads before their end; a stream without progress has failed. */
    private static boolean isClosedByKafka(Status status) {
        return status.getCode() == Status.Code.CANCELLED
            && !(status.getCause() instanceof TimeoutException);
    }

    /** Stops logging: calls that end because the channel closes are no failures. */
    synchronized void silence() {
        silent = true;
    }

    private synchronized void missed(String failure) {
        // A service that comes and goes is logged once a minute.
        if (!silent && reachable && System.nanoTime() - lastWarnNanos >= WARN_INTERVAL_NANOS) {
            reachable = false;
            lastWarnNanos = System.nanoTime();
            LOG.warn("{} does not serve; tiered storage waits for it. {}", service, failure);
        }
    }

    private synchronized void refused(String failure) {
        if (!silent && System.nanoTime() - lastRefusalNanos >= WARN_INTERVAL_NANOS) {
            lastRefusalNanos = System.nanoTime();
            LOG.warn("{} refuses the broker; tiered storage waits for a grant in its policy. {}",
                service, failure);
        }
    }

    private synchronized void reached() {
        if (!reachable) {
            reachable = true;
            LOG.info("{} serves again", service);
        }
    }
}
