package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerImplBase;
import io.sediment.tieredstorage.v1.UpdateRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.UpdateRemoteLogSegmentMetadataResponse;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import javax.management.JMException;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Calls that a server which stops ends, as a Python server does. */
class LostCallsTest {
    private final Rsm rsm = new Rsm();
    private final Rlmm rlmm = new Rlmm();
    private final LocalServer rsmServer = new LocalServer(rsm);
    private final LocalServer rlmmServer = new LocalServer(rlmm);
    private final SedimentRemoteLogMetadataManager metadata =
        new SedimentRemoteLogMetadataManager();
    private final SedimentRemoteStorageManager storage = new SedimentRemoteStorageManager();

    @BeforeEach
    void start() {
        storage.configure(rsmServer.settings("broker.id", 7));
        metadata.configure(rlmmServer.settings("node.id", 7));
    }

    @AfterEach
    void stop() throws Exception {
        storage.close();
        metadata.close();
        rsmServer.close();
        rlmmServer.close();
    }

    @ParameterizedTest
    @EnumSource(names = {"UNAVAILABLE", "CANCELLED"})
    void streamThatIsLostBeforeItsFirstChunkIsRepeated(Status.Code code) throws Exception {
        rsm.lose(1, code);

        try (InputStream log = open()) {
            assertEquals(1, log.read());
        }

        assertEquals(2, rsm.fetches.get());
        assertEquals(1, figure("Calls"));
        assertEquals(1, figure("Repeats"));
        assertEquals(0, figure("Failures"));
    }

    @Test
    void streamIsRepeatedOnceOnly() {
        rsm.lose(2, Status.Code.CANCELLED);

        assertThrows(RetriableRemoteStorageException.class, this::open);

        assertEquals(2, rsm.fetches.get());
        assertEventually(() -> figure("Failures") == 1, "the failure is counted");
    }

    @Test
    void streamThatTheServiceRefusesIsNotRepeated() {
        rsm.failures.set(1);
        rsm.failure = () ->
            LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR");

        assertThrows(RetriableRemoteStorageException.class, this::open);

        assertEquals(1, rsm.fetches.get());
        assertEventually(() -> figure("Failures") == 1, "the failure is counted");
    }

    @Test
    void streamThatIsLostAfterItsFirstChunkIsNotRepeated() throws Exception {
        rsm.sendsFirst = true;
        rsm.lose(1, Status.Code.CANCELLED);

        InputStream log = open();

        assertEquals(1, log.read());
        assertThrows(IOException.class, log::read);
        assertEquals(1, rsm.fetches.get());
        assertEventually(() -> figure("Failures") == 1, "the failure is counted");
    }

    @Test
    void readsAndChangesThatAStoppingServerCancelsAreRepeated() throws Exception {
        rlmm.cancellations.set(1);
        assertEquals(Optional.of(9L), metadata.highestOffsetForEpoch(Samples.PARTITION, 0));

        rlmm.cancellations.set(1);
        metadata.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
            Samples.SEGMENT_ID, 1, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            7)).get();

        assertEquals(4, rlmm.calls.get());
    }

    private InputStream open() throws RemoteStorageException {
        return storage.fetchLogSegment(Samples.SEGMENT, 0, 1);
    }

    private static long figure(String name) {
        try {
            return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(
                new ObjectName(
                    "io.sediment.kafka:type=Calls,broker=7,service=RSM,call=FetchLogSegment"),
                name);
        } catch (JMException e) {
            throw new AssertionError(name, e);
        }
    }

    /** Loses some streams after their headers. */
    private static final class Rsm extends RemoteStorageManagerImplBase {
        private final AtomicInteger fetches = new AtomicInteger();
        private final AtomicInteger failures = new AtomicInteger();
        private volatile Supplier<RuntimeException> failure;
        private volatile boolean sendsFirst;

        void lose(int count, Status.Code code) {
            failures.set(count);
            failure = code.toStatus()::asRuntimeException;
        }

        @Override
        public void fetchLogSegment(
            FetchLogSegmentRequest request, StreamObserver<FetchLogSegmentResponse> answer
        ) {
            fetches.incrementAndGet();
            boolean fails = failures.getAndUpdate(left -> Math.max(left - 1, 0)) > 0;
            if (!fails || sendsFirst) {
                answer.onNext(FetchLogSegmentResponse.newBuilder()
                    .setData(ByteString.copyFrom(new byte[] {1}))
                    .build());
            }
            if (fails) {
                answer.onError(failure.get());
            } else {
                answer.onCompleted();
            }
        }
    }

    /** Cancels some calls. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final AtomicInteger calls = new AtomicInteger();
        private final AtomicInteger cancellations = new AtomicInteger();

        @Override
        public void getHighestOffsetForEpoch(
            GetHighestOffsetForEpochRequest request,
            StreamObserver<GetHighestOffsetForEpochResponse> answer
        ) {
            answerOrCancel(answer,
                GetHighestOffsetForEpochResponse.newBuilder().setHighestOffset(9).build());
        }

        @Override
        public void updateRemoteLogSegmentMetadata(
            UpdateRemoteLogSegmentMetadataRequest request,
            StreamObserver<UpdateRemoteLogSegmentMetadataResponse> answer
        ) {
            answerOrCancel(answer, UpdateRemoteLogSegmentMetadataResponse.getDefaultInstance());
        }

        private <T> void answerOrCancel(StreamObserver<T> answer, T message) {
            calls.incrementAndGet();
            if (cancellations.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
                answer.onError(Status.CANCELLED.asRuntimeException());
            } else {
                answer.onNext(message);
                answer.onCompleted();
            }
        }
    }
}
