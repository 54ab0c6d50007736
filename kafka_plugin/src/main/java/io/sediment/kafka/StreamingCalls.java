package io.sediment.kafka;

import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.io.InputStream;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Cancels streams, for reads and copies. */
final class StreamingCalls {
    private static final long CANCEL_TIMEOUT_MS = 1_000;

    private StreamingCalls() {
    }

    /**
     * Cancels a call and frees its memory. Does nothing if it has ended; may be called from any
     * thread, also an interrupted one.
     *
     * @param cause null, or that the call made no progress for too long
     */
    static void cancel(BlockingClientCall<?, ?> call, String why, TimeoutException cause) {
        call.cancel(why, cause);
        boolean interrupted = Thread.interrupted();
        try {
            // Messages that have arrived wait in the call, in memory outside of the heap, for a
            // reader: cancelling alone would leak them.
            Object message = call.read(CANCEL_TIMEOUT_MS, TimeUnit.MILLISECONDS);
            while (message != null) {
                if (message instanceof InputStream bytes) {
                    LogMessages.close(bytes);
                }
                message = call.read(CANCEL_TIMEOUT_MS, TimeUnit.MILLISECONDS);
            }
        } catch (StatusException | TimeoutException e) {
            // It has ended, as requested.
        } catch (InterruptedException e) {
            interrupted = true;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
