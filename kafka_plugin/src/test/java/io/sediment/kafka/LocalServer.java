package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import io.grpc.BindableService;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;

/** A gRPC server on this machine that can go away and come back under its address. */
final class LocalServer implements AutoCloseable {
    private final BindableService service;
    private final Turns turns = new Turns();
    private final int port;
    private Server server;

    LocalServer(BindableService service) {
        this.service = service;
        server = listeningOn(0);
        try {
            server.start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        port = server.getPort();
    }

    /** The failure of a service: a status with our reason. */
    static StatusRuntimeException refusal(Status.Code code, String reason) {
        return refusal(code, reason, "sediment");
    }

    static StatusRuntimeException refusal(Status.Code code, String reason, String domain) {
        ErrorInfo info = ErrorInfo.newBuilder().setReason(reason).setDomain(domain).build();
        return StatusProto.toStatusRuntimeException(com.google.rpc.Status.newBuilder()
            .setCode(code.value())
            .setMessage("said the server")
            .addDetails(Any.pack(info))
            .build());
    }

    String endpoint() {
        return "127.0.0.1:" + port;
    }

    /** Decides when streams are taken up: each at once, unless they are held. */
    Turns turns() {
        return turns;
    }

    void stop() {
        server.shutdownNow();
        try {
            server.awaitTermination();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    void startAgain() {
        // Ports that the system has chosen are those of outgoing connections too, any of which may
        // have it for a moment.
        assertEventually(this::startsOnItsPort, "port " + port);
    }

    private boolean startsOnItsPort() {
        server = listeningOn(port);
        try {
            server.start();
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    @Override
    public void close() {
        stop();
    }

    private Server listeningOn(int listenPort) {
        return NettyServerBuilder
            .forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), listenPort))
            .maxInboundMessageSize(ServiceChannel.MAX_MESSAGE_BYTES)
            .addService(turns.of(service))
            .build();
    }
}
