package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class TargetTest {
    private final Rlmm first = new Rlmm();
    private final Rlmm second = new Rlmm();
    private final LocalServer firstServer = new LocalServer(first);
    private final LocalServer secondServer = new LocalServer(second);
    private final SedimentRemoteLogMetadataManager manager = new SedimentRemoteLogMetadataManager();

    @AfterEach
    void stop() {
        manager.close();
        firstServer.close();
        secondServer.close();
    }

    @Test
    void callsGoToAllAddressesInTurn() {
        configure(firstServer.endpoint(), secondServer.endpoint());

        assertEventually(() -> {
            call();
            return first.calls.get() > 2 && second.calls.get() > 2;
        }, "both are called");
    }

    @Test
    void noCallFailsWhileTheAddressesAreRestartedInTurn() {
        configure(firstServer.endpoint(), secondServer.endpoint());
        for (int round = 0; round < 3; round++) {
            for (LocalServer server : List.of(firstServer, secondServer)) {
                Rlmm restarted = server == firstServer ? first : second;
                server.stop();
                for (int i = 0; i < 20; i++) {
                    call();
                }
                server.startAgain();
                int before = restarted.calls.get();
                assertEventually(() -> {
                    call();
                    return restarted.calls.get() > before;
                }, "it is called again");
            }
        }
    }

    @Test
    void addressWithoutAServiceIsLeftOut() {
        secondServer.stop();
        configure(secondServer.endpoint(), firstServer.endpoint());

        for (int i = 0; i < 20; i++) {
            call();
        }

        assertEquals(20, first.calls.get());
        secondServer.startAgain();
    }

    @Test
    void anotherServiceAndAnUnknownHostAreNamed() {
        try (LocalServer rsm = new LocalServer(new LogServer())) {
            manager.configure(
                Map.of("endpoint", rsm.endpoint(), "security.protocol", "PLAINTEXT"));
            assertFails(rsm.endpoint(), "UNIMPLEMENTED");
            manager.close();
        }
        manager.configure(Map.of(
            "endpoint", "dns:///no-such-host.invalid:1", "security.protocol", "PLAINTEXT"));
        assertFails("no-such-host.invalid");
    }

    private void assertFails(String... words) {
        RemoteStorageException failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));
        for (String word : words) {
            assertTrue(failure.getMessage().contains(word), failure.getMessage());
        }
    }

    private void configure(String... endpoints) {
        manager.configure(Map.of(
            "endpoint", "ipv4:" + String.join(",", endpoints),
            "security.protocol", "PLAINTEXT"));
    }

    private void call() {
        try {
            manager.highestOffsetForEpoch(Samples.PARTITION, 0);
        } catch (RemoteStorageException e) {
            throw new AssertionError(e);
        }
    }

    /** Counts its calls. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final AtomicInteger calls = new AtomicInteger();

        @Override
        public void getHighestOffsetForEpoch(
            GetHighestOffsetForEpochRequest request,
            StreamObserver<GetHighestOffsetForEpochResponse> answer
        ) {
            calls.incrementAndGet();
            answer.onNext(GetHighestOffsetForEpochResponse.getDefaultInstance());
            answer.onCompleted();
        }
    }
}
