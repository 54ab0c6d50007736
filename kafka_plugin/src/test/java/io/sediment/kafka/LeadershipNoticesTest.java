package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesRequest;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesResponse;
import io.sediment.tieredstorage.v1.OnStopPartitionsRequest;
import io.sediment.tieredstorage.v1.OnStopPartitionsResponse;
import io.sediment.tieredstorage.v1.PartitionLeadership;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

import org.apache.kafka.common.TopicIdPartition;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LeadershipNoticesTest {
    private static final TopicIdPartition LED = Samples.partition(0);
    private static final TopicIdPartition FOLLOWED = Samples.partition(1);
    private static final int MANY = 1_000_000;
    private final Rlmm rlmm = new Rlmm();
    private LocalServer server;
    private SedimentRemoteLogMetadataManager manager;

    @BeforeEach
    void start() {
        server = new LocalServer(rlmm);
        manager = new SedimentRemoteLogMetadataManager();
        manager.configure(server.settings("node.id", 7, "cluster.id", "of-brokers"));
    }

    @AfterEach
    void stop() {
        manager.close();
        server.close();
    }

    @Test
    void partitionIsReadyOnceItsNoticeWasTaken() {
        assertFalse(manager.isReady(LED));

        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of(FOLLOWED));

        assertReady(LED);
        assertReady(FOLLOWED);
        assertFalse(manager.isReady(Samples.partition(2)));
        OnPartitionLeadershipChangesRequest notice = rlmm.notices.get(0);
        assertEquals(List.of(LED), partitions(notice.getLeadersList().stream()));
        assertEquals(List.of(FOLLOWED), partitions(notice.getFollowersList().stream()));
        assertFalse(notice.getLeaders(0).hasLeaderEpoch());
        assertEquals(7, notice.getBrokerId());
        assertEquals("of-brokers", notice.getClusterId());
    }

    @Test
    void brokerThatDoesNotKnowItsClusterSendsNone() {
        try (var without = new SedimentRemoteLogMetadataManager()) {
            without.configure(server.settings("node.id", 7));
            without.onPartitionLeadershipChanges(Set.of(LED), Set.of());
            assertEventually(() -> !rlmm.notices.isEmpty(), "the notice");
        }
        assertFalse(rlmm.notices.get(0).hasClusterId());
    }

    @Test
    void noticeIsRepeatedUntilItIsTaken() {
        rlmm.refusals.set(MANY);

        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of());

        assertEventually(() -> rlmm.notices.size() >= 2, "the second notice");
        assertFalse(manager.isReady(LED));
        int refused = MANY - rlmm.refusals.getAndSet(0);
        assertReady(LED);
        assertEquals(refused + 1, rlmm.notices.size());
    }

    @Test
    void noticesGoOnAfterNoThreadCouldBeStarted() {
        AtomicInteger calls = new AtomicInteger();
        var sender = new LeadershipNotices.Sender() {
            @Override
            public void onPartitionLeadershipChanges(
                Map<TopicIdPartition, LeadershipNotices.Role> roles
            ) {
                if (calls.incrementAndGet() == 1) {
                    throw new OutOfMemoryError("unable to create native thread");
                }
            }

            @Override
            public void onStopPartitions(Set<TopicIdPartition> partitions) {
            }
        };
        try (var notices = new LeadershipNotices(sender, 1, 1, () -> { })) {
            notices.announce(Set.of(LED), Set.of());
            assertEventually(() -> notices.isTaken(LED), "the notice was sent again");
        }
        assertEquals(2, calls.get());
    }

    @Test
    void serviceThatIsAwayIsWaitedFor() {
        server.stop();

        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of());
        assertFalse(manager.isReady(LED));
        server.startAgain();

        assertReady(LED);
    }

    @Test
    void newRoleIsToldWhileThePartitionStaysReady() {
        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of());
        assertReady(LED);

        rlmm.refusals.set(1);
        manager.onPartitionLeadershipChanges(Set.of(), Set.of(LED));

        assertTrue(manager.isReady(LED));
        assertEventually(() -> rlmm.notices.size() == 3, "the new role");
        assertEquals(1, rlmm.notices.get(2).getFollowersCount());
    }

    @Test
    void stoppedPartitionIsNotReadyAndIsToldOnce() {
        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of(FOLLOWED));
        assertReady(LED);
        rlmm.refusesStops = true;

        manager.onStopPartitions(Set.of(LED));

        assertFalse(manager.isReady(LED));
        assertTrue(manager.isReady(FOLLOWED));
        // One call, which gRPC may repeat at other endpoints.
        assertEventually(() -> rlmm.stops.size() == 3, "RLMM hears of it");
        manager.onPartitionLeadershipChanges(Set.of(LED), Set.of());
        assertReady(LED);
        assertEquals(3, rlmm.stops.size());
    }

    @Test
    void partitionThatIsRefusedKeepsNoOtherWaiting() {
        rlmm.malformed = Conversions.toMessage(Samples.partition(5));
        Set<TopicIdPartition> partitions =
            IntStream.range(0, 20).mapToObj(Samples::partition).collect(Collectors.toSet());

        manager.onPartitionLeadershipChanges(partitions, Set.of());

        for (TopicIdPartition partition : partitions) {
            if (partition.partition() != 5) {
                assertReady(partition);
            }
        }
        assertFalse(manager.isReady(Samples.partition(5)));
        rlmm.malformed = null;
        assertReady(Samples.partition(5));
    }

    @Test
    void manyPartitionsAreToldInBatches() {
        int count = LeadershipNotices.BATCH_PARTITIONS + 1;

        manager.onPartitionLeadershipChanges(
            IntStream.range(0, count).mapToObj(Samples::partition).collect(Collectors.toSet()),
            Set.of());

        assertEventually(() -> rlmm.notices.stream()
            .mapToInt(OnPartitionLeadershipChangesRequest::getLeadersCount).sum() == count, "all");
        assertTrue(rlmm.notices.stream().allMatch(
            notice -> notice.getLeadersCount() <= LeadershipNotices.BATCH_PARTITIONS));
    }

    private void assertReady(TopicIdPartition partition) {
        assertEventually(() -> manager.isReady(partition), partition + " is ready");
    }

    private static List<TopicIdPartition> partitions(Stream<PartitionLeadership> notices) {
        return notices.map(notice -> Conversions.toKafka(notice.getTopicIdPartition())).toList();
    }

    /** What the tests tell the server to do, and what it saw. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final List<OnPartitionLeadershipChangesRequest> notices =
            new CopyOnWriteArrayList<>();
        private final List<OnStopPartitionsRequest> stops = new CopyOnWriteArrayList<>();
        private final AtomicInteger refusals = new AtomicInteger();
        private volatile boolean refusesStops;
        private volatile io.sediment.tieredstorage.v1.TopicIdPartition malformed;

        @Override
        public void onPartitionLeadershipChanges(
            OnPartitionLeadershipChangesRequest request,
            StreamObserver<OnPartitionLeadershipChangesResponse> answer
        ) {
            notices.add(request);
            if (refusals.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
                answer.onError(
                    LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"));
            } else if (request.getLeadersList().stream()
                .anyMatch(leader -> leader.getTopicIdPartition().equals(malformed))) {
                answer.onError(
                    LocalServer.refusal(Status.Code.INVALID_ARGUMENT, "INVALID_REQUEST"));
            } else {
                answer.onNext(OnPartitionLeadershipChangesResponse.getDefaultInstance());
                answer.onCompleted();
            }
        }

        @Override
        public void onStopPartitions(
            OnStopPartitionsRequest request, StreamObserver<OnStopPartitionsResponse> answer
        ) {
            stops.add(request);
            if (refusesStops) {
                answer.onError(Status.UNAVAILABLE.asRuntimeException());
            } else {
                answer.onNext(OnStopPartitionsResponse.getDefaultInstance());
                answer.onCompleted();
            }
        }

        @Override
        public void isReady(IsReadyRequest request, StreamObserver<IsReadyResponse> answer) {
            answer.onNext(IsReadyResponse.newBuilder().setReady(true).build());
            answer.onCompleted();
        }
    }
}
