package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.BlockingClientCall;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.PartitionUpdate;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.WatchPartitionsRequest;
import io.sediment.tieredstorage.v1.WatchPartitionsResponse;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class LookUpWatchTest {
    private static final long MAX_AGE_NANOS = TimeUnit.MINUTES.toNanos(5);
    private final AtomicLong nowNanos = new AtomicLong(Long.MAX_VALUE - 1_000);
    private final AtomicInteger missingThreads = new AtomicInteger();
    private final Rlmm rlmm = new Rlmm();
    private final LocalServer server = new LocalServer(rlmm);
    private final ManagedChannel channel =
        NettyChannelBuilder.forTarget(server.endpoint()).usePlaintext().build();
    private final LookUpCache cache = new LookUpCache(MAX_AGE_NANOS, nowNanos::get);
    private final LookUpWatch watch = new LookUpWatch(
        this::open,
        limit -> List.of(Samples.PARTITION), cache, nowNanos::get, 2);

    @AfterEach
    void stop() {
        watch.close();
        channel.shutdownNow();
        server.close();
    }

    @Test
    void watchThatIsSilentForTenSecondsIsReplaced() {
        begin();
        nowNanos.addAndGet(LookUpWatch.STALLED_NANOS + 1);

        assertEventually(() -> rlmm.watches.size() == 2, "watched again");
    }

    @Test
    void watchThatIsNotCompleteForTenSecondsIsReplacedInSpiteOfItsHeartbeats() {
        begin();
        nowNanos.addAndGet(LookUpWatch.STALLED_NANOS);
        heartbeat(6, 1_000);
        nowNanos.addAndGet(LookUpWatch.STALLED_NANOS);
        heartbeat(7, 1_000);
        assertEquals(1, rlmm.watches.size());

        nowNanos.addAndGet(1);
        heartbeat(8, 1_000);

        assertEventually(() -> rlmm.watches.size() == 2, "watched again");
        assertEquals(8, rlmm.watches.get(1).getPartitions(0).getAfterRevision());
        assertEquals(8_000, rlmm.watches.get(1).getPartitions(0).getAfterChangedAtUs());
    }

    @Test
    void refusalIsLoggedOnceAndSoIsItsEnd() throws Exception {
        rlmm.refusals.set(3);
        List<String> lines = LogLines.during(this::begin);

        assertEquals(0, rlmm.refusals.get());
        assertEquals(2, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("RLMM refuses to watch"), lines::toString);
        assertTrue(lines.get(1).contains("reports changes of the broker's partitions again"),
            lines::toString);
    }

    @Test
    void watchGoesOnAfterNoThreadCouldBeStarted() {
        missingThreads.set(1);
        begin();

        assertEquals(0, missingThreads.get());
    }

    private BlockingClientCall<?, WatchPartitionsResponse> open(WatchPartitionsRequest request) {
        if (missingThreads.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
            throw new OutOfMemoryError("unable to create native thread");
        }
        return RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel).watchPartitions(request);
    }

    /** Watches, and waits for the first message, of revision 5. */
    private void begin() {
        watch.partitionsChanged();
        assertEventually(() -> cache.isCurrent(), "the watch is live");
    }

    /** Sends a heartbeat with an update, by which the test sees that it was taken. */
    private void heartbeat(long revision, long completeThroughMs) {
        rlmm.send(revision, completeThroughMs);
        assertEventually(
            () -> cache.known(Samples.PARTITION).orElseThrow().revision() == revision, "taken");
    }

    /** Refuses some watches, and sends what the test wants in the others. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final List<WatchPartitionsRequest> watches = new CopyOnWriteArrayList<>();
        private final AtomicInteger refusals = new AtomicInteger();
        private volatile StreamObserver<WatchPartitionsResponse> watcher;

        void send(long revision, long completeThroughMs) {
            watcher.onNext(WatchPartitionsResponse.newBuilder()
                .addPartitions(PartitionUpdate.newBuilder().setRevision(revision)
                    .setChangedAtUs(1_000 * revision))
                .setCompleteThroughMs(completeThroughMs)
                .build());
        }

        @Override
        public void watchPartitions(
            WatchPartitionsRequest request, StreamObserver<WatchPartitionsResponse> answer
        ) {
            if (refusals.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
                answer.onError(
                    LocalServer.refusal(Status.Code.PERMISSION_DENIED, "PERMISSION_DENIED"));
                return;
            }
            watcher = answer;
            watches.add(request);
            if (watches.size() == 1) {
                send(5, 0);
            }
        }
    }
}
