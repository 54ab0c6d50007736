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
import io.netty.handler.ssl.NotSslRecordException;
import java.io.IOException;
import java.net.ConnectException;
import java.net.NoRouteToHostException;
import java.security.cert.CertificateException;
import java.util.Optional;
import java.util.function.Predicate;
import javax.net.ssl.SSLException;

/** Adds to the status of a call that no service answered which settings to check. */
final class HandshakeFailures implements ClientInterceptor {
    private final String service;
    private final ServiceConfig config;

    /** @param service the service's short name: "RSM" */
    HandshakeFailures(String service, ServiceConfig config) {
        this.service = service;
        this.config = config;
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
                    public void onClose(Status status, Metadata trailers) {
                        super.onClose(explain(status, trailers), trailers);
                    }
                }, headers);
            }
        };
    }

    private Status explain(Status status, Metadata trailers) {
        if (status.getCode() != Status.Code.UNAVAILABLE || !trailers.keys().isEmpty()) {
            return status;
        }
        return config.tlsFiles()
            .map(files -> explain(status, files))
            .orElseGet(() -> isClosed(status)
                ? with(status, "if this persists, " + service + " may have TLS: set "
                    + config.securityProtocolProperty() + "=SSL")
                : status);
    }

    private Status explain(Status status, TlsFiles files) {
        Throwable cause = status.getCause();
        if (find(cause, NotSslRecordException.class::isInstance).isPresent()) {
            // Without the cause, which has the answer in hexadecimal.
            return status.withCause(null).withDescription("the answer is not TLS: check that the"
                + " endpoint is the TLS port of " + service + ", or set "
                + config.securityProtocolProperty() + "=PLAINTEXT");
        }
        Optional<Throwable> distrust = find(cause, CertificateException.class::isInstance);
        if (distrust.isPresent()) {
            return status.withCause(root(distrust.get())).withDescription("the certificate of "
                + service + " is refused: check it and " + files.ca());
        }
        String advice = "check that " + files.certificate() + " is valid and that " + service
            + " trusts its authority (" + service + "_TLS_CLIENT_CA_FILE)";
        if (find(cause, SSLException.class::isInstance).isPresent()) {
            return status.withDescription("the TLS handshake failed: " + advice);
        }
        // A service may hang up on a certificate that it refuses without giving a reason.
        return isClosed(status)
            ? with(status, "if this persists, " + advice)
            : status;
    }

    /** In one line, which Status.augmentDescription does not keep. */
    private static Status with(Status status, String advice) {
        String description = status.getDescription();
        return status.withDescription(description == null ? advice : description + "; " + advice);
    }

    /** Whether the connection was there and was lost. */
    private static boolean isClosed(Status status) {
        Throwable cause = status.getCause();
        return cause == null
            || cause instanceof IOException
            && !(cause instanceof ConnectException)
            && !(cause instanceof NoRouteToHostException);
    }

    private static Optional<Throwable> find(Throwable outermost, Predicate<Throwable> wanted) {
        for (Throwable cause = outermost; cause != null; cause = cause.getCause()) {
            if (wanted.test(cause)) {
                return Optional.of(cause);
            }
        }
        return Optional.empty();
    }

    private static Throwable root(Throwable outermost) {
        Throwable cause = outermost;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }
}
