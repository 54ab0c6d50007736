package io.sediment.kafka;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.netty.NettyChannelBuilder;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.config.ConfigException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The way to one service. Connects when first used and again whenever it broke; a service that is
 * down makes calls fail, never the construction.
 */
final class ServiceChannel implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ServiceChannel.class);
    static final int MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
    // Two chunks of a stream: the next is on its way while one is read. Netty counts this for each
    // stream, so a stream that nobody reads holds up no other.
    private static final int FLOW_CONTROL_WINDOW_BYTES = 2 * 1024 * 1024;
    private static final int KEEPALIVE_TIME_S = 30;
    private static final int KEEPALIVE_TIMEOUT_S = 10;
    // gRPC waits up to two minutes between attempts otherwise.
    private static final int MAX_RECONNECT_BACKOFF_S = 2;
    private static final int CLOSE_TIMEOUT_S = 5;
    // What a service config asks for is capped by the channel, at 5 by default.
    private static final int MAX_ATTEMPTS = 20;

    private final String name;
    private final Optional<ReloadedTls> tls;
    private final ManagedChannel channel;
    private final Reachability reachability;
    private final Channel observed;

    /**
     * @param service the service's short name, for messages
     * @param serviceConfig what gRPC calls a service config, such as which calls are repeated
     * @throws ConfigException if a TLS file cannot be used
     */
    ServiceChannel(String service, ServiceConfig config, Map<String, ?> serviceConfig) {
        Endpoint endpoint = config.endpoint();
        name = service + " at " + endpoint;
        tls = config.tlsFiles().map(files -> open(name, files));
        NettyChannelBuilder builder =
            NettyChannelBuilder.forAddress(endpoint.host(), endpoint.port());
        if (tls.isPresent()) {
            builder.sslContext(tls.get());
        } else {
            LOG.warn("{}: {}=PLAINTEXT: no encryption and no identity; anybody on the network can"
                + " read and delete what is in the tier", name, config.securityProtocolProperty());
            builder.usePlaintext();
        }
        channel = builder
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            .flowControlWindow(FLOW_CONTROL_WINDOW_BYTES)
            .keepAliveTime(KEEPALIVE_TIME_S, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
            .defaultServiceConfig(serviceConfig)
            .disableServiceConfigLookUp()
            .maxRetryAttempts(MAX_ATTEMPTS)
            .build();
        reachability = new Reachability(name);
        observed = ClientInterceptors.intercept(
            channel, new HandshakeFailures(service, config), reachability);
        boundReconnectBackoff();
        // New calls go over a new connection, with the new files; those under way end on the old.
        tls.ifPresent(reloaded -> reloaded.watch(channel::enterIdle));
    }

    /** For stubs. */
    Channel channel() {
        return observed;
    }

    /** Whom calls go to, for messages: "RSM at host:port". */
    @Override
    public String toString() {
        return name;
    }

    /** Lets no new call begin and ends those under way; returns within seconds. */
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
    }

    private static ReloadedTls open(String name, TlsFiles files) {
        try {
            return new ReloadedTls(name, files);
        } catch (TlsFileException e) {
            throw new ConfigException(e.getMessage());
        }
    }

    private void boundReconnectBackoff() {
        ConnectivityState state = channel.getState(false);
        if (state == ConnectivityState.SHUTDOWN) {
            return;
        }
        if (state != ConnectivityState.TRANSIENT_FAILURE) {
            channel.notifyWhenStateChanged(state, this::boundReconnectBackoff);
            return;
        }
        // The channel keeps this state, without telling of attempts, until one of them succeeds.
        CompletableFuture
            .delayedExecutor(MAX_RECONNECT_BACKOFF_S, TimeUnit.SECONDS)
            .execute(() -> {
                channel.resetConnectBackoff();
                boundReconnectBackoff();
            });
    }
}
