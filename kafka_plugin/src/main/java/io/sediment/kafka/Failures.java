package io.sediment.kafka;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;

import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Maps failed calls to Kafka's exceptions. On a {@link RemoteStorageException} Kafka deletes the copy and
 * warns; on a {@link RetriableRemoteStorageException} it leaves everything and tries again.
 *
 * <p>The reason of google.rpc.ErrorInfo decides. Without one the answer came from the transport and
 * the call may have taken effect: retriable, whatever the status.
 */
final class Failures {
    private static final String DOMAIN = "sediment";
    private static final Set<Status.Code> LOST =
        EnumSet.of(Status.Code.UNAVAILABLE, Status.Code.CANCELLED);

    private final String service;

    /** @param service the called service, for messages: "RSM at host:port" */
    Failures(String service) {
        this.service = service;
    }

    /** A call of a blocking stub. */
    interface Call<T> {
        T answer() throws StatusException;
    }

    /**
     * Makes a unary call and converts its answer.
     *
     * @param name the RPC, for messages
     * @throws RemoteStorageException if the call fails or its answer cannot be converted
     */
    <T, K> K call(String name, Call<T> call, Function<T, K> convert) throws RemoteStorageException {
        try {
            return convert.apply(call.answer());
        } catch (StatusException e) {
            throw of(name, e);
        } catch (IllegalArgumentException e) {
            throw ofAnswer(name, e.getMessage(), e);
        }
    }

    /** Makes the exception for a call that ended with {@code cause}, a gRPC status or another. */
    RemoteStorageException of(String call, Throwable cause) {
        Status status = Status.fromThrowable(cause);
        String message = service + ", " + call + ": " + describe(status);
        return switch (verdict(cause)) {
            case NOT_FOUND -> new RemoteResourceNotFoundException(message, cause);
            case RETRIABLE -> new RetriableRemoteStorageException(message, cause);
            case PERMANENT -> new RemoteStorageException(message, cause);
        };
    }

    /** Makes the exception for a call that made no progress; {@code complaint} has the time. */
    RemoteStorageException ofStandstill(String call, String complaint, Throwable cause) {
        return new RetriableRemoteStorageException(
            service + ", " + call + ": " + complaint, cause);
    }

    /** Makes the exception for a call whose thread was interrupted; restores its flag. */
    RemoteStorageException ofInterrupt(String call, InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new RetriableRemoteStorageException(service + ", " + call + ": interrupted", cause);
    }

    /** Makes the exception for an answer that cannot be read. */
    RemoteStorageException ofAnswer(String call, String complaint, Throwable cause) {
        return new RemoteStorageException(
            service + ", " + call + ": unreadable answer: " + complaint, cause);
    }

    /** Returns whether the service itself refused the call, so that a retry is useless. */
    static boolean isPermanent(Throwable cause) {
        return verdict(cause) != Verdict.RETRIABLE;
    }

    /**
     * Returns whether the connection, or a server that stops, ended the call, and no service did. A
     * server that stops cancels the calls that reach it before its clients know.
     */
    static boolean isLost(Throwable cause) {
        return cause instanceof StatusException failure
            && LOST.contains(failure.getStatus().getCode())
            && reason(failure).isEmpty();
    }

    /**
     * Returns whether the service could not be reached in time, or cannot reach its database. A
     * service that refuses the call, or is too busy for it, is there.
     */
    static boolean isAway(Throwable cause) {
        return cause instanceof StatusException failure
            && switch (failure.getStatus().getCode()) {
                case UNAVAILABLE -> verdict(failure) == Verdict.RETRIABLE;
                case DEADLINE_EXCEEDED -> reason(failure).isEmpty();
                default -> false;
            };
    }

    /** Formats a status in one line: {@code UNAVAILABLE: description (innermost cause)}. */
    static String describe(Status status) {
        StringBuilder text = new StringBuilder(status.getCode().name());
        if (status.getDescription() != null) {
            text.append(": ").append(status.getDescription());
        }
        // Netty's description is "io exception"; the cause has the rest: "connection refused".
        Throwable cause = status.getCause();
        while (cause != null && cause.getCause() != null) {
            cause = cause.getCause();
        }
        if (cause != null && cause.getMessage() != null) {
            text.append(" (").append(cause.getMessage()).append(')');
        }
        return text.toString().lines().map(String::strip).collect(Collectors.joining(" "));
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
            // Of all others the status decides. If it does not ask for a retry, the error is
            // permanent, so that an operator sees it: Kafka logs retriable ones at DEBUG, and each
            // of them leaves a copy behind.
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
            // The details contradict the call's own status, or are malformed: trust neither.
            return Optional.empty();
        }
    }
}
