package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import java.lang.management.ManagementFactory;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;

import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class PluginFiguresTest {
    private static final String CALL = "GetHighestOffsetForEpoch";
    private static final MBeanServer BEANS = ManagementFactory.getPlatformMBeanServer();

    private final Rlmm rlmm = new Rlmm();
    private final LocalServer server = new LocalServer(rlmm);
    private final Metrics metrics = new Metrics();

    @AfterEach
    void stop() {
        metrics.close();
        server.close();
    }

    @Test
    void callsFailuresAndRepeatsAreAmongTheBrokersMetrics() throws Exception {
        SedimentRemoteLogMetadataManager manager = new SedimentRemoteLogMetadataManager();
        manager.configure(server.settings("node.id", 7));
        try (Plugin<SedimentRemoteLogMetadataManager> plugin =
            Plugin.wrapInstance(manager, metrics, "remote.log.metadata.manager.class.name")) {
            manager.highestOffsetForEpoch(Samples.PARTITION, 0);
            rlmm.refusals.set(1);
            manager.highestOffsetForEpoch(Samples.PARTITION, 0);
            rlmm.refusals.set(3);
            assertThrows(RemoteStorageException.class,
                () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));

            assertEquals(3L, figure("calls-total"));
            assertEquals(3L, figure("call-repeats-total"));
            assertEventually(() -> figure("call-failures-total") == 1L, "the failure is counted");
            assertTrue(names().contains("look-up-hits-total"), names()::toString);
        }
        assertEquals(Set.of(), names());
    }

    /** As in a broker with class.path, which does not give the plugin its metrics. */
    @Test
    void callsFailuresAndRepeatsAreInJmxUntilTheManagerIsClosed() throws Exception {
        ObjectName name =
            new ObjectName("io.sediment.kafka:type=Calls,broker=8,service=RLMM,call=" + CALL);
        try (SedimentRemoteLogMetadataManager manager = new SedimentRemoteLogMetadataManager()) {
            manager.configure(server.settings("node.id", 8));
            manager.highestOffsetForEpoch(Samples.PARTITION, 0);
            rlmm.refusals.set(3);
            assertThrows(RemoteStorageException.class,
                () -> manager.highestOffsetForEpoch(Samples.PARTITION, 0));

            assertEquals(2L, attribute(name, "Calls"));
            assertEquals(2L, attribute(name, "Repeats"));
            assertEventually(() -> attribute(name, "Failures") == 1L, "the failure is counted");
            assertTrue(attribute(name, "TimeMs") > 0);
        }
        assertFalse(BEANS.isRegistered(name));
    }

    @Test
    void whatTheReadAheadHoldsIsAmongTheBrokersMetrics() throws Exception {
        SedimentRemoteStorageManager manager = new SedimentRemoteStorageManager();
        manager.configure(server.settings("broker.id", 7, "direct.reads", true));
        try (Plugin<SedimentRemoteStorageManager> plugin =
            Plugin.wrapInstance(manager, metrics, "remote.log.storage.manager.class.name")) {
            assertTrue(names().containsAll(
                Set.of("read-ahead-held-bytes", "read-ahead-disk-held-bytes",
                    "read-ahead-disk-hits-total", "read-ahead-disk-failures-total",
                    "direct-read-bytes-total")), names()::toString);
        }
    }

    private static long attribute(ObjectName name, String attribute) {
        try {
            return (long) BEANS.getAttribute(name, attribute);
        } catch (JMException e) {
            throw new AssertionError(name.toString(), e);
        }
    }

    private long figure(String name) {
        return metrics.metrics().entrySet().stream()
            .filter(entry -> entry.getKey().name().equals(name))
            .filter(entry -> CALL.equals(entry.getKey().tags().get("call")))
            .map(entry -> (long) entry.getValue().metricValue())
            .findFirst()
            .orElseThrow();
    }

    private Set<String> names() {
        return metrics.metrics().keySet().stream()
            .filter(name -> name.group().equals("plugins"))
            .map(name -> name.name())
            .collect(Collectors.toSet());
    }

    /** Refuses as many calls as {@code refusals} says. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final AtomicInteger refusals = new AtomicInteger();

        @Override
        public void getHighestOffsetForEpoch(
            GetHighestOffsetForEpochRequest request,
            StreamObserver<GetHighestOffsetForEpochResponse> answer
        ) {
            if (refusals.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) {
                answer.onError(Status.UNAVAILABLE.asRuntimeException());
            } else {
                answer.onNext(GetHighestOffsetForEpochResponse.getDefaultInstance());
                answer.onCompleted();
            }
        }
    }
}
