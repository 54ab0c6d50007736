package io.sediment.kafka;

import com.google.protobuf.ByteString;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.io.IOException;
import java.io.InputStream;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Reads the bytes of a server's stream. Holds one chunk; the following ones stay with the server
 * until they are read. Closing cancels the call. If a stream is dropped without being closed, its
 * call is cancelled when the garbage collector finds it.
 *
 * @param <T> the message that carries a chunk
 */
final class ChunkInputStream<T> extends InputStream {
    private static final Cleaner CLEANER = Cleaner.create();
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final BlockingClientCall<?, T> call;
    private final Function<T, ByteString> data;
    private final String name;
    private final Failures failures;
    private final Patience patience;
    private final Cleaner.Cleanable cancellation;

    private ByteBuffer chunk = NOTHING;
    private boolean ended;
    private IOException failure;

    private ChunkInputStream(
        BlockingClientCall<?, T> call,
        Function<T, ByteString> data,
        String name,
        Failures failures,
        Patience patience
    ) {
        this.call = call;
        this.data = data;
        this.name = name;
        this.failures = failures;
        this.patience = patience;
        this.cancellation =
            CLEANER.register(this, () -> StreamingCalls.cancel(call, "the stream was closed"));
    }

    /**
     * Waits for the first chunk, or the end, of a call that was just begun, and returns its stream.
     *
     * @param data returns the bytes of a message
     * @param name the RPC, for messages
     * @param patience the interceptor of the call
     * @throws RemoteStorageException if the call fails before its first message
     */
    static <T> InputStream open(
        BlockingClientCall<?, T> call,
        Function<T, ByteString> data,
        String name,
        Failures failures,
        Patience patience
    ) throws RemoteStorageException {
        ChunkInputStream<T> stream =
            new ChunkInputStream<>(call, data, name, failures, patience);
        try {
            stream.advance();
        } catch (RemoteStorageException e) {
            stream.close();
            throw e;
        }
        return stream;
    }

    @Override
    public int read() throws IOException {
        return hasByte() ? Byte.toUnsignedInt(chunk.get()) : -1;
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        if (length == 0) {
            return 0;
        }
        if (!hasByte()) {
            return -1;
        }
        int count = Math.min(length, chunk.remaining());
        chunk.get(target, offset, count);
        return count;
    }

    @Override
    public int available() {
        return chunk.remaining();
    }

    @Override
    public void close() {
        failure = new IOException(name + ": the stream is closed");
        chunk = NOTHING;
        cancellation.clean();
    }

    private boolean hasByte() throws IOException {
        if (failure != null) {
            throw failure;
        }
        while (!chunk.hasRemaining() && !ended) {
            try {
                advance();
            } catch (RemoteStorageException e) {
                cancellation.clean();
                failure = new IOException(e.getMessage(), e);
                throw failure;
            }
        }
        return chunk.hasRemaining();
    }

    private void advance() throws RemoteStorageException {
        try {
            T message = patience.take(call::read);
            ended = message == null;
            chunk = ended ? NOTHING : data.apply(message).asReadOnlyByteBuffer();
        } catch (StatusException e) {
            throw failures.of(name, e);
        } catch (TimeoutException e) {
            StreamingCalls.cancel(call, patience.complaint(), e);
            throw failures.ofStandstill(name, patience.complaint(), e);
        } catch (InterruptedException e) {
            throw failures.ofInterrupt(name, e);
        }
    }
}
