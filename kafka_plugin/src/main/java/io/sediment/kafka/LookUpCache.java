package io.sediment.kafka;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import io.sediment.tieredstorage.v1.PartitionUpdate;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/**
 * Holds RLMM's answers to look-ups of watched partitions until a watch reports a change of the
 * partition. Bounded: the least used answers and partitions are evicted, and segments with
 * many leader epochs, each of which takes about 80 bytes, are not held. Thread-safe.
 */
final class LookUpCache {
    /** The longest time for which a change may be unknown while answers count as current. */
    static final long CURRENT_NANOS = TimeUnit.SECONDS.toNanos(3);
    private static final int MAX_PARTITIONS = 500;
    private static final int MAX_ANSWERS_OF_PARTITION = 32;
    /** The most leader epochs of a segment that is held; a segment may have 10,000. */
    static final int MAX_EPOCHS = 20;

    private final long maxAgeNanos;
    private final LongSupplier clock;

    // All below are guarded by this.
    private final Map<TopicIdPartition, Watched> watched = new HashMap<>();
    private final Cache<TopicIdPartition, Answers> answers = bounded(MAX_PARTITIONS);
    private long changes;
    private OptionalLong completeThroughNanos = OptionalLong.empty();

    /** The kinds of look-ups: of an offset's segment, of the next one with aborted transactions. */
    enum Kind { SEGMENT, NEXT_WITH_TXN_INDEX }

    /** A look-up. */
    record Question(Kind kind, TopicIdPartition partition, int epoch, long offset) { }

    /**
     * @param maxAgeNanos for how long answers may be used after the watch was last complete
     * @param clock as {@link System#nanoTime}
     */
    LookUpCache(long maxAgeNanos, LongSupplier clock) {
        this.maxAgeNanos = maxAgeNanos;
        this.clock = clock;
    }

    /** Return the answer if it is held, whether it is current or not. */
    synchronized Optional<Optional<RemoteLogSegmentMetadata>> find(Question question) {
        return Optional.ofNullable(answers.getIfPresent(question.partition()))
            .flatMap(held -> held.find(question));
    }

    /** Whether each change that was committed more than 3 s ago has been seen. */
    synchronized boolean isCurrent() {
        return isCompleteWithin(CURRENT_NANOS);
    }

    /** Whether answers may be used while RLMM is away. */
    synchronized boolean isWithinMaxAge() {
        return isCompleteWithin(maxAgeNanos);
    }

    /** Return a number that is different after each change of the partition. */
    synchronized long version(TopicIdPartition partition) {
        Watched state = watched.get(partition);
        return state == null ? 0 : state.version;
    }

    /**
     * Hold an answer, unless it may be out of date already or the partition is not watched.
     *
     * @param version the partition's, from before the look-up
     */
    synchronized void hold(
        Question question, Optional<RemoteLogSegmentMetadata> answer, long version
    ) {
        Watched state = watched.get(question.partition());
        boolean isSmall = answer.isEmpty()
            || answer.get().segmentLeaderEpochs().size() <= MAX_EPOCHS;
        if (isSmall && state != null && state.known.isPresent() && state.version == version) {
            answers.get(question.partition(), partition -> new Answers())
                .hold(question, answer);
        }
    }

    /** Watch these partitions and no others. */
    synchronized void watch(List<TopicIdPartition> partitions) {
        watched.keySet().retainAll(new HashSet<>(partitions));
        answers.asMap().keySet().retainAll(watched.keySet());
        partitions.forEach(partition ->
            watched.computeIfAbsent(partition, added -> new Watched(++changes)));
    }

    /** The revision up to which a partition's changes are known, and when its change was made. */
    record Known(long revision, long changedAtUs) {
    }

    /** Return what is known of a partition. */
    synchronized Optional<Known> known(TopicIdPartition partition) {
        return Optional.ofNullable(watched.get(partition)).flatMap(state -> state.known);
    }

    /** Apply an update of a watch: drop the partition's answers if its segments have changed. */
    synchronized void update(TopicIdPartition partition, PartitionUpdate update) {
        Watched state = watched.get(partition);
        if (state == null) {
            return;
        }
        if (update.getEverything() || update.getSegmentsCount() > 0 || state.known.isEmpty()) {
            drop(partition);
        }
        state.known = Optional.of(new Known(update.getRevision(), update.getChangedAtUs()));
    }

    /** Drop a partition's answers: this broker has changed it, or may have. */
    synchronized void drop(TopicIdPartition partition) {
        answers.invalidate(partition);
        Watched state = watched.get(partition);
        if (state != null) {
            state.version = ++changes;
        }
    }

    /** Record the time up to which the watch is complete. An earlier one changes nothing. */
    synchronized void completeThrough(long nanos) {
        if (completeThroughNanos.isEmpty() || nanos - completeThroughNanos.getAsLong() > 0) {
            completeThroughNanos = OptionalLong.of(nanos);
        }
    }

    private boolean isCompleteWithin(long nanos) {
        return completeThroughNanos.isPresent()
            && clock.getAsLong() - completeThroughNanos.getAsLong() <= nanos;
    }

    /** Makes a cache that evicts what is used least, at once. */
    private static <K, V> Cache<K, V> bounded(int maxSize) {
        return Caffeine.newBuilder().maximumSize(maxSize).executor(Runnable::run).build();
    }

    /** A watched partition. */
    private static final class Watched {
        private Optional<Known> known = Optional.empty();
        private long version;

        Watched(long version) {
            this.version = version;
        }
    }

    /** Answers of one partition. */
    private static final class Answers {
        private final Cache<Range, RemoteLogSegmentMetadata> segments =
            bounded(MAX_ANSWERS_OF_PARTITION);
        private final Cache<Question, Optional<RemoteLogSegmentMetadata>> next =
            bounded(MAX_ANSWERS_OF_PARTITION);

        Optional<Optional<RemoteLogSegmentMetadata>> find(Question question) {
            return switch (question.kind()) {
                case SEGMENT -> segments.asMap().keySet().stream()
                    .filter(range -> range.covers(question))
                    .findFirst()
                    .map(range -> Optional.ofNullable(segments.getIfPresent(range)));
                case NEXT_WITH_TXN_INDEX -> next.asMap().entrySet().stream()
                    .filter(held -> isAnswer(held.getKey(), held.getValue(), question))
                    .findFirst()
                    .map(held -> next.getIfPresent(held.getKey()));
            };
        }

        /** Whether a search that began earlier in the epoch has found what this one would find. */
        private static boolean isAnswer(
            Question earlier, Optional<RemoteLogSegmentMetadata> found, Question question
        ) {
            return earlier.epoch() == question.epoch()
                && earlier.offset() <= question.offset()
                && found.map(next -> question.offset() <= next.endOffset()).orElse(true);
        }

        void hold(Question question, Optional<RemoteLogSegmentMetadata> answer) {
            switch (question.kind()) {
                // A look-up that finds no segment is seldom repeated.
                case SEGMENT -> answer
                    .filter(found -> found.state() == RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
                    .ifPresent(found -> segments.put(Range.of(question.epoch(), found), found));
                case NEXT_WITH_TXN_INDEX -> next.put(question, answer);
            }
        }
    }

    /** The offsets of one leader epoch in a segment, both ends inclusive. */
    private record Range(int epoch, long first, long last) {
        static Range of(int epoch, RemoteLogSegmentMetadata segment) {
            NavigableMap<Integer, Long> epochs = segment.segmentLeaderEpochs();
            Map.Entry<Integer, Long> later = epochs.higherEntry(epoch);
            return new Range(
                epoch,
                epochs.getOrDefault(epoch, Long.MAX_VALUE),
                later == null ? segment.endOffset() : later.getValue() - 1);
        }

        boolean covers(Question question) {
            return question.epoch() == epoch
                && first <= question.offset() && question.offset() <= last;
        }
    }
}
