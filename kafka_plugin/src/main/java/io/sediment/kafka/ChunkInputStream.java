package io.sediment.kafka;

import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.io.IOException;
import java.io.InputStream;
import java.lang.ref.Cleaner;
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
final class ChunkInputStream<T> extends BulkStream {
    private static final Cleaner CLEANER = Cleaner.create();

    private final BlockingClientCall<?, T> call;
    private final Function<T, InputStream> data;
    private final String name;
    private final Failures failures;
    private final Patience patience;
    private final Message message;
    private final Cleaner.Cleanable cancellation;

    private boolean ended;
    private IOException failure;

    /**
     * Waits for the first chunk, or the end, of a call that was just begun.
     *
     * @param data returns the bytes of a message; closed once they were read
     * @param name the RPC, for messages
     * @param patience the interceptor of the call
     * @throws RemoteStorageException if the call fails before its first message
     */
    ChunkInputStream(
        BlockingClientCall<?, T> call,
        Function<T, InputStream> data,
        String name,
        Failures failures,
        Patience patience
    ) throws RemoteStorageException {
        this.call = call;
        this.data = data;
        this.name = name;
        this.failures = failures;
        this.patience = patience;
        // What the cleaner runs must not refer to this.
        Message held = new Message();
        message = held;
        cancellation = CLEANER.register(this, () -> {
            held.replace(InputStream.nullInputStream());
            StreamingCalls.cancel(call, "the stream was closed", null);
        });
        try {
            advance();
        } catch (RemoteStorageException e) {
            close();
            throw e;
        }
    }

    /** The data of one message. One that was closed, also by another thread, has none left. */
    private static final class Message {
        private InputStream data = InputStream.nullInputStream();

        synchronized void replace(InputStream next) {
            LogMessages.close(data);
            data = next;
        }

        synchronized int read(byte[] target, int offset, int length) throws IOException {
            return data.read(target, offset, length);
        }

        synchronized int available() throws IOException {
            return data.available();
        }
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        if (failure != null) {
            throw failure;
        }
        if (length == 0) {
            return 0;
        }
        int count = message.read(target, offset, length);
        while (count < 0 && !ended) {
            try {
                advance();
            } catch (RemoteStorageException e) {
                cancellation.clean();
                failure = new IOException(e.getMessage(), e);
                throw failure;
            }
            count = message.read(target, offset, length);
        }
        return count;
    }

    @Override
    public int available() throws IOException {
        return message.available();
    }

    @Override
    public void close() {
        failure = new IOException(name + ": the stream is closed");
        cancellation.clean();
    }

    private void advance() throws RemoteStorageException {
        try {
            T next = patience.take(call::read);
            ended = next == null;
            message.replace(ended ? InputStream.nullInputStream() : data.apply(next));
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
