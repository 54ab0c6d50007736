package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Channel;
import io.grpc.StatusException;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.Test;

class ServiceChannelTest {
    // Without a bound gRPC waits longer and longer: the tenth attempt comes after 40 seconds.
    private static final int ATTEMPTS = 10;
    private static final int ATTEMPTS_TIMEOUT_S = 30;

    @Test
    void serviceThatIsAwayIsTriedEveryFewSeconds() throws Exception {
        CountDownLatch attempts = new CountDownLatch(ATTEMPTS);
        try (ServerSocket hangsUp = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
            ServiceChannel channel = new ServiceChannel(
                "RLMM", "127.0.0.1:" + hangsUp.getLocalPort(), new MetadataManagerConfig(Map.of(
                    "endpoint", "127.0.0.1:1", "security.protocol", "PLAINTEXT")), Map.of())) {
            Thread acceptor = new Thread(() -> {
                try {
                    while (true) {
                        hangsUp.accept().close();
                        attempts.countDown();
                    }
                } catch (java.io.IOException e) {
                    // The test is over.
                }
            });
            acceptor.setDaemon(true);
            acceptor.start();
            long deadlineNanos = System.nanoTime() + TimeUnit.SECONDS.toNanos(ATTEMPTS_TIMEOUT_S);
            while (attempts.getCount() > 0 && System.nanoTime() < deadlineNanos) {
                call(channel.channel());
                attempts.await(500, TimeUnit.MILLISECONDS);
            }
            assertTrue(attempts.getCount() == 0, attempts.getCount() + " attempts are missing");
        }
    }

    private static void call(Channel channel) {
        try {
            RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel)
                .withDeadlineAfter(1, TimeUnit.SECONDS)
                .isReady(IsReadyRequest.getDefaultInstance());
        } catch (StatusException e) {
            // Nobody is there.
        }
    }
}
