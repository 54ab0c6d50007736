package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Channel;
import io.grpc.ManagedChannel;
import io.grpc.StatusException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URL;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The broker's JVM names proxies for every protocol and address: a trap that counts. */
class ProxiesTest {
    private static final String NOBODY = "127.0.0.1:9";

    private final Map<String, String> before = new HashMap<>();
    private final AtomicInteger reached = new AtomicInteger();
    private final ServerSocket trap = listening();

    @BeforeEach
    void nameProxies() {
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    trap.accept().close();
                    reached.incrementAndGet();
                }
            } catch (IOException e) {
                // The test is over.
            }
        });
        thread.setDaemon(true);
        thread.start();
        for (String protocol : new String[] {"http.proxy", "https.proxy", "socksProxy"}) {
            set(protocol + "Host", "127.0.0.1");
            set(protocol + "Port", Integer.toString(trap.getLocalPort()));
        }
        // By default Java uses no proxy for this machine.
        set("http.nonProxyHosts", "");
        set("socksNonProxyHosts", "");
    }

    @AfterEach
    void forgetProxies() throws IOException {
        before.forEach((name, value) -> {
            if (value == null) {
                System.clearProperty(name);
            } else {
                System.setProperty(name, value);
            }
        });
        trap.close();
    }

    @Test
    void theTrapCatchesClientsThatFollowTheJvm() throws Exception {
        assertThrows(IOException.class, () -> new URL("http://" + NOBODY).openStream());
        int byUrl = reached.get();
        assertTrue(byUrl > 0);
        ManagedChannel channel = NettyChannelBuilder.forTarget(NOBODY).usePlaintext().build();
        try {
            assertThrows(StatusException.class, () -> call(channel));
        } finally {
            channel.shutdownNow();
        }
        assertTrue(reached.get() > byUrl);
    }

    @Test
    void servicesAreCalledAtTheirEndpoints() throws Exception {
        try (LocalServer server = new LocalServer(new Ready());
            ServiceChannel channel = new ServiceChannel(
                "RLMM", server.endpoint(), new MetadataManagerConfig(Map.of(
                    "endpoint", "127.0.0.1:1", "security.protocol", "PLAINTEXT")), Map.of())) {
            call(channel.channel());
        }
        assertEquals(0, reached.get());
    }

    @Test
    void storeIsReadAtItsUrl() throws Exception {
        byte[] log = new byte[1000];
        try (ObjectStore store = new ObjectStore();
            InputStream range = new StoreRange(
                OpenedLog.of(
                    Samples.newSegment(0, 1000), LogServer.opened(log, store.put("log", log)), 0), 0, 999)) {
            assertEquals(1000, range.readAllBytes().length);
        }
        assertEquals(0, reached.get());
    }

    private void set(String name, String value) {
        before.put(name, System.getProperty(name));
        System.setProperty(name, value);
    }

    private static void call(Channel channel) throws StatusException {
        RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel)
            .withDeadlineAfter(10, TimeUnit.SECONDS)
            .isReady(IsReadyRequest.getDefaultInstance());
    }

    private static ServerSocket listening() {
        try {
            return new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    private static final class Ready
        extends RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase {
        @Override
        public void isReady(IsReadyRequest request, StreamObserver<IsReadyResponse> answer) {
            answer.onNext(IsReadyResponse.getDefaultInstance());
            answer.onCompleted();
        }
    }
}
