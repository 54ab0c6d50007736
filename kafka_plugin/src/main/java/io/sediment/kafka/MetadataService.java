package io.sediment.kafka;

import io.grpc.StatusException;
import io.grpc.stub.StreamObserver;
import io.sediment.kafka.LeadershipNotices.Role;
import io.sediment.kafka.LookUpCache.Question;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesRequest;
import io.sediment.tieredstorage.v1.OnStopPartitionsRequest;
import io.sediment.tieredstorage.v1.PartitionLeadership;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerBlockingV2Stub;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerStub;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/** Calls RLMM for one broker, with deadlines, and maps failures to Kafka's exceptions. */
final class MetadataService implements AutoCloseable {
    private static final long FIRST_BACKOFF_MS = 500;
    private static final long MAX_BACKOFF_MS = 10_000;
    // Each task of each partition calls before each run, and the answer is the same for all.
    private static final long READINESS_NANOS = TimeUnit.SECONDS.toNanos(1);
    /**
     * Repeats a change, within its deadline, while RLMM is away, stops, or is full. All changes are
     * idempotent, and if one fails, Kafka copies the whole segment again.
     */
    private static final Map<String, ?> REPEAT_CHANGES = Map.of(
        "maxAttempts", 20.0,
        "initialBackoff", "0.5s",
        "maxBackoff", "3s",
        "backoffMultiplier", 2.0,
        "retryableStatusCodes", List.of("UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED"));
    static final Map<String, ?> REPEATS = Map.of("methodConfig", List.of(
        Map.of(
            "name", List.of(Map.of("service", RemoteLogMetadataManagerGrpc.SERVICE_NAME)),
            "retryPolicy", ServiceChannel.REPEAT_ELSEWHERE),
        Map.of(
            "name", List.of(
                change("AddRemoteLogSegmentMetadata"),
                change("UpdateRemoteLogSegmentMetadata"),
                change("PutRemotePartitionDeleteMetadata")),
            "retryPolicy", REPEAT_CHANGES)));

    private final ServiceChannel channel;
    private final Failures failures;
    private final int requestTimeoutMs;
    private final int brokerId;
    // By which an RLM knows whose the topics are.
    private final Optional<String> clusterId;
    private final LookUpCache cache;
    private final LookUps lookUps;
    private final LookUpWatch watch;
    private final LeadershipNotices notices;
    private final ChangeQueue changes = new ChangeQueue();
    private volatile Long readyAtNanos;

    MetadataService(MetadataManagerConfig config) {
        channel = new ServiceChannel("RLMM", config.target(), config, REPEATS);
        failures = new Failures(channel.toString());
        requestTimeoutMs = config.requestTimeoutMs();
        brokerId = config.brokerId();
        clusterId = config.clusterId();
        cache = new LookUpCache(
            TimeUnit.MILLISECONDS.toNanos(config.metadataMaxAgeMs()), System::nanoTime);
        lookUps = new LookUps(
            config.broker(), cache, requestTimeoutMs, System::nanoTime);
        watch = new LookUpWatch(
            request -> RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel.channel())
                .watchPartitions(request),
            limit -> notices().taken(limit), cache,
            System::nanoTime, LookUpWatch.REFUSED_BACKOFF_MS);
        notices = new LeadershipNotices(
            new LeadershipCalls(),
            FIRST_BACKOFF_MS, MAX_BACKOFF_MS, watch::partitionsChanged);
    }

    /** Makes a call with a blocking stub. */
    interface Read<T> {
        T answer(RemoteLogMetadataManagerBlockingV2Stub stub) throws StatusException;
    }

    /** Begins a call with an asynchronous stub. */
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
     * Makes a call and converts its answer.
     *
     * @param name the RPC, for messages
     * @throws RemoteStorageException if the call fails or its answer cannot be converted
     */
    <T, K> K read(String name, Read<T> read, Function<T, K> convert) throws RemoteStorageException {
        return failures.call(name, () -> read.answer(blockingStub(requestTimeoutMs)), convert);
    }

    /**
     * Answers a look-up, from memory if all changes up to 3 s ago are known.
     *
     * @param name the RPC, for messages
     * @throws RemoteStorageException if the call fails or its answer cannot be converted
     */
    <T> Optional<RemoteLogSegmentMetadata> lookUp(
        String name,
        Question question,
        Read<T> read,
        Function<T, Optional<RemoteLogSegmentMetadata>> convert
    ) throws RemoteStorageException {
        return lookUps.answer(question, timeoutMs ->
            failures.call(name, () -> read.answer(blockingStub(timeoutMs)), convert));
    }

    /** Returns IsReady's answer; true is kept for a second, and any failure is false. */
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
     * Begins a change after the ones before it; completes when it is committed, or with a
     * {@link RemoteStorageException}. Its deadline begins with its call.
     *
     * @param name the RPC, for messages
     * @param partition the changed partition: look-ups that begin after the change see it
     */
    <Q, T> CompletableFuture<Void> mutate(
        String name, TopicIdPartition partition, Change<Q, T> change, Q request
    ) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        changes.begin(() -> begin(name, partition, change, request, future));
        return future;
    }

    private <Q, T> void begin(
        String name,
        TopicIdPartition partition,
        Change<Q, T> change,
        Q request,
        CompletableFuture<Void> future
    ) {
        RemoteLogMetadataManagerStub stub = RemoteLogMetadataManagerGrpc.newStub(channel.channel())
            .withDeadlineAfter(requestTimeoutMs, TimeUnit.MILLISECONDS);
        change.begin(stub, request, new StreamObserver<>() {
            @Override
            public void onNext(T answer) {
                // Kafka does not need the outcome, which is whether the change was a repeat.
            }

            @Override
            public void onError(Throwable cause) {
                ended();
                future.completeExceptionally(failures.of(name, cause));
            }

            @Override
            public void onCompleted() {
                ended();
                future.complete(null);
            }

            private void ended() {
                changes.ended();
                // A failed change may have been committed all the same.
                cache.drop(partition);
            }
        });
    }

    /** Cancels all calls. Idempotent. */
    @Override
    public void close() {
        notices.close();
        watch.close();
        channel.close();
        lookUps.close();
    }

    private RemoteLogMetadataManagerBlockingV2Stub blockingStub(int timeoutMs) {
        return RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel.channel())
            .withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS);
    }

    private static Map<String, String> change(String method) {
        return Map.of("service", RemoteLogMetadataManagerGrpc.SERVICE_NAME, "method", method);
    }

    /** The calls of notices. No leader epoch is sent: Kafka's interface has none. */
    private final class LeadershipCalls implements LeadershipNotices.Sender {
        @Override
        public void onPartitionLeadershipChanges(Map<TopicIdPartition, Role> roles)
            throws StatusException {
            OnPartitionLeadershipChangesRequest.Builder request =
                OnPartitionLeadershipChangesRequest.newBuilder().setBrokerId(brokerId);
            clusterId.ifPresent(request::setClusterId);
            roles.forEach((partition, role) -> {
                PartitionLeadership leadership = PartitionLeadership.newBuilder()
                    .setTopicIdPartition(Conversions.toMessage(partition))
                    .build();
                switch (role) {
                    case LEADER -> request.addLeaders(leadership);
                    case FOLLOWER -> request.addFollowers(leadership);
                }
            });
            blockingStub(requestTimeoutMs).onPartitionLeadershipChanges(request.build());
        }

        @Override
        public void onStopPartitions(Set<TopicIdPartition> partitions) throws StatusException {
            OnStopPartitionsRequest.Builder request =
                OnStopPartitionsRequest.newBuilder().setBrokerId(brokerId);
            partitions.forEach(stopped -> request.addPartitions(Conversions.toMessage(stopped)));
            blockingStub(requestTimeoutMs).onStopPartitions(request.build());
        }
    }
}
