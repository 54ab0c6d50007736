package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.ChangedSegment;
import io.sediment.tieredstorage.v1.GetNextSegmentWithTxnIndexRequest;
import io.sediment.tieredstorage.v1.GetNextSegmentWithTxnIndexResponse;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataResponse;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesRequest;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesResponse;
import io.sediment.tieredstorage.v1.PartitionUpdate;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.UpdateRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.UpdateRemoteLogSegmentMetadataResponse;
import io.sediment.tieredstorage.v1.WatchPartitionsRequest;
import io.sediment.tieredstorage.v1.WatchPartitionsResponse;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import javax.management.JMException;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LookUpsTest {
    /** Offsets 100 to 199: epoch 0 from 100 on, epoch 2 from 150 on. */
    private static final RemoteLogSegmentMetadata SEGMENT = Samples.segment(
        Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, false);
    private final Rlmm rlmm = new Rlmm();
    private LocalServer server;
    private SedimentRemoteLogMetadataManager manager;

    @BeforeEach
    void start() {
        server = new LocalServer(rlmm);
        manager = manager();
    }

    @AfterEach
    void stop() {
        manager.close();
        server.close();
    }

    @Test
    void offsetsOfASegmentAreAskedForOnceWhileTheWatchIsLive() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);

        for (long offset : List.of(100L, 121L, 149L)) {
            assertEquals(Optional.of(SEGMENT),
                manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, offset));
        }

        assertEquals(1, rlmm.lookUps.get());
        assertEquals(3L, figure("Hits"));
        assertEquals(1L, figure("Misses"));
        assertEquals(1L, figure("Current"));
    }

    @Test
    void offsetsOfAnotherEpochOrBeyondTheSegmentAreAskedFor() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);

        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 150);
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 99);
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 2, 199);
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 2, 200);

        assertEquals(5, rlmm.lookUps.get());
    }

    @Test
    void emptyAnswerIsKeptForTransactionIndexesOnly() throws Exception {
        watch();
        rlmm.found = Optional.empty();

        for (int i = 0; i < 3; i++) {
            assertEquals(Optional.empty(), next(200));
            assertEquals(Optional.empty(),
                manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120));
        }

        assertEquals(1, rlmm.nexts.get());
        assertEquals(3, rlmm.lookUps.get());
    }

    @Test
    void changeThatTheWatchReportsIsSeen() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);
        next(200);
        rlmm.found = Optional.empty();

        rlmm.say(deleted(6));

        assertEventually(() -> lookUp(120).isEmpty() && next(200).isEmpty(), "the deletion");
    }

    @Test
    void changeOfThisBrokerIsSeenAtOnce() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);
        next(200);
        rlmm.found = Optional.empty();

        manager.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
            Samples.SEGMENT_ID, 1, Optional.empty(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            7)).get();

        assertEquals(Optional.empty(), lookUp(120));
        assertEquals(Optional.empty(), next(200));
    }

    @Test
    void watchThatIsCutGoesOnFromTheKnownRevision() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);

        rlmm.cut();

        assertEventually(() -> rlmm.watches.size() == 2, "watched again");
        assertFalse(rlmm.watches.get(0).getPartitions(0).hasAfterRevision());
        assertEquals(5, rlmm.watches.get(1).getPartitions(0).getAfterRevision());
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);
        assertEquals(1, rlmm.lookUps.get());
    }

    @Test
    void otherPartitionsAreWatchedInTheirTurn() throws Exception {
        watch();

        manager.onPartitionLeadershipChanges(Set.of(), Set.of(Samples.partition(9)));
        assertEventually(() -> manager.isReady(Samples.partition(9)), "it is taken");
        rlmm.say();

        assertEventually(() -> rlmm.watches.size() == 2, "watched again");
        assertEquals(2, rlmm.watches.get(1).getPartitionsCount());
    }

    @Test
    void readsGoOnWhileRlmmIsAway() throws Exception {
        watch();
        manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, 120);
        server.stop();

        assertEquals(Optional.of(SEGMENT), lookUp(121));
        assertThrows(RetriableRemoteStorageException.class,
            () -> manager.listRemoteLogSegments(Samples.PARTITION));

        server.startAgain();
    }

    @Test
    void refusedWatchLetsEachLookUpCallRlmm() throws Exception {
        rlmm.hasWatches = false;
        LogLines.during(lines -> {
            lead();
            assertEventually(() -> lines.get().size() == 1, "the watch is refused");
            assertEquals(Optional.of(SEGMENT), lookUp(120));
            assertEquals(Optional.of(SEGMENT), lookUp(120));
            manager.close();

            assertEquals(2, rlmm.lookUps.get());
            assertEquals(1, lines.get().size(), lines.get()::toString);
            assertTrue(lines.get().get(0).contains("calling it for each look-up"));
        });
    }

    /** Leads the partition and waits for the watch's first message, of revision 5. */
    private void watch() {
        lead();
        assertEventually(() -> figure("Current") == 1L, "the watch is live");
    }

    private void lead() {
        manager.onPartitionLeadershipChanges(Set.of(Samples.PARTITION), Set.of());
        assertEventually(() -> manager.isReady(Samples.PARTITION), "it is taken");
    }

    private Optional<RemoteLogSegmentMetadata> lookUp(long offset) {
        try {
            return manager.remoteLogSegmentMetadata(Samples.PARTITION, 0, offset);
        } catch (RemoteStorageException e) {
            throw new AssertionError(e);
        }
    }

    private Optional<RemoteLogSegmentMetadata> next(long offset) {
        try {
            return manager.nextSegmentWithTxnIndex(Samples.PARTITION, 0, offset);
        } catch (RemoteStorageException e) {
            throw new AssertionError(e);
        }
    }

    private static long figure(String name) {
        try {
            return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(
                new ObjectName("io.sediment.kafka:type=LookUps,broker=7"), name);
        } catch (JMException e) {
            throw new AssertionError(e);
        }
    }

    private SedimentRemoteLogMetadataManager manager() {
        SedimentRemoteLogMetadataManager made = new SedimentRemoteLogMetadataManager();
        made.configure(server.settings("node.id", 7));
        return made;
    }

    private static PartitionUpdate deleted(long revision) {
        return PartitionUpdate.newBuilder()
            .setRevision(revision)
            .addSegments(ChangedSegment.newBuilder()
                .setSegmentId(Samples.SEGMENT_ID.id().toString())
                .setState(Conversions.toMessage(RemoteLogSegmentState.DELETE_SEGMENT_STARTED)))
            .build();
    }

    /** What the tests tell the server to do, and what it saw. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final List<WatchPartitionsRequest> watches = new CopyOnWriteArrayList<>();
        private final AtomicInteger lookUps = new AtomicInteger();
        private final AtomicInteger nexts = new AtomicInteger();
        private volatile boolean hasWatches = true;
        private volatile Optional<RemoteLogSegmentMetadata> found = Optional.of(SEGMENT);
        private volatile StreamObserver<WatchPartitionsResponse> watcher;

        void say(PartitionUpdate... updates) {
            watcher.onNext(WatchPartitionsResponse.newBuilder()
                .addAllPartitions(List.of(updates))
                .build());
        }

        void cut() {
            watcher.onError(
                LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"));
        }

        @Override
        public void watchPartitions(
            WatchPartitionsRequest request, StreamObserver<WatchPartitionsResponse> answer
        ) {
            if (!hasWatches) {
                answer.onError(LocalServer.refusal(Status.Code.FAILED_PRECONDITION, "REFUSED"));
                return;
            }
            watcher = answer;
            say(PartitionUpdate.newBuilder().setRevision(5).build());
            watches.add(request);
        }

        @Override
        public void getRemoteLogSegmentMetadata(
            GetRemoteLogSegmentMetadataRequest request,
            StreamObserver<GetRemoteLogSegmentMetadataResponse> answer
        ) {
            lookUps.incrementAndGet();
            var message = GetRemoteLogSegmentMetadataResponse.newBuilder();
            found.map(Conversions::toMessage).ifPresent(message::setMetadata);
            answer(answer, message.build());
        }

        @Override
        public void getNextSegmentWithTxnIndex(
            GetNextSegmentWithTxnIndexRequest request,
            StreamObserver<GetNextSegmentWithTxnIndexResponse> answer
        ) {
            nexts.incrementAndGet();
            var message = GetNextSegmentWithTxnIndexResponse.newBuilder();
            found.map(Conversions::toMessage).ifPresent(message::setMetadata);
            answer(answer, message.build());
        }

        @Override
        public void updateRemoteLogSegmentMetadata(
            UpdateRemoteLogSegmentMetadataRequest request,
            StreamObserver<UpdateRemoteLogSegmentMetadataResponse> answer
        ) {
            answer(answer, UpdateRemoteLogSegmentMetadataResponse.getDefaultInstance());
        }

        @Override
        public void onPartitionLeadershipChanges(
            OnPartitionLeadershipChangesRequest request,
            StreamObserver<OnPartitionLeadershipChangesResponse> answer
        ) {
            answer(answer, OnPartitionLeadershipChangesResponse.getDefaultInstance());
        }

        @Override
        public void isReady(IsReadyRequest request, StreamObserver<IsReadyResponse> answer) {
            answer(answer, IsReadyResponse.newBuilder().setReady(true).build());
        }

        private static <T> void answer(StreamObserver<T> answer, T message) {
            answer.onNext(message);
            answer.onCompleted();
        }
    }
}
