package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.AddRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.AddRemoteLogSegmentMetadataResponse;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataResponse;
import io.sediment.tieredstorage.v1.ListRemoteLogSegmentsRequest;
import io.sediment.tieredstorage.v1.ListRemoteLogSegmentsResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.RetentionOwner;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class SedimentRemoteLogMetadataManagerTest {
    private final Rlmm rlmm = new Rlmm();
    private LocalServer server;
    private SedimentRemoteLogMetadataManager manager;

    @BeforeEach
    void start() {
        server = new LocalServer(rlmm);
        manager = manager(30_000);
    }

    @AfterEach
    void stop() {
        manager.close();
        server.close();
    }

    @Test
    void changeSaysWhichBrokerMakesIt() throws Exception {
        manager.addRemoteLogSegmentMetadata(Samples.SEGMENT).get();

        AddRemoteLogSegmentMetadataRequest request = rlmm.adds.get(0);
        assertEquals(Conversions.toMessage(Samples.SEGMENT), request.getMetadata());
        assertEquals("broker 7", request.getContext().getReason());
        assertEquals(
            RetentionOwner.RETENTION_OWNER_BROKER, request.getContext().getRetentionOwner());
    }

    @Test
    void changeIsRepeatedWhileTheServiceCannotServe() throws Exception {
        rlmm.refusals.set(2);

        manager.addRemoteLogSegmentMetadata(Samples.SEGMENT).get();

        assertEquals(3, rlmm.adds.size());
    }

    @Test
    void changeOutlivesARestartOfTheService() throws Exception {
        manager.addRemoteLogSegmentMetadata(Samples.SEGMENT).get();
        server.stop();

        CompletableFuture<Void> change = manager.addRemoteLogSegmentMetadata(Samples.SEGMENT);
        assertThrows(RetriableRemoteStorageException.class,
            () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));
        assertFalse(change.isDone());
        server.startAgain();

        change.get();
        assertEquals(2, rlmm.adds.size());
    }

    @Test
    void changeIsGivenUpAtItsDeadline() {
        manager.close();
        manager = manager(300);
        server.stop();

        ExecutionException failure = assertThrows(ExecutionException.class,
            () -> manager.addRemoteLogSegmentMetadata(Samples.SEGMENT).get());

        assertEquals(RetriableRemoteStorageException.class, failure.getCause().getClass());
        server.startAgain();
    }

    @Test
    void refusedChangeCompletesWithKafkasException() {
        rlmm.failure =
            LocalServer.refusal(Status.Code.FAILED_PRECONDITION, "INVALID_STATE_TRANSITION");

        ExecutionException failure = assertThrows(ExecutionException.class,
            () -> manager.addRemoteLogSegmentMetadata(Samples.SEGMENT).get());

        assertEquals(RemoteStorageException.class, failure.getCause().getClass());
        assertEquals(1, rlmm.adds.size());
    }

    @Test
    void statesThatAChangeCannotHaveAreRefusedAtOnce() {
        RemoteLogSegmentMetadata finished = Samples.segment(
            Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, false);
        RemoteLogSegmentMetadataUpdate started = new RemoteLogSegmentMetadataUpdate(
            Samples.SEGMENT_ID, 1, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_STARTED, 7);

        assertThrows(IllegalArgumentException.class,
            () -> manager.addRemoteLogSegmentMetadata(finished));
        assertThrows(IllegalArgumentException.class,
            () -> manager.updateRemoteLogSegmentMetadata(started));
    }

    @Test
    void whatIsAbsentInAnAnswerIsEmpty() throws Exception {
        assertEquals(
            Optional.empty(), manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 150));

        rlmm.found = Samples.SEGMENT;
        assertEquals(Optional.of(Samples.SEGMENT),
            manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 150));
    }

    @Test
    void answerThatCannotBeReadIsAPermanentFailure() {
        rlmm.found = Samples.SEGMENT;
        rlmm.foundState = 99;

        RemoteStorageException failure = assertThrows(RemoteStorageException.class,
            () -> manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 150));

        assertEquals(RemoteStorageException.class, failure.getClass());
    }

    @Test
    void pagesAreFetchedWhenTheyAreNeeded() throws Exception {
        rlmm.pages = List.of(2, 0, 1);

        Iterator<RemoteLogSegmentMetadata> segments =
            manager.listRemoteLogSegments(Samples.PARTITION, 2);
        assertEquals(List.of(""), rlmm.pageTokens);
        segments.next();
        segments.next();
        assertEquals(List.of(""), rlmm.pageTokens);
        segments.next();

        assertFalse(segments.hasNext());
        assertThrows(NoSuchElementException.class, segments::next);
        assertEquals(List.of("", "1", "2"), rlmm.pageTokens);
    }

    @Test
    void unknownPartitionIsThrownByTheListItself() {
        rlmm.failure = LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND");

        assertThrows(RemoteResourceNotFoundException.class,
            () -> manager.listRemoteLogSegments(Samples.PARTITION));
    }

    @Test
    void laterPageThatIsAwayIsRetriableToKafka() throws Exception {
        rlmm.pages = List.of(1, 1);
        Iterator<RemoteLogSegmentMetadata> segments =
            manager.listRemoteLogSegments(Samples.PARTITION);
        segments.next();

        rlmm.failure = Status.UNAVAILABLE.asRuntimeException();
        assertThrows(RetriableException.class, segments::hasNext);

        rlmm.failure = LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND");
        KafkaException permanent = assertThrows(KafkaException.class, segments::next);
        assertFalse(permanent instanceof RetriableException);
    }

    @Test
    void nullsAreRefused() {
        assertThrows(NullPointerException.class, () -> manager.addRemoteLogSegmentMetadata(null));
        assertThrows(NullPointerException.class,
            () -> manager.updateRemoteLogSegmentMetadata(null));
        assertThrows(NullPointerException.class, () -> manager.listRemoteLogSegments(null));
        assertThrows(NullPointerException.class, () -> manager.isReady(null));
    }

    @Test
    void serviceThatIsAwayIsToldOfOnceAndItsReturnOnce() throws Exception {
        List<String> lines = LogLines.during(() -> {
            rlmm.failure = Status.UNAVAILABLE.withDescription("gone fishing").asRuntimeException();
            for (int i = 0; i < 3; i++) {
                assertThrows(RetriableRemoteStorageException.class,
                    () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));
            }
            rlmm.failure = null;
            for (int i = 0; i < 3; i++) {
                manager.highestOffsetForEpoch(Samples.PARTITION, 0);
            }
        });

        assertEquals(2, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("WARN"), lines::toString);
        assertTrue(lines.get(0).contains("gone fishing"), lines::toString);
        assertTrue(lines.get(1).contains("INFO"), lines::toString);
        assertTrue(lines.stream().allMatch(line -> line.contains(server.endpoint())));
    }

    @Test
    void refusalOfTheBrokerIsLoggedOnceAMinute() throws Exception {
        rlmm.failure = LocalServer.refusal(Status.Code.PERMISSION_DENIED, "PERMISSION_DENIED");

        List<String> lines = LogLines.during(() -> {
            for (int i = 0; i < 3; i++) {
                assertThrows(RemoteStorageException.class,
                    () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));
            }
        });

        assertEquals(1, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("WARN"), lines::toString);
        assertTrue(lines.get(0).contains("refuses the broker"), lines::toString);
        assertTrue(lines.get(0).contains("said the server"), lines::toString);
    }

    @Test
    void refusalOfACallIsNoAbsence() throws Exception {
        rlmm.failure = LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND");

        List<String> lines = LogLines.during(() ->
            assertThrows(RemoteResourceNotFoundException.class,
                () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0)));

        assertEquals(List.of(), lines);
    }

    @Test
    void closingTwiceOrUnconfiguredDoesNothing() {
        manager.close();
        manager.close();
        new SedimentRemoteLogMetadataManager().close();
        assertEventually(() -> Thread.getAllStackTraces().keySet().stream()
            .noneMatch(thread -> thread.getName().equals("sediment-leadership-notices")),
            "the thread of notices ends");
    }

    private SedimentRemoteLogMetadataManager manager(int requestTimeoutMs) {
        SedimentRemoteLogMetadataManager made = new SedimentRemoteLogMetadataManager();
        made.configure(server.settings("request.timeout.ms", requestTimeoutMs, "node.id", 7));
        return made;
    }

    /** What the tests tell the server to do, and what it saw. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final List<AddRemoteLogSegmentMetadataRequest> adds = new CopyOnWriteArrayList<>();
        private final List<String> pageTokens = new CopyOnWriteArrayList<>();
        private final AtomicInteger refusals = new AtomicInteger();
        private volatile RuntimeException failure;
        private volatile RemoteLogSegmentMetadata found;
        private volatile int foundState = 1;
        private volatile List<Integer> pages = List.of();

        @Override
        public void addRemoteLogSegmentMetadata(
            AddRemoteLogSegmentMetadataRequest request,
            StreamObserver<AddRemoteLogSegmentMetadataResponse> answer
        ) {
            adds.add(request);
            if (refusals.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
                answer.onError(
                    LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"));
            } else {
                answer(answer, AddRemoteLogSegmentMetadataResponse.getDefaultInstance());
            }
        }

        @Override
        public void getRemoteLogSegmentMetadata(
            GetRemoteLogSegmentMetadataRequest request,
            StreamObserver<GetRemoteLogSegmentMetadataResponse> answer
        ) {
            var message = GetRemoteLogSegmentMetadataResponse.newBuilder();
            if (found != null) {
                message.setMetadata(
                    Conversions.toMessage(found).toBuilder().setStateValue(foundState));
            }
            answer(answer, message.build());
        }

        @Override
        public void getHighestOffsetForEpoch(
            GetHighestOffsetForEpochRequest request,
            StreamObserver<GetHighestOffsetForEpochResponse> answer
        ) {
            answer(answer, GetHighestOffsetForEpochResponse.getDefaultInstance());
        }

        @Override
        public void listRemoteLogSegments(
            ListRemoteLogSegmentsRequest request,
            StreamObserver<ListRemoteLogSegmentsResponse> answer
        ) {
            pageTokens.add(request.getPageToken());
            String token = request.getPageToken();
            int page = token.isEmpty() ? 0 : Integer.parseInt(token);
            var message = ListRemoteLogSegmentsResponse.newBuilder();
            if (page < pages.size()) {
                for (int i = 0; i < pages.get(page); i++) {
                    message.addSegments(Conversions.toMessage(Samples.SEGMENT));
                }
            }
            if (page + 1 < pages.size()) {
                message.setNextPageToken(String.valueOf(page + 1));
            }
            answer(answer, message.build());
        }

        private <T> void answer(StreamObserver<T> answer, T message) {
            if (failure != null) {
                answer.onError(failure);
            } else {
                answer.onNext(message);
                answer.onCompleted();
            }
        }
    }
}
