package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import javax.management.JMException;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class EndpointsTest {
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
    void callsGoToAllEndpointsInTurn() {
        configure(firstServer.endpoint(), secondServer.endpoint());

        assertEventually(() -> {
            call();
            return first.calls.get() > 2 && second.calls.get() > 2;
        }, "both are called");
    }

    @Test
    void noCallFailsWhileTheEndpointsAreRestartedInTurn() {
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
    void hostThatCannotBeResolvedIsLoggedOnceAndTheOthersAreUsed() throws Exception {
        List<String> lines = LogLines.during(() -> {
            configure("no-such-host.invalid:1", firstServer.endpoint());
            for (int i = 0; i < 20; i++) {
                call();
            }
        });

        List<String> warnings = lines.stream().filter(line -> line.contains("resolve")).toList();
        assertEquals(1, warnings.size(), lines::toString);
        assertTrue(warnings.get(0).contains("cannot resolve no-such-host.invalid:1"));
        assertEquals(20, first.calls.get());
    }

    @Test
    void endpointWithoutAServiceIsLeftOut() {
        secondServer.stop();
        configure(secondServer.endpoint(), firstServer.endpoint());

        for (int i = 0; i < 20; i++) {
            call();
        }

        assertEquals(20, first.calls.get());
        secondServer.startAgain();
    }

    @Test
    void anotherServiceAmongThreeEndpointsFailsNoCallAndIsLoggedOnce() throws Exception {
        ObjectName figures = new ObjectName(
            "io.sediment.kafka:type=Calls,broker=7,service=RLMM,call=GetHighestOffsetForEpoch");
        try (LocalServer rsm = new LocalServer(new LogServer())) {
            List<String> lines = LogLines.during(() -> {
                configure(firstServer.endpoint(), rsm.endpoint(), secondServer.endpoint());
                assertEventually(() -> {
                    call();
                    return first.calls.get() > 2 && second.calls.get() > 2
                        && figure(figures, "Repeats") > 0;
                }, "all three are called");
                assertEventually(() -> {
                    long before = figure(figures, "Repeats");
                    for (int i = 0; i < 10; i++) {
                        call();
                    }
                    return figure(figures, "Repeats") == before;
                }, "the wrong one is left out");
            });

            assertEquals(0, figure(figures, "Failures"));
            assertEquals(1, lines.stream().filter(line -> line.contains(" WARN ")
                && line.contains("another service listens at " + rsm.endpoint() + " (")
                && line.contains("rlmm.config.endpoint")).count(), lines::toString);
            assertTrue(lines.stream().noneMatch(line -> line.contains("does not serve")),
                lines::toString);
        }
    }

    @Test
    void onlyEndpointOfAnotherServiceIsLoggedOnceAndCalledOn() throws Exception {
        try (LocalServer changing = new LocalServer(new LogServer())) {
            List<String> lines = LogLines.during(() -> {
                configure(changing.endpoint());
                for (int i = 0; i < 3; i++) {
                    assertThrows(RetriableRemoteStorageException.class,
                        () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));
                }
            });
            assertEquals(1, lines.stream().filter(line -> line.contains("another service")).count(),
                lines::toString);
        }
    }

    @Test
    void failureNamesAllEndpoints() {
        configure("no-such-host.invalid:1", "none.invalid:2");

        RemoteStorageException failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));

        assertTrue(failure.getMessage().contains(
            "cannot resolve no-such-host.invalid:1, none.invalid:2"), failure.getMessage());
    }

    private void configure(String... endpoints) {
        manager.configure(Map.of(
            "endpoint", String.join(",", endpoints),
            "security.protocol", "PLAINTEXT",
            "node.id", 7));
    }

    private static long figure(ObjectName name, String attribute) {
        try {
            return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(name, attribute);
        } catch (JMException e) {
            throw new AssertionError(e);
        }
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
