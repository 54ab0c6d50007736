package io.sediment.kafka;

import io.grpc.StatusException;
import java.util.function.Function;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/** Makes unary calls, each with a deadline, and maps failures to Kafka's exceptions. */
final class UnaryCalls {
    private final Failures failures;

    UnaryCalls(Failures failures) {
        this.failures = failures;
    }

    /** A call of a blocking stub. */
    interface Call<T> {
        T answer() throws StatusException;
    }

    /**
     * What {@code convert} makes of the answer.
     *
     * @param name the RPC, for messages
     * @throws RemoteStorageException if the call fails or its answer cannot be converted
     */
    <T, K> K make(String name, Call<T> call, Function<T, K> convert) throws RemoteStorageException {
        T answer;
        try {
            answer = call.answer();
        } catch (StatusException e) {
            throw failures.of(name, e);
        }
        try {
            return convert.apply(answer);
        } catch (IllegalArgumentException e) {
            throw failures.ofAnswer(name, e.getMessage(), e);
        }
    }
}
