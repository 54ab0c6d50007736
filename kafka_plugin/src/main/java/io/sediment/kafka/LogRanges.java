package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * A log from a byte to its end, fetched range by range, each twice as long as the one before. Kafka
 * asks for all that follows a position, reads what one fetch of a consumer takes, about 1 MiB, and
 * closes: of a single open range the store would by then have sent many times as much.
 */
final class LogRanges extends BulkStream {
    static final int FIRST_RANGE_BYTES = 2 * 1024 * 1024;
    private static final int LONGEST_RANGE_BYTES = 64 * 1024 * 1024;

    private final ChunkSource ranges;
    private final RemoteLogSegmentMetadata segment;
    private final int endPosition;

    private InputStream range;
    private int nextPosition;
    private int missingBytes;
    private int nextRangeBytes = FIRST_RANGE_BYTES;

    /**
     * Opens the first range, which begins before the log's end.
     *
     * @throws RemoteStorageException if the first range cannot be had
     */
    LogRanges(ChunkSource ranges, RemoteLogSegmentMetadata segment, int startPosition)
        throws RemoteStorageException {
        this.ranges = ranges;
        this.segment = segment;
        endPosition = segment.segmentSizeInBytes() - 1;
        nextPosition = startPosition;
        openNext();
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        if (length == 0) {
            return 0;
        }
        int count = range.read(target, offset, length);
        while (count < 0 && nextPosition <= endPosition) {
            requireWhole();
            range.close();
            try {
                openNext();
            } catch (RemoteStorageException e) {
                throw new IOException(e.getMessage(), e);
            }
            count = range.read(target, offset, length);
        }
        if (count < 0) {
            requireWhole();
        } else {
            missingBytes -= count;
        }
        return count;
    }

    @Override
    public int available() throws IOException {
        return range.available();
    }

    @Override
    public void close() throws IOException {
        nextPosition = endPosition + 1;
        missingBytes = 0;
        range.close();
    }

    /** A range that is short must not be taken for the end, nor be passed over. */
    private void requireWhole() throws IOException {
        if (missingBytes != 0) {
            throw new IOException(
                "the log lacks " + missingBytes + " bytes before position " + nextPosition);
        }
    }

    private void openNext() throws RemoteStorageException {
        int rangeEnd = Math.min(endPosition - nextPosition, nextRangeBytes - 1) + nextPosition;
        range = ranges.open(segment, nextPosition, rangeEnd);
        missingBytes = rangeEnd - nextPosition + 1;
        nextPosition = rangeEnd + 1;
        nextRangeBytes = Math.min(2 * nextRangeBytes, LONGEST_RANGE_BYTES);
    }
}
