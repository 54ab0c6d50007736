package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.zip.CRC32C;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * A part of a log in memory, readable while its bytes arrive. One thread fills it, any number read
 * it. What has arrived stays readable if the rest fails.
 */
class Chunk {
    // Not larger: G1 gives an object of half a region or more (512 KiB in a small heap) regions of
    // its own, and the rest of the last one is lost.
    static final int PIECE_BYTES = 256 * 1024;

    private final int startPosition;
    private final byte[][] pieces;
    private final int sizeBytes;
    private final Supplier<byte[]> buffers;
    private final LongSupplier clock;

    private int arrivedBytes;
    private RemoteStorageException failure;
    private long progressNanos;

    /**
     * Covers the log from one position to another, both inclusive.
     *
     * @param buffers of {@link #PIECE_BYTES}, for whole pieces
     * @param clock as {@link System#nanoTime}
     */
    Chunk(int startPosition, int endPosition, Supplier<byte[]> buffers, LongSupplier clock) {
        this.startPosition = startPosition;
        this.buffers = buffers;
        this.clock = clock;
        progressNanos = clock.getAsLong();
        sizeBytes = endPosition - startPosition + 1;
        pieces = new byte[(sizeBytes - 1) / PIECE_BYTES + 1][];
    }

    final int sizeBytes() {
        return sizeBytes;
    }

    /** The position of the first byte behind this chunk. */
    int nextPosition() {
        return startPosition + sizeBytes;
    }

    /**
     * Reads all of the chunk's bytes from a stream.
     *
     * @throws IOException if the stream fails, or has fewer bytes
     */
    void fill(InputStream bytes) throws IOException {
        arrived(0);
        for (int number = 0; number < pieces.length; number++) {
            int start = number * PIECE_BYTES;
            int pieceBytes = Math.min(PIECE_BYTES, sizeBytes - start);
            byte[] piece = piece(number, pieceBytes);
            for (int filled = 0; filled < pieceBytes; ) {
                int count = bytes.read(piece, filled, pieceBytes - filled);
                if (count < 0) {
                    throw new IOException("the log ends at position "
                        + (startPosition + start + filled) + " before " + nextPosition());
                }
                filled += count;
                arrived(count);
            }
        }
    }

    /**
     * Reads all of the chunk's bytes from a stream. None of them can be read before all have arrived
     * and have a crc32c.
     *
     * @return whether they have it; if not, the chunk is as before
     */
    boolean fillIfIntact(InputStream bytes, int crc32c) throws IOException {
        CRC32C actual = new CRC32C();
        for (int number = 0; number < pieces.length; number++) {
            int pieceBytes = Math.min(PIECE_BYTES, sizeBytes - number * PIECE_BYTES);
            byte[] piece = piece(number, pieceBytes);
            if (bytes.readNBytes(piece, 0, pieceBytes) < pieceBytes) {
                return false;
            }
            actual.update(piece, 0, pieceBytes);
        }
        if (bytes.read() >= 0 || (int) actual.getValue() != crc32c) {
            return false;
        }
        arrived(sizeBytes);
        return true;
    }

    /** Fails the reads of all bytes that have not arrived. */
    synchronized void fail(RemoteStorageException cause) {
        failure = cause;
        notifyAll();
    }

    /** For how long bytes have been missing and none has arrived. */
    synchronized long standstillNanos() {
        boolean isExpected = arrivedBytes < sizeBytes && failure == null;
        return isExpected ? clock.getAsLong() - progressNanos : 0;
    }

    /**
     * Waits until the byte at a position of the log has arrived.
     *
     * @return how many bytes can be read from there without waiting
     * @throws RemoteStorageException if the byte will not arrive
     */
    synchronized int await(int position) throws RemoteStorageException, InterruptedException {
        while (arrivedBytes <= position - startPosition) {
            if (failure != null) {
                throw failure;
            }
            wait();
        }
        return arrivedBytes - (position - startPosition);
    }

    /** How many bytes can be read from a position without waiting. */
    synchronized int available(int position) {
        return Math.max(arrivedBytes - (position - startPosition), 0);
    }

    /** Copies bytes, which have arrived, from a position of the log on. */
    void copy(int position, byte[] target, int offset, int length) {
        for (int copied = 0; copied < length; ) {
            int from = position - startPosition + copied;
            byte[] piece = pieces[from / PIECE_BYTES];
            int inPiece = from % PIECE_BYTES;
            int count = Math.min(PIECE_BYTES - inPiece, length - copied);
            System.arraycopy(piece, inPiece, target, offset + copied, count);
            copied += count;
        }
    }

    /** Writes all bytes, which have arrived. */
    void writeTo(OutputStream target) throws IOException {
        for (int number = 0; number < pieces.length; number++) {
            int start = number * PIECE_BYTES;
            target.write(pieces[number], 0, Math.min(PIECE_BYTES, sizeBytes - start));
        }
    }

    /** Takes the buffers of whole pieces out of the chunk, which must not be read any more. */
    List<byte[]> takeBuffers() {
        List<byte[]> taken = new ArrayList<>();
        for (int number = 0; number < pieces.length; number++) {
            if (pieces[number] != null && pieces[number].length == PIECE_BYTES) {
                taken.add(pieces[number]);
            }
            pieces[number] = null;
        }
        return taken;
    }

    private byte[] piece(int number, int pieceBytes) {
        if (pieces[number] == null) {
            pieces[number] = pieceBytes == PIECE_BYTES ? buffers.get() : new byte[pieceBytes];
        }
        return pieces[number];
    }

    private synchronized void arrived(int count) {
        arrivedBytes += count;
        progressNanos = clock.getAsLong();
        notifyAll();
    }
}
