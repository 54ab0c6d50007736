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
import java.util.concurrent.atomic.AtomicInteger;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class CallFiguresTest {
    private static final String CALL = "GetHighestOffsetForEpoch";
    private static final MBeanServer BEANS = ManagementFactory.getPlatformMBeanServer();

    private final Rlmm rlmm = new Rlmm();
    private final LocalServer server = new LocalServer(rlmm);

    @AfterEach
    void stop() {
        server.close();
    }

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

    private static long attribute(ObjectName name, String attribute) {
        try {
            return (long) BEANS.getAttribute(name, attribute);
        } catch (JMException e) {
            throw new AssertionError(name.toString(), e);
        }
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
