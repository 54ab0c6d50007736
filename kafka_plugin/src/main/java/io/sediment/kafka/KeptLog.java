package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;
import java.util.Optional;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * A log from a byte to its end: chunk by chunk while the cache has or fetches them, then by ranges
 * of its own. For a sequential reader chunks are fetched, one or more of them ahead.
 */
final class KeptLog extends BulkStream {
    private final ChunkCache cache;
    private final ChunkSource ranges;
    private final RemoteLogSegmentMetadata segment;
    private final Read read;
    private final int sizeBytes;

    private int position;
    private Optional<Chunk> chunk = Optional.empty();
    private Optional<InputStream> rest = Optional.empty();
    private boolean isClosed;

    /** One read of a segment, from its first position to where it is now. */
    static final class Read {
        private final RemoteLogSegmentMetadata segment;
        private final int startPosition;
        private final boolean isSequential;
        private final long earlierBytes;
        private volatile int position;

        /** Begins a read, and continues an earlier one if there is one. */
        Read(RemoteLogSegmentMetadata segment, int startPosition, Optional<Read> earlier) {
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

        /** Returns whether it continues an earlier read. */
        boolean isSequential() {
            return isSequential;
        }

        /** Records that the reader has all bytes before a position. */
        void reach(int newPosition) {
            position = newPosition;
        }

        /** Returns whether a read of this place continues this one. */
        boolean isContinuedAt(RemoteLogSegmentMetadata next, int nextPosition) {
            return segment.remoteLogSegmentId().equals(next.remoteLogSegmentId())
                ? startPosition <= nextPosition && nextPosition <= position
                : isAtEndBefore(next);
        }

        /** Returns whether it has read its segment to the end, and the other follows. */
        boolean isAtEndBefore(RemoteLogSegmentMetadata next) {
            long nextOffset = segment.endOffset() + 1;
            return position == segment.segmentSizeInBytes()
                && partition(segment).equals(partition(next))
                && next.startOffset() <= nextOffset
                && nextOffset <= next.endOffset();
        }

        /** Returns how many bytes this read and those that it continues have read so far. */
        private long bytes() {
            return earlierBytes + position - startPosition;
        }

        private static TopicIdPartition partition(RemoteLogSegmentMetadata of) {
            return of.remoteLogSegmentId().topicIdPartition();
        }
    }

    /**
     * Waits for the first byte.
     *
     * @param read which begins before the log's end
     * @throws RemoteStorageException if the first byte cannot be read
     */
    KeptLog(ChunkCache cache, ChunkSource ranges, Read read) throws RemoteStorageException {
        this.cache = cache;
        this.ranges = ranges;
        this.read = read;
        segment = read.segment();
        sizeBytes = segment.segmentSizeInBytes();
        position = read.startPosition();
        enterChunk();
        if (chunk.isPresent()) {
            try {
                awaitByte(chunk.get());
            } catch (RemoteStorageException e) {
                leaveChunk();
                throw e;
            }
        }
    }

    @Override
    public synchronized int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        requireOpen();
        if (length == 0) {
            return 0;
        }
        int count;
        try {
            count = readSome(target, offset, length);
        } catch (RemoteStorageException e) {
            throw new IOException(e.getMessage(), e);
        }
        if (count > 0) {
            position += count;
            read.reach(position);
            if (position == sizeBytes) {
                passTheEnd();
            }
        }
        return count;
    }

    @Override
    public synchronized int available() throws IOException {
        requireOpen();
        return rest.isPresent() ? rest.get().available() : chunk.get().available(position);
    }

    @Override
    public synchronized void close() throws IOException {
        isClosed = true;
        leaveChunk();
        if (rest.isPresent()) {
            rest.get().close();
        }
    }

    private int readSome(byte[] target, int offset, int length)
        throws IOException, RemoteStorageException {
        if (rest.isEmpty() && position == sizeBytes) {
            return -1;
        }
        if (rest.isEmpty() && (chunk.isEmpty() || position == chunk.get().nextPosition())) {
            // The next read may begin in the chunk that ends here, but not in the one before.
            cache.pass(segment, position - 2 * ChunkCache.CHUNK_BYTES);
            leaveChunk();
            enterChunk();
        }
        if (rest.isPresent()) {
            return rest.get().read(target, offset, length);
        }
        Chunk present = chunk.get();
        int count = Math.min(awaitByte(present), length);
        present.copy(position, target, offset, count);
        return count;
    }

    /**
     * Leaves the room of the last chunks to other readers. The next read begins in another segment,
     * or never: a reader at the end of the tier does not say that it needs them no more.
     */
    private void passTheEnd() {
        int lastStart = ChunkCache.startOf(sizeBytes - 1);
        cache.pass(segment, lastStart);
        cache.pass(segment, lastStart - ChunkCache.CHUNK_BYTES);
    }

    /** Takes the chunk with the position or, without one, the ranges from the position on. */
    private void enterChunk() throws RemoteStorageException {
        int start = ChunkCache.startOf(position);
        int end = Math.min(start + ChunkCache.CHUNK_BYTES, sizeBytes);
        // Of a chunk that was not fetched before, for want of room, the last half is not worth it.
        boolean isWorthIt = position - start <= (end - start) / 2;
        chunk = cache.get(segment, start, read.isSequential() && isWorthIt);
        if (chunk.isEmpty()) {
            rest = Optional.of(new LogRanges(ranges, segment, position));
            return;
        }
        int nextPosition = chunk.get().nextPosition();
        if (read.isSequential() && nextPosition < sizeBytes) {
            cache.fetchAhead(segment, nextPosition, ChunkCache.chunksAhead(read.bytes()));
        }
    }

    private void leaveChunk() {
        chunk.ifPresent(cache::release);
        chunk = Optional.empty();
    }

    /** Returns how many bytes can be copied. */
    private int awaitByte(Chunk present) throws RemoteStorageException {
        try {
            return present.await(position);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new RetriableRemoteStorageException(segment.remoteLogSegmentId()
                + ": interrupted while waiting for the byte at position " + position, e);
        }
    }

    private void requireOpen() throws IOException {
        if (isClosed) {
            throw new IOException(segment.remoteLogSegmentId() + ": the stream is closed");
        }
    }
}
