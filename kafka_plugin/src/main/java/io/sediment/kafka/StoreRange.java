package io.sediment.kafka;

import io.sediment.kafka.StoreReadException.Scope;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.CRC32C;

/**
 * Bytes of a log, read from the object store by one GET. Returns none before their whole block has
 * matched its crc32c. Every failure is a {@link StoreReadException}.
 *
 * <p>By HttpURLConnection: java.net.http.HttpClient was a third slower in measurements.
 */
final class StoreRange extends BulkStream {
    private static final int CONNECT_TIMEOUT_MS = 3_000;
    private static final int READ_TIMEOUT_MS = 5_000;
    private static final int MAX_ERROR_BYTES = 4096;
    private static final Pattern ERROR_CODE = Pattern.compile("<Code>([A-Za-z]{1,60})</Code>");

    private final OpenedLog log;
    private final int endPosition;
    private final HttpURLConnection connection;
    private final InputStream body;
    // In pieces as small as those of a chunk, for the same reason.
    private final byte[][] block;

    private int nextPosition;
    private int readBytes;
    private int blockSize;

    /**
     * Sends the GET and waits for its answer.
     *
     * @param startPosition the beginning of a block
     * @param endPosition the last byte, inclusive; the end of a block
     */
    StoreRange(OpenedLog log, int startPosition, int endPosition) throws StoreReadException {
        this.log = log;
        this.endPosition = endPosition;
        nextPosition = startPosition;
        int blockBytes = Math.min(log.blockBytes(), endPosition - startPosition + 1);
        block = new byte[(blockBytes - 1) / Chunk.PIECE_BYTES + 1][];
        HttpURLConnection opened = null;
        try {
            // The store is where the URL says, whatever proxies the JVM has.
            opened = (HttpURLConnection) log.url().openConnection(Proxy.NO_PROXY);
            body = request(opened, startPosition);
            connection = opened;
        } catch (IOException e) {
            if (opened != null) {
                opened.disconnect();
            }
            throw failure(e);
        }
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        if (length == 0) {
            return 0;
        }
        if (readBytes == blockSize) {
            if (nextPosition > endPosition) {
                return -1;
            }
            readBlock();
        }
        int inPiece = readBytes % Chunk.PIECE_BYTES;
        int count = Math.min(
            length, Math.min(blockSize - readBytes, Chunk.PIECE_BYTES - inPiece));
        System.arraycopy(block[readBytes / Chunk.PIECE_BYTES], inPiece, target, offset, count);
        readBytes += count;
        return count;
    }

    @Override
    public void close() {
        if (nextPosition <= endPosition) {
            connection.disconnect();
            return;
        }
        try {
            // Read to its end: the connection is used again.
            body.close();
        } catch (IOException e) {
            connection.disconnect();
        }
    }

    private InputStream request(HttpURLConnection opened, int startPosition) throws IOException {
        int sizeBytes = endPosition - startPosition + 1;
        opened.setConnectTimeout(CONNECT_TIMEOUT_MS);
        opened.setReadTimeout(READ_TIMEOUT_MS);
        opened.setInstanceFollowRedirects(false);
        opened.setUseCaches(false);
        opened.setRequestProperty("Range", "bytes=" + startPosition + "-" + endPosition);
        int status = opened.getResponseCode();
        if (status == HttpURLConnection.HTTP_NOT_FOUND) {
            throw new StoreReadException(Scope.LOG, "404" + errorCode(opened));
        }
        if (status != HttpURLConnection.HTTP_PARTIAL) {
            throw new StoreReadException(Scope.STORE, status + errorCode(opened));
        }
        long length = opened.getContentLengthLong();
        if (length >= 0 && length != sizeBytes) {
            throw new StoreReadException(
                Scope.LOG, length + " bytes instead of the " + sizeBytes + " asked for");
        }
        return opened.getInputStream();
    }

    private void readBlock() throws StoreReadException {
        int wantedBytes = Math.min(log.blockBytes(), endPosition - nextPosition + 1);
        CRC32C crc32c = new CRC32C();
        for (int filled = 0; filled < wantedBytes; filled += Chunk.PIECE_BYTES) {
            int number = filled / Chunk.PIECE_BYTES;
            int pieceBytes = Math.min(Chunk.PIECE_BYTES, wantedBytes - filled);
            if (block[number] == null) {
                block[number] = new byte[pieceBytes];
            }
            readPiece(block[number], pieceBytes, nextPosition + filled);
            crc32c.update(block[number], 0, pieceBytes);
        }
        int expected = log.crc32c(nextPosition);
        if ((int) crc32c.getValue() != expected) {
            throw new StoreReadException(Scope.DAMAGED_LOG, String.format(
                "bytes %d to %d have crc32c %08x, the manifest says %08x",
                nextPosition, nextPosition + wantedBytes - 1, crc32c.getValue(), expected));
        }
        nextPosition += wantedBytes;
        readBytes = 0;
        blockSize = wantedBytes;
    }

    private void readPiece(byte[] piece, int wantedBytes, int position) throws StoreReadException {
        int count;
        try {
            count = body.readNBytes(piece, 0, wantedBytes);
        } catch (IOException e) {
            throw failure(e);
        }
        if (count < wantedBytes) {
            throw new StoreReadException(
                Scope.STORE, "the answer ended at position " + (position + count));
        }
    }

    /** What the store says about a refusal, such as {@code " RequestTimeTooSkewed"}. */
    private static String errorCode(HttpURLConnection refused) {
        InputStream error = refused.getErrorStream();
        if (error == null) {
            return "";
        }
        try (error) {
            String text = new String(error.readNBytes(MAX_ERROR_BYTES), StandardCharsets.UTF_8);
            Matcher code = ERROR_CODE.matcher(text);
            return code.find() ? " " + code.group(1) : "";
        } catch (IOException e) {
            return "";
        }
    }

    /** The same failure without its cause, whose message may have the URL. */
    private StoreReadException failure(IOException e) {
        if (e instanceof StoreReadException ours) {
            return ours;
        }
        String said = String.valueOf(e.getMessage()).replace(log.url().toString(), "the URL");
        return new StoreReadException(Scope.STORE, e.getClass().getSimpleName() + ": " + said);
    }
}
