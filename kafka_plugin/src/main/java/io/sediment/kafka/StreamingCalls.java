package io.sediment.kafka;

import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** What reads and copies have in common. */
final class StreamingCalls {
    private static final long CANCEL_TIMEOUT_MS = 1_000;

    private StreamingCalls() {
    }

    /**
     * Cancels a call and gives back what it holds. Does nothing to one that ended; may be called
     * from any thread, an interrupted one among them.
     */
    static void cancel(BlockingClientCall<?, ?> call, String why) {
        cancel(call, why, null);
    }

    /** The same for a call that stood still for too long. */
    static void cancel(BlockingClientCall<?, ?> call, String why, TimeoutException cause) {
        call.cancel(why, cause);
        boolean interrupted = Thread.interrupted();
        try {
            // Messages that have arrived wait in the call, in memory outside of the heap, for a
            // reader: cancelling alone would leak them.
            while (call.read(CANCEL_TIMEOUT_MS, TimeUnit.MILLISECONDS) != null) {
                continue;
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
