package io.sediment.kafka;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.netty.NettyChannelBuilder;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.config.ConfigException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Connects to one service, at one or several endpoints, when it is first used and again after each
 * connection that is lost. If the service is down, calls fail, but never the construction.
 */
final class ServiceChannel implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ServiceChannel.class);
    static final int MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
    // Two chunks of a stream: the next is on its way while one is read. Netty counts this for each
    // stream, so that a stream whose reader waits does not stop the others.
    private static final int FLOW_CONTROL_WINDOW_BYTES = 2 * 1024 * 1024;
    private static final int KEEPALIVE_TIME_S = 30;
    private static final int KEEPALIVE_TIMEOUT_S = 10;
    // gRPC waits up to two minutes between attempts otherwise.
    private static final int MAX_RECONNECT_BACKOFF_S = 2;
    // Each call goes to the next endpoint that is connected.
    private static final String BALANCING = "round_robin";
    private static final int CLOSE_TIMEOUT_S = 5;
    // The channel caps the attempts of a service config, at 5 by default.
    private static final int MAX_ATTEMPTS = 20;

    /**
     * Repeats an idempotent call at another endpoint. A server that stops closes its connections
     * (UNAVAILABLE), and cancels the calls that reach it before its clients know (CANCELLED). Another
     * service at a wrong endpoint has done nothing (UNIMPLEMENTED). gRPC does not repeat a call that
     * this client has cancelled.
     */
    static final Map<String, ?> REPEAT_ELSEWHERE = Map.of(
        "maxAttempts", 3.0,
        "initialBackoff", "0.1s",
        "maxBackoff", "1s",
        "backoffMultiplier", 2.0,
        "retryableStatusCodes", List.of("UNAVAILABLE", "CANCELLED", "UNIMPLEMENTED"));

    private final String name;
    private final Optional<ReloadedTls> tls;
    private final ManagedChannel channel;
    private final Reachability reachability;
    private final CallFigures figures;
    private final Channel observed;

    /**
     * @param service the service's short name, for messages
     * @param serviceConfig gRPC's service config, for example which calls are repeated
     * @throws ConfigException if a TLS file cannot be used
     */
    ServiceChannel(String service, ServiceConfig config, Map<String, ?> serviceConfig) {
        name = service + " at " + Endpoint.join(config.endpoints());
        tls = config.tlsFiles().map(files -> open(name, files));
        NettyChannelBuilder builder =
            NettyChannelBuilder.forTarget(EndpointResolver.target(config.endpoints()));
        if (tls.isPresent()) {
            builder.sslContext(tls.get());
        } else {
            LOG.warn("{}: {}=PLAINTEXT: no encryption and no identity; anyone on the network can"
                + " read and delete the data in the tier", name, config.securityProtocolProperty());
            builder.usePlaintext();
        }
        WrongEndpoints wrong =
            new WrongEndpoints(name, config.endpointProperty(), System::nanoTime);
        channel = builder
            .setNameResolverArg(EndpointResolver.WRONG_ENDPOINTS, wrong)
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            .flowControlWindow(FLOW_CONTROL_WINDOW_BYTES)
            .keepAliveTime(KEEPALIVE_TIME_S, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
            .defaultLoadBalancingPolicy(BALANCING)
            .defaultServiceConfig(serviceConfig)
            .disableServiceConfigLookUp()
            .maxRetryAttempts(MAX_ATTEMPTS)
            .build();
        reachability = new Reachability(name);
        figures = new CallFigures(service, config.broker());
        observed = ClientInterceptors.intercept(
            channel, new HandshakeFailures(service, config), reachability, figures, wrong);
        boundReconnectBackoff();
        // New calls use a new connection, with the new files; active ones end on the old one.
        tls.ifPresent(reloaded -> reloaded.watch(channel::enterIdle));
    }

    /** Returns the channel of stubs. */
    Channel channel() {
        return observed;
    }

    /** Returns the figures of the calls. */
    CallFigures figures() {
        return figures;
    }

    /** Names the service and its endpoints, for messages: "RSM at host:port,host:port". */
    @Override
    public String toString() {
        return name;
    }

    /** Refuses new calls and cancels active ones; returns within seconds. */
    @Override
    public void close() {
        reachability.silence();
        tls.ifPresent(ReloadedTls::close);
        channel.shutdownNow();
        try {
            channel.awaitTermination(CLOSE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        figures.close();
    }

    private static ReloadedTls open(String name, TlsFiles files) {
        try {
            return new ReloadedTls(name, files);
        } catch (TlsFileException e) {
            throw new ConfigException(e.getMessage());
        }
    }

    private void boundReconnectBackoff() {
        // Also the backoff of single endpoints while others serve. All names are resolved again.
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
