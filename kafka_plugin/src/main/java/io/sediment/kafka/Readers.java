package io.sediment.kafka;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/**
 * Recognises sequential readers. Kafka names no consumer: each fetch opens a log at a position. A
 * read is sequential if it begins within the bytes of an earlier read or at their end (Kafka goes
 * back to an entry of the offset index), or in the segment behind one that was read to its end.
 */
final class Readers {
    // The reads that are remembered; a reader counts once, until so many others have read.
    private static final int KEPT_READS = 1024;

    // The latest first.
    private final Deque<Read> recent = new ArrayDeque<>();

    /** One read of a segment, from its first position to where it is now. */
    static final class Read {
        private final RemoteLogSegmentMetadata segment;
        private final int startPosition;
        private final boolean isSequential;
        private final long earlierBytes;
        private volatile int position;

        private Read(RemoteLogSegmentMetadata segment, int startPosition, Optional<Read> earlier) {
            this.segment = segment;
            this.startPosition = startPosition;
            isSequential = earlier.isPresent();
            earlierBytes = earlier.map(Read::bytes).orElse(0L);
            position = startPosition;
        }

        RemoteLogSegmentMetadata segment() {
            return segment;
        }

        int startPosition() {
            return startPosition;
        }

        /** Whether it continues an earlier read. */
        boolean isSequential() {
            return isSequential;
        }

        /** How many bytes this read and those that it continues have read so far. */
        long bytes() {
            return earlierBytes + position - startPosition;
        }

        /** Says that the reader has all bytes before a position. */
        void reach(int newPosition) {
            position = newPosition;
        }

        private boolean isContinuedAt(RemoteLogSegmentMetadata next, int nextPosition) {
            return segment.remoteLogSegmentId().equals(next.remoteLogSegmentId())
                ? startPosition <= nextPosition && nextPosition <= position
                : isAtEndBefore(next);
        }

        private boolean isAtEndBefore(RemoteLogSegmentMetadata next) {
            long nextOffset = segment.endOffset() + 1;
            return position == segment.segmentSizeInBytes()
                && partition(segment).equals(partition(next))
                && next.startOffset() <= nextOffset
                && nextOffset <= next.endOffset();
        }

        private static TopicIdPartition partition(RemoteLogSegmentMetadata of) {
            return of.remoteLogSegmentId().topicIdPartition();
        }
    }

    /**
     * A read that has begun.
     *
     * @param earlier the read that it continues, which is forgotten
     */
    record Begun(Read read, Optional<Read> earlier) {
    }

    /** Remembers a read in place of the one that it continues. */
    synchronized Begun begin(RemoteLogSegmentMetadata segment, int startPosition) {
        Optional<Read> earlier = recent.stream()
            .filter(read -> read.isContinuedAt(segment, startPosition))
            .findFirst();
        if (earlier.isPresent()) {
            recent.remove(earlier.get());
        } else if (recent.size() == KEPT_READS) {
            recent.removeLast();
        }
        Read read = new Read(segment, startPosition, earlier);
        recent.addFirst(read);
        return new Begun(read, earlier);
    }

    /** Whether a sequential reader is about to begin a segment: it is at the end of the one before. */
    synchronized boolean anyBegins(RemoteLogSegmentMetadata segment) {
        return recent.stream().anyMatch(read -> read.isSequential && read.isAtEndBefore(segment));
    }
}
