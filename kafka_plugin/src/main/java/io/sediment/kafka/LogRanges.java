package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * A log from a byte to its end, fetched range by range, each twice as long as the one before. Kafka
 * asks for all that follows a position, reads what one fetch of a consumer takes, about 1 MiB, and
 * closes: of a single open range the store would by then have sent many times as much.
 */
final class LogRanges extends InputStream {
    static final int FIRST_RANGE_BYTES = 2 * 1024 * 1024;
    private static final int LONGEST_RANGE_BYTES = 64 * 1024 * 1024;

    private final Ranges ranges;
    private final int endPosition;

    private InputStream range;
    private int nextPosition;
    private int missingBytes;
    private int nextRangeBytes = FIRST_RANGE_BYTES;

    /** Opens a part of the log; both ends are inclusive. */
    interface Ranges {
        InputStream open(int startPosition, int endPosition) throws RemoteStorageException;
    }

    /**
     * Opens the first range.
     *
     * @param endPosition the log's last byte, inclusive
     * @throws RemoteStorageException if the first range cannot be had
     */
    LogRanges(Ranges ranges, int startPosition, int endPosition) throws RemoteStorageException {
        this.ranges = ranges;
        this.endPosition = endPosition;
        this.nextPosition = startPosition;
        openNext();
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : Byte.toUnsignedInt(one[0]);
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
        range = ranges.open(nextPosition, rangeEnd);
        missingBytes = rangeEnd - nextPosition + 1;
        nextPosition = rangeEnd + 1;
        nextRangeBytes = Math.min(2 * nextRangeBytes, LONGEST_RANGE_BYTES);
    }
}
