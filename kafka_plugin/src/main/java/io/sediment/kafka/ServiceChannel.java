package io.sediment.kafka;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.LoadBalancerRegistry;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.netty.NettyChannelBuilder;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.apache.kafka.common.config.ConfigException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Connects to one service, at all addresses of its target, when it is first used and again after
 * each connection that is lost. If the service is down, calls fail, but never the construction.
 *
 * <p>Logs once that a service does not serve, once that it serves again, and that it refuses the
 * broker: Kafka itself logs a failure that it retries only at DEBUG, which operators do not see.
 */
final class ServiceChannel implements CallFigures.Observer, AutoCloseable {
    static {
        LoadBalancerRegistry.getDefaultRegistry().register(new FewestCalls.Provider());
    }

    private static final Logger LOG = LoggerFactory.getLogger(ServiceChannel.class);
    static final int MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
    // Two chunks of a stream: the next is on its way while one is read. Netty counts this for each
    // stream, so that a stream whose reader waits does not stop the others.
    private static final int FLOW_CONTROL_WINDOW_BYTES = 2 * 1024 * 1024;
    private static final int KEEPALIVE_TIME_S = 30;
    private static final int KEEPALIVE_TIMEOUT_S = 10;
    // gRPC waits up to two minutes between attempts otherwise.
    private static final int MAX_RECONNECT_BACKOFF_S = 2;
    private static final int CLOSE_TIMEOUT_S = 5;
    // The channel caps the attempts of a service config, at 5 by default.
    private static final int MAX_ATTEMPTS = 20;

    private static final long WARN_INTERVAL_NANOS = TimeUnit.MINUTES.toNanos(1);
    // Other calls replace these: their failure alone means nothing for tiered storage.
    private static final Set<String> REPLACED_CALLS = Set.of("OpenLogSegment", "WatchPartitions");

    /**
     * Repeats an idempotent call at another address. A server that stops closes its connections
     * (UNAVAILABLE), and cancels the calls that reach it before its clients know (CANCELLED). gRPC
     * does not repeat a call that this client has cancelled.
     */
    static final Map<String, ?> REPEAT_ELSEWHERE = Map.of(
        "maxAttempts", 3.0,
        "initialBackoff", "0.1s",
        "maxBackoff", "1s",
        "backoffMultiplier", 2.0,
        "retryableStatusCodes", List.of("UNAVAILABLE", "CANCELLED"));

    private final String name;
    private final Optional<ReloadedTls> tls;
    private final ManagedChannel channel;
    private final CallFigures figures;
    private final Channel observed;

    // Guarded by this.
    private boolean isClosed;
    private boolean isServing = true;
    private long warnedNanos = System.nanoTime() - WARN_INTERVAL_NANOS;

    /**
     * @param service the service's short name, for messages
     * @param target where it listens
     * @param serviceConfig gRPC's service config, for example which calls are repeated
     * @throws ConfigException if a TLS file cannot be used
     */
    ServiceChannel(
        String service, String target, ServiceConfig config, Map<String, ?> serviceConfig
    ) {
        name = service + " at " + target;
        tls = config.tlsFiles().map(files -> open(name, files));
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(target);
        if (tls.isPresent()) {
            builder.sslContext(tls.get());
        } else {
            LOG.warn("{}: {}=PLAINTEXT: no encryption and no identity; anyone on the network can"
                + " read and delete the data in the tier", name, config.securityProtocolProperty());
            builder.usePlaintext();
        }
        channel = builder
            // The service is where the target says, whatever proxies the JVM has.
            .proxyDetector(address -> null)
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            .flowControlWindow(FLOW_CONTROL_WINDOW_BYTES)
            .keepAliveTime(KEEPALIVE_TIME_S, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
            .defaultLoadBalancingPolicy(FewestCalls.Provider.POLICY)
            .defaultServiceConfig(serviceConfig)
            .disableServiceConfigLookUp()
            .maxRetryAttempts(MAX_ATTEMPTS)
            .build();
        figures = new CallFigures(service, config.broker(), this);
        observed = ClientInterceptors.intercept(channel, figures);
        boundReconnectBackoff();
        // New calls use a new connection, with the new files; active ones end on the old one.
        tls.ifPresent(reloaded -> reloaded.watch(channel::enterIdle));
    }

    /** Returns the channel of stubs. */
    Channel channel() {
        return observed;
    }

    /** Names the service and its target, for messages: "RSM at host:port". */
    @Override
    public String toString() {
        return name;
    }

    /** Refuses new calls and cancels active ones; returns within seconds. */
    @Override
    public void close() {
        synchronized (this) {
            isClosed = true;
        }
        tls.ifPresent(ReloadedTls::close);
        channel.shutdownNow();
        try {
            channel.awaitTermination(CLOSE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        figures.close();
    }

    @Override
    public synchronized void answered() {
        if (!isServing) {
            isServing = true;
            LOG.info("{} serves again", name);
        }
    }

    @Override
    public void ended(String call, Status status, Metadata trailers) {
        if (status.getCode() == Status.Code.PERMISSION_DENIED
            || status.getCode() == Status.Code.UNAUTHENTICATED) {
            // Calls fail until an operator changes the policy; others may succeed meanwhile.
            warn("refuses the broker; tiered storage waits for a grant in its policy",
                call, status, true);
        } else if (status.isOk() || Failures.isPermanent(status.asException(trailers))) {
            answered();
        } else if (!isClosedByKafka(status) && !REPLACED_CALLS.contains(call)) {
            warn("does not serve; tiered storage waits for it", call, status, false);
        }
    }

    /** Warns at most once a minute, also of a service that comes and goes. */
    private synchronized void warn(
        String problem, String call, Status status, boolean isStillServing
    ) {
        if (!isClosed && isServing && System.nanoTime() - warnedNanos >= WARN_INTERVAL_NANOS) {
            warnedNanos = System.nanoTime();
            isServing = isStillServing;
            LOG.warn("{} {}. {}: {}", name, problem, call, Failures.describe(status));
        }
    }

    /** Kafka closes most reads before their end; a stream without progress has failed. */
    private static boolean isClosedByKafka(Status status) {
        return status.getCode() == Status.Code.CANCELLED
            && !(status.getCause() instanceof TimeoutException);
    }

    private static ReloadedTls open(String name, TlsFiles files) {
        try {
            return new ReloadedTls(name, files);
        } catch (TlsFileException e) {
            throw new ConfigException(e.getMessage());
        }
    }

    private void boundReconnectBackoff() {
        // Also the backoff of single addresses while others serve. All names are resolved again.
        CompletableFuture
            .delayedExecutor(MAX_RECONNECT_BACKOFF_S, TimeUnit.SECONDS)
            .execute(() -> {
                if (!channel.isShutdown()) {
                    channel.resetConnectBackoff();
                    boundReconnectBackoff();
                }
            });
    }
}
