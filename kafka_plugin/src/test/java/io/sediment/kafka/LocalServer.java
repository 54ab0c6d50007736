package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import io.grpc.Attributes;
import io.grpc.BindableService;
import io.grpc.Grpc;
import io.grpc.Server;
import io.grpc.ServerTransportFilter;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import io.netty.handler.ssl.SslContext;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataByIdRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataByIdResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerImplBase;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import javax.net.ssl.SSLPeerUnverifiedException;
import javax.net.ssl.SSLSession;

/** A gRPC server on this machine that can go away and come back under its address. */
final class LocalServer implements AutoCloseable {
    private final BindableService service;
    private final KnownSegments segments = new KnownSegments();
    private final Turns turns = new Turns();
    private final int port;
    private final List<String> peers = new CopyOnWriteArrayList<>();
    private Optional<SslContext> tls;
    private Server server;

    LocalServer(BindableService service) {
        this(service, Optional.empty());
    }

    /** With TLS, or plaintext. */
    LocalServer(BindableService service, Optional<SslContext> tls) {
        this.service = service;
        this.tls = tls;
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

    /** Of a plugin over this server with TLS, whose files are named as Kubernetes names them. */
    Map<String, Object> settings(Path files) {
        return settings(
            "security.protocol", "SSL",
            "ssl.ca.file", files.resolve("ca.crt").toString(),
            "ssl.certificate.file", files.resolve("tls.crt").toString(),
            "ssl.key.file", files.resolve("tls.key").toString());
    }

    /** The subject of each certificate with which a client connected, in order. */
    List<String> peers() {
        return peers;
    }

    /** Of a plugin over this server, without their prefix; more may be given by name and value. */
    Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("endpoint", endpoint());
        if (isStorage()) {
            settings.put("rlmm.endpoint", endpoint());
        }
        settings.put("security.protocol", "PLAINTEXT");
        for (int i = 0; i < more.length; i += 2) {
            settings.put((String) more[i], more[i + 1]);
        }
        return settings;
    }

    /** What RLMM knows beside an RSM. */
    KnownSegments segments() {
        return segments;
    }

    private boolean isStorage() {
        return service instanceof RemoteStorageManagerImplBase;
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

    void startAgain(Optional<SslContext> tls) {
        this.tls = tls;
        startAgain();
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
        NettyServerBuilder builder = NettyServerBuilder
            .forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), listenPort));
        tls.ifPresent(builder::sslContext);
        if (isStorage()) {
            builder.addService(segments);
        }
        return builder
            .addTransportFilter(new ServerTransportFilter() {
                @Override
                public Attributes transportReady(Attributes attributes) {
                    SSLSession session = attributes.get(Grpc.TRANSPORT_ATTR_SSL_SESSION);
                    if (session != null) {
                        peers.add(subject(session));
                    }
                    return attributes;
                }
            })
            .maxInboundMessageSize(ServiceChannel.MAX_MESSAGE_BYTES)
            .addService(turns.of(service))
            .build();
    }

    /** An RLMM that knows at most one segment, of which it is asked by its id. */
    static final class KnownSegments extends RemoteLogMetadataManagerImplBase {
        private volatile StatusRuntimeException failure =
            refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND");
        private volatile Optional<RemoteLogSegmentMetadata> known = Optional.empty();

        void know(RemoteLogSegmentMetadata segment) {
            known = Optional.of(segment);
        }

        void failWith(StatusRuntimeException newFailure) {
            failure = newFailure;
        }

        @Override
        public void getRemoteLogSegmentMetadataById(
            GetRemoteLogSegmentMetadataByIdRequest request,
            StreamObserver<GetRemoteLogSegmentMetadataByIdResponse> answer
        ) {
            if (known.isEmpty()) {
                answer.onError(failure);
                return;
            }
            answer.onNext(GetRemoteLogSegmentMetadataByIdResponse.newBuilder()
                .addSegments(known.get())
                .build());
            answer.onCompleted();
        }
    }

    private static String subject(SSLSession session) {
        try {
            return session.getPeerPrincipal().getName();
        } catch (SSLPeerUnverifiedException e) {
            throw new AssertionError(e);
        }
    }
}
