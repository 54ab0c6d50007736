package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.sediment.kafka.LookUpCache.Kind;
import io.sediment.kafka.LookUpCache.Question;
import io.sediment.tieredstorage.v1.PartitionUpdate;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LookUpCacheTest {
    private static final long MAX_AGE_NANOS = TimeUnit.MINUTES.toNanos(5);
    private static final Optional<RemoteLogSegmentMetadata> SEGMENT = Optional.of(
        Samples.segment(Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, false));
    private static final Question QUESTION = segment(Samples.PARTITION, 120);
    private final AtomicLong nowNanos = new AtomicLong(Long.MAX_VALUE - 1_000);
    private final LookUpCache cache = new LookUpCache(MAX_AGE_NANOS, nowNanos::get);
    private final LookUps lookUps = new LookUps("7", cache, 30_000, nowNanos::get);

    @BeforeEach
    void watch() {
        cache.watch(List.of(Samples.PARTITION));
        cache.update(Samples.PARTITION, revision(5).build());
        cache.completeThrough(nowNanos.get());
    }

    @AfterEach
    void close() {
        lookUps.close();
    }

    @Test
    void answerIsUsedUntilTheWatchHasSaidNothingForThreeSeconds() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS);
        assertEquals(SEGMENT, answer(Optional.empty()));

        nowNanos.addAndGet(1);

        assertEquals(Optional.empty(), answer(Optional.empty()));
    }

    @Test
    void laterMessageFromAnEarlierTimeTakesNothingBack() {
        cache.completeThrough(nowNanos.get() - TimeUnit.HOURS.toNanos(1));

        assertTrue(cache.isCurrent());
    }

    @Test
    void answerIsUsedWhileRlmmIsAwayUntilItIsTooOld() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(MAX_AGE_NANOS);
        assertEquals(SEGMENT, lookUps.answer(QUESTION, LookUpCacheTest::away));
        assertEquals(1, lookUps.figures.get("ServedWhileAway"));

        nowNanos.addAndGet(1);

        assertThrows(RetriableRemoteStorageException.class,
            () -> lookUps.answer(QUESTION, timeoutMs -> {
                throw failure(Status.UNAVAILABLE.asException());
            }));
    }

    @Test
    void rlmmIsAwayIfItOrItsDatabaseCannotBeReachedInTime() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS);
        for (StatusException cause : List.of(
            Status.UNAVAILABLE.asException(),
            Status.DEADLINE_EXCEEDED.asException(),
            refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"))) {
            nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(2));

            assertEquals(SEGMENT, lookUps.answer(QUESTION, timeoutMs -> {
                throw failure(cause);
            }), cause::toString);
        }
        assertEquals(3, lookUps.figures.get("ServedWhileAway"));
    }

    @Test
    void rlmmThatIsBusyOrACallThatIsCancelledIsNotAway() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS + 1);
        for (StatusException cause : List.of(
            Status.CANCELLED.asException(),
            refusal(Status.Code.RESOURCE_EXHAUSTED, "THROTTLED"),
            refusal(Status.Code.DEADLINE_EXCEEDED, "RETRIABLE_REMOTE_STORAGE_ERROR"))) {
            assertThrows(RetriableRemoteStorageException.class,
                () -> lookUps.answer(QUESTION, timeoutMs -> {
                    throw failure(cause);
                }), cause::toString);
        }
        assertEquals(Optional.empty(), answer(Optional.empty()));
        assertEquals(0, lookUps.figures.get("ServedWhileAway"));
    }

    @Test
    void interruptedThreadDoesNotMakeRlmmAway() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS + 1);

        assertThrows(RetriableRemoteStorageException.class,
            () -> lookUps.answer(QUESTION, timeoutMs -> {
                Thread.currentThread().interrupt();
                throw failure(Status.UNAVAILABLE.asException());
            }));

        assertTrue(Thread.interrupted());
    }

    @Test
    void answerThatIsDroppedDuringTheFailedCallIsNotUsed() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS + 1);

        assertThrows(RetriableRemoteStorageException.class,
            () -> lookUps.answer(QUESTION, timeoutMs -> {
                cache.drop(Samples.PARTITION);
                throw failure(Status.UNAVAILABLE.asException());
            }));
    }

    @Test
    void segmentWithManyLeaderEpochsIsNotHeld() {
        long version = cache.version(Samples.PARTITION);
        cache.hold(QUESTION, withEpochs(LookUpCache.MAX_EPOCHS + 1), version);
        assertTrue(cache.find(QUESTION).isEmpty());

        cache.hold(QUESTION, withEpochs(LookUpCache.MAX_EPOCHS), version);
        assertFalse(cache.find(QUESTION).isEmpty());
    }

    @Test
    void rlmmThatIsAwayIsAskedOnceASecond() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS + 1);
        lookUps.answer(QUESTION, LookUpCacheTest::away);

        nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(1) - 1);
        assertEquals(SEGMENT, answer(Optional.empty()));
        nowNanos.addAndGet(1);

        assertEquals(Optional.empty(), answer(Optional.empty()));
        assertEquals(2, lookUps.figures.get("ServedWhileAway"));
    }

    @Test
    void rlmmThatRefusesIsNotAway() throws Exception {
        answer(SEGMENT);
        nowNanos.addAndGet(LookUpCache.CURRENT_NANOS + 1);

        assertThrows(RemoteStorageException.class, () -> lookUps.answer(QUESTION, timeoutMs -> {
            throw new RemoteStorageException("PERMISSION_DENIED");
        }));
    }

    @Test
    void answerFromBeforeAChangeIsNotHeld() {
        long version = cache.version(Samples.PARTITION);
        cache.update(Samples.PARTITION, revision(6).setEverything(true).build());

        cache.hold(QUESTION, SEGMENT, version);

        assertTrue(cache.find(QUESTION).isEmpty());
    }

    @Test
    void answerFromBeforeThePartitionWasWatchedAgainIsNotHeld() {
        long version = cache.version(Samples.PARTITION);
        cache.watch(List.of());
        cache.watch(List.of(Samples.PARTITION));
        cache.update(Samples.PARTITION, revision(5).build());

        cache.hold(QUESTION, SEGMENT, version);

        assertTrue(cache.find(QUESTION).isEmpty());
    }

    @Test
    void revisionWithoutChangesOfSegmentsKeepsTheAnswers() throws Exception {
        answer(SEGMENT);

        cache.update(Samples.PARTITION, revision(6).build());

        assertEquals(SEGMENT, answer(Optional.empty()));
        assertEquals(6, cache.known(Samples.PARTITION).orElseThrow().revision());
    }

    @Test
    void partitionThatIsNoLongerWatchedIsForgotten() throws Exception {
        answer(SEGMENT);

        cache.watch(List.of(Samples.partition(9)));

        assertTrue(cache.find(QUESTION).isEmpty());
        assertTrue(cache.known(Samples.PARTITION).isEmpty());
    }

    @Test
    void answerOfAPartitionWithoutARevisionIsNotHeld() {
        TopicIdPartition other = Samples.partition(9);
        cache.watch(List.of(Samples.PARTITION, other));

        cache.hold(segment(other, 120), SEGMENT, cache.version(other));

        assertTrue(cache.find(segment(other, 120)).isEmpty());
    }

    @Test
    void leastUsedAnswersOfAPartitionAreEvicted() {
        long version = cache.version(Samples.PARTITION);
        for (long offset = 0; offset < 40; offset++) {
            cache.hold(next((int) offset, 0), Optional.empty(), version);
            assertFalse(cache.find(next(0, 0)).isEmpty());
        }

        assertEquals(32, LongStream.range(0, 40)
            .filter(epoch -> cache.find(next((int) epoch, 0)).isPresent()).count());
    }

    @Test
    void searchThatFindsNothingAnswersAllLaterOnesOfItsEpoch() throws Exception {
        long calls = searches(Optional.empty(), 100, 150, 199, 200, 1_000_000);

        assertEquals(1, calls);
        assertTrue(cache.find(next(0, 99)).isEmpty());
        assertTrue(cache.find(next(1, 100)).isEmpty());
    }

    @Test
    void searchThatFindsASegmentAnswersThoseUpToItsEnd() throws Exception {
        long calls = searches(withEpochs(1), 10, 100, 150, 199);

        assertEquals(1, calls);
        assertTrue(cache.find(next(0, 200)).isEmpty());
        assertEquals(1, searches(withEpochs(1), 9));
    }

    /** Searches from these offsets on; returns how many of the searches called RLMM. */
    private long searches(Optional<RemoteLogSegmentMetadata> found, long... offsets)
        throws RemoteStorageException {
        AtomicLong calls = new AtomicLong();
        for (long offset : offsets) {
            assertEquals(found, lookUps.answer(next(0, offset), timeoutMs -> {
                calls.incrementAndGet();
                return found;
            }));
        }
        return calls.get();
    }

    private Optional<RemoteLogSegmentMetadata> answer(Optional<RemoteLogSegmentMetadata> asked)
        throws RemoteStorageException {
        return lookUps.answer(QUESTION, timeoutMs -> asked);
    }

    private static Optional<RemoteLogSegmentMetadata> away(int timeoutMs)
        throws RemoteStorageException {
        assertEquals(1_000, timeoutMs);
        throw failure(Status.UNAVAILABLE.asException());
    }

    private static RemoteStorageException failure(StatusException cause) {
        return new Failures("RLMM").of("GetRemoteLogSegmentMetadata", cause);
    }

    private static StatusException refusal(Status.Code code, String reason) {
        StatusRuntimeException refusal = LocalServer.refusal(code, reason);
        return refusal.getStatus().asException(refusal.getTrailers());
    }

    /** A segment from offset 100 on, the first leader epoch of which has half of the offsets. */
    private static Optional<RemoteLogSegmentMetadata> withEpochs(int count) {
        Map<Integer, Long> epochs = new HashMap<>();
        for (int epoch = 0; epoch < count; epoch++) {
            epochs.put(epoch, epoch == 0 ? 100L : 150L + epoch);
        }
        return Optional.of(new RemoteLogSegmentMetadata(Samples.SEGMENT_ID, 100, 199, -1L, 7, 0L, 1,
            Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, epochs, true));
    }

    private static PartitionUpdate.Builder revision(long revision) {
        return PartitionUpdate.newBuilder().setRevision(revision);
    }

    private static Question segment(TopicIdPartition partition, long offset) {
        return new Question(Kind.SEGMENT, partition, 0, offset);
    }

    private static Question next(int epoch, long offset) {
        return new Question(Kind.NEXT_WITH_TXN_INDEX, Samples.PARTITION, epoch, offset);
    }
}
