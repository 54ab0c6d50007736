package io.sediment.kafka;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.Optional;

import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * What a failed call is to Kafka. On a {@link RemoteStorageException} Kafka deletes the copy and
 * warns; on a {@link RetriableRemoteStorageException} it leaves everything and tries again.
 *
 * <p>The reason of google.rpc.ErrorInfo decides. Without one the answer came from the transport and
 * the call may have taken effect: retriable, whatever the status.
 */
final class Failures {
    private static final String DOMAIN = "sediment";

    private final String service;

    /** @param service whom the calls go to, for messages: "RSM at host:port" */
    Failures(String service) {
        this.service = service;
    }

    /** The exception for a call that ended with {@code cause}, a gRPC status or anything else. */
    RemoteStorageException of(String call, Throwable cause) {
        Status status = Status.fromThrowable(cause);
        String message = service + ", " + call + ": " + describe(status);
        return switch (verdict(cause)) {
            case NOT_FOUND -> new RemoteResourceNotFoundException(message, cause);
            case RETRIABLE -> new RetriableRemoteStorageException(message, cause);
            case PERMANENT -> new RemoteStorageException(message, cause);
        };
    }

    /** The exception for a call that stood still for too long, as {@code complaint} says. */
    RemoteStorageException ofStandstill(String call, String complaint, Throwable cause) {
        return new RetriableRemoteStorageException(
            service + ", " + call + ": " + complaint, cause);
    }

    /** The exception for a call whose thread was interrupted; restores the thread's flag. */
    RemoteStorageException ofInterrupt(String call, InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new RetriableRemoteStorageException(service + ", " + call + ": interrupted", cause);
    }

    /** The exception for an answer that cannot be read, such as a newer server's. */
    RemoteStorageException ofAnswer(String call, String complaint, Throwable cause) {
        return new RemoteStorageException(
            service + ", " + call + ": unreadable answer: " + complaint, cause);
    }

    /** Whether the service itself refused the call, so that a repeat is useless. */
    static boolean isPermanent(Throwable cause) {
        return verdict(cause) != Verdict.RETRIABLE;
    }

    /** {@code UNAVAILABLE: what the server or the transport said}. */
    static String describe(Status status) {
        StringBuilder text = new StringBuilder(status.getCode().name());
        if (status.getDescription() != null) {
            text.append(": ").append(status.getDescription());
        }
        // Netty says "io exception" and leaves the rest, such as a refused connection, to it.
        if (status.getCause() != null && status.getCause().getMessage() != null) {
            text.append(" (").append(status.getCause().getMessage()).append(')');
        }
        return text.toString();
    }

    private enum Verdict { NOT_FOUND, RETRIABLE, PERMANENT }

    private static Verdict verdict(Throwable cause) {
        return reason(cause)
            .map(reason -> verdict(reason, Status.fromThrowable(cause).getCode()))
            .orElse(Verdict.RETRIABLE);
    }

    private static Verdict verdict(String reason, Status.Code code) {
        return switch (reason) {
            case "REMOTE_RESOURCE_NOT_FOUND" -> Verdict.NOT_FOUND;
            case "RETRIABLE_REMOTE_STORAGE_ERROR", "THROTTLED", "CONCURRENT_UPDATE" ->
                Verdict.RETRIABLE;
            // A reason that this release does not know is judged by its status. Where that does not
            // ask for a repeat the server has decided, and a permanent error is the one that an
            // operator sees: Kafka logs retriable ones at DEBUG, and each leaves a copy behind.
            default -> switch (code) {
                case UNAVAILABLE, RESOURCE_EXHAUSTED, ABORTED -> Verdict.RETRIABLE;
                default -> Verdict.PERMANENT;
            };
        };
    }

    private static Optional<String> reason(Throwable cause) {
        if (!(cause instanceof StatusException) && !(cause instanceof StatusRuntimeException)) {
            return Optional.empty();
        }
        try {
            com.google.rpc.Status status = StatusProto.fromThrowable(cause);
            if (status == null) {
                return Optional.empty();
            }
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo info = detail.unpack(ErrorInfo.class);
                    if (info.getDomain().equals(DOMAIN)) {
                        return Optional.of(info.getReason());
                    }
                }
            }
            return Optional.empty();
        } catch (IllegalArgumentException | InvalidProtocolBufferException e) {
            // The details contradict the call's own status, or are no message: believe neither.
            return Optional.empty();
        }
    }
}
