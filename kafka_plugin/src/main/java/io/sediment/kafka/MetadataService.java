package io.sediment.kafka;

import io.grpc.StatusException;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerBlockingV2Stub;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerStub;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/** Calls of RLMM as one broker makes them: each has a deadline, and its failure is Kafka's. */
final class MetadataService implements AutoCloseable {
    private static final long FIRST_BACKOFF_MS = 500;
    private static final long MAX_BACKOFF_MS = 10_000;
    // Each task of each partition asks before each run, and the answer is the same for all.
    private static final long READINESS_NANOS = TimeUnit.SECONDS.toNanos(1);
    /**
     * Changes are repeated while RLMM is away or full: all are idempotent, and Kafka copies a whole
     * segment again if it cannot say that the last copy finished. The call's deadline ends it.
     */
    private static final Map<String, ?> REPEAT_CHANGES = Map.of("methodConfig", List.of(Map.of(
        "name", List.of(
            change("AddRemoteLogSegmentMetadata"),
            change("UpdateRemoteLogSegmentMetadata"),
            change("PutRemotePartitionDeleteMetadata")),
        "retryPolicy", Map.of(
            "maxAttempts", 20.0,
            "initialBackoff", "0.5s",
            "maxBackoff", "3s",
            "backoffMultiplier", 2.0,
            "retryableStatusCodes", List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED")))));

    private final ServiceChannel channel;
    private final Failures failures;
    private final UnaryCalls calls;
    private final int requestTimeoutMs;
    private final int brokerId;
    private final LeadershipNotices notices;
    private final ChangeQueue changes = new ChangeQueue();
    private volatile Long readyAtNanos;

    MetadataService(MetadataManagerConfig config) {
        channel = new ServiceChannel("RLMM", config, REPEAT_CHANGES);
        failures = new Failures(channel.toString());
        calls = new UnaryCalls(failures);
        requestTimeoutMs = config.requestTimeoutMs();
        brokerId = config.brokerId();
        notices = new LeadershipNotices(
            new LeadershipCalls(this::blockingStub, brokerId), FIRST_BACKOFF_MS, MAX_BACKOFF_MS);
    }

    /** A call of a blocking stub. */
    interface Read<T> {
        T answer(RemoteLogMetadataManagerBlockingV2Stub stub) throws StatusException;
    }

    /** A call of an asynchronous stub. */
    interface Change<Q, T> {
        void begin(RemoteLogMetadataManagerStub stub, Q request, StreamObserver<T> answer);
    }

    int brokerId() {
        return brokerId;
    }

    LeadershipNotices notices() {
        return notices;
    }

    /**
     * What {@code convert} makes of the answer.
     *
     * @param name the RPC, for messages
     * @throws RemoteStorageException if the call fails or its answer cannot be converted
     */
    <T, K> K read(String name, Read<T> read, Function<T, K> convert) throws RemoteStorageException {
        return calls.make(name, () -> read.answer(blockingStub()), convert);
    }

    /** Return IsReady's answer, a yes for up to a second; any failure is a no. */
    boolean isReady(TopicIdPartition partition) {
        Long lastNanos = readyAtNanos;
        long nowNanos = System.nanoTime();
        if (lastNanos != null && nowNanos - lastNanos < READINESS_NANOS) {
            return true;
        }
        IsReadyRequest request = IsReadyRequest.newBuilder()
            .setTopicIdPartition(Conversions.toMessage(partition))
            .build();
        boolean ready;
        try {
            ready = read("IsReady", stub -> stub.isReady(request), IsReadyResponse::getReady);
        } catch (RemoteStorageException e) {
            ready = false;
        }
        readyAtNanos = ready ? nowNanos : null;
        return ready;
    }

    /**
     * Begins a change, in its turn; completes when it is committed, or with a
     * {@link RemoteStorageException}. Its deadline counts from when its turn comes.
     *
     * @param name the RPC, for messages
     */
    <Q, T> CompletableFuture<Void> mutate(String name, Change<Q, T> change, Q request) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        changes.begin(() -> begin(name, change, request, future));
        return future;
    }

    private <Q, T> void begin(
        String name, Change<Q, T> change, Q request, CompletableFuture<Void> future
    ) {
        RemoteLogMetadataManagerStub stub = RemoteLogMetadataManagerGrpc.newStub(channel.channel())
            .withDeadlineAfter(requestTimeoutMs, TimeUnit.MILLISECONDS);
        change.begin(stub, request, new StreamObserver<>() {
            @Override
            public void onNext(T answer) {
                // Its outcome, whether it was a repeat, is of no interest to Kafka.
            }

            @Override
            public void onError(Throwable cause) {
                changes.ended();
                future.completeExceptionally(failures.of(name, cause));
            }

            @Override
            public void onCompleted() {
                changes.ended();
                future.complete(null);
            }
        });
    }

    /** Ends what is under way. Idempotent. */
    @Override
    public void close() {
        notices.close();
        channel.close();
    }

    private RemoteLogMetadataManagerBlockingV2Stub blockingStub() {
        return RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel.channel())
            .withDeadlineAfter(requestTimeoutMs, TimeUnit.MILLISECONDS);
    }

    private static Map<String, String> change(String method) {
        return Map.of("service", RemoteLogMetadataManagerGrpc.SERVICE_NAME, "method", method);
    }
}
