package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.net.ConnectException;

import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

class FailuresTest {
    private final Failures failures = new Failures("RSM at a:1");

    @Test
    void whatIsNotThereIsNotFound() {
        assertClass(RemoteResourceNotFoundException.class,
            LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND"));
    }

    @ParameterizedTest
    @CsvSource({
        "UNAVAILABLE, RETRIABLE_REMOTE_STORAGE_ERROR",
        "RESOURCE_EXHAUSTED, THROTTLED",
        "ABORTED, CONCURRENT_UPDATE",
    })
    void whatMayPassIsRetriable(Status.Code code, String reason) {
        assertClass(RetriableRemoteStorageException.class, LocalServer.refusal(code, reason));
    }

    @ParameterizedTest
    @CsvSource({
        "INTERNAL, REMOTE_STORAGE_ERROR",
        "INVALID_ARGUMENT, INVALID_REQUEST",
        "INVALID_ARGUMENT, CUSTOM_METADATA_TOO_LARGE",
        "OUT_OF_RANGE, INVALID_RANGE",
        "ALREADY_EXISTS, SEGMENT_ALREADY_EXISTS",
        "FAILED_PRECONDITION, INVALID_STATE_TRANSITION",
        "FAILED_PRECONDITION, FENCED_LEADER_EPOCH",
        "FAILED_PRECONDITION, DELETION_REFUSED",
        "FAILED_PRECONDITION, STORE_NOT_FOUND",
        "FAILED_PRECONDITION, STORE_ACCESS_DENIED",
        "FAILED_PRECONDITION, BODY_TOO_LARGE",
        "DATA_LOSS, CORRUPT_SEGMENT",
        "DATA_LOSS, CORRUPT_METADATA",
        "UNAUTHENTICATED, UNAUTHENTICATED",
        "PERMISSION_DENIED, PERMISSION_DENIED",
        "UNIMPLEMENTED, NOT_SERVED",
    })
    void whatTheServiceRefusesIsPermanent(Status.Code code, String reason) {
        assertClass(RemoteStorageException.class, LocalServer.refusal(code, reason));
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "OK")
    void statusWithoutAReasonIsRetriable(Status.Code code) {
        assertClass(RetriableRemoteStorageException.class, code.toStatus().asRuntimeException());
        assertClass(RetriableRemoteStorageException.class,
            LocalServer.refusal(code, "REMOTE_RESOURCE_NOT_FOUND", "somebody else"));
    }

    @ParameterizedTest
    @CsvSource({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"})
    void newReasonIsRetriableWhereItsStatusIs(Status.Code code) {
        assertClass(RetriableRemoteStorageException.class, LocalServer.refusal(code, "NEW"));
    }

    @ParameterizedTest
    @CsvSource({"NOT_FOUND", "INTERNAL", "FAILED_PRECONDITION", "UNKNOWN"})
    void newReasonIsPermanentElsewhere(Status.Code code) {
        assertClass(RemoteStorageException.class, LocalServer.refusal(code, "NEW"));
    }

    @Test
    void detailsThatContradictTheStatusAreNotBelieved() {
        Metadata trailers = LocalServer.refusal(Status.Code.INTERNAL, "NEW").getTrailers();

        assertClass(RetriableRemoteStorageException.class,
            Status.UNAVAILABLE.asRuntimeException(trailers));
    }

    @Test
    void messageSaysWhoAndWhatAndWhy() {
        StatusRuntimeException cause = Status.UNAVAILABLE.withDescription("io exception")
            .withCause(new ConnectException("Connection refused")).asRuntimeException();

        RemoteStorageException failure = failures.of("FetchIndex", cause);

        assertEquals("RSM at a:1, FetchIndex: UNAVAILABLE: io exception (Connection refused)",
            failure.getMessage());
        assertSame(cause, failure.getCause());
    }

    @Test
    void interruptIsRestored() {
        RemoteStorageException failure = failures.ofInterrupt("call", new InterruptedException());

        assertTrue(Thread.interrupted());
        assertEquals(RetriableRemoteStorageException.class, failure.getClass());
    }

    private void assertClass(Class<?> expected, StatusRuntimeException cause) {
        assertEquals(expected, failures.of("call", cause).getClass());
    }
}
