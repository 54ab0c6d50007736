package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.BindableService;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.IsReadyRequest;
import io.sediment.tieredstorage.v1.IsReadyResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.WatchPartitionsRequest;
import io.sediment.tieredstorage.v1.WatchPartitionsResponse;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class FewestCallsTest {
    private static final int MOST_CONNECTIONS = 4;

    private final Rlmm rlmm = new Rlmm();
    private final Rlmm otherRlmm = new Rlmm();
    private final LocalServer server = new LocalServer(rlmm);
    private final LocalServer other = new LocalServer(otherRlmm);
    private final List<ServiceChannel> opened = new ArrayList<>();

    @AfterEach
    void stop() {
        opened.forEach(ServiceChannel::close);
        server.close();
        other.close();
    }

    @Test
    void oneCallAfterTheOtherTakesOneConnection() throws Exception {
        ServiceChannel channel = open(server.endpoint());

        for (int i = 0; i < 50; i++) {
            ask(channel);
        }

        assertEquals(1, rlmm.connections());
    }

    @Test
    void concurrentCallsTakeFourConnectionsAndNoMore() {
        ServiceChannel channel = open(server.endpoint());

        hold(channel, 5 * MOST_CONNECTIONS);

        Map<SocketAddress, Long> held = rlmm.held.stream()
            .collect(Collectors.groupingBy(from -> from, Collectors.counting()));
        assertEquals(MOST_CONNECTIONS, held.size(), held.toString());
        // The first ones were alone on theirs while the others were opened.
        assertTrue(held.values().stream().allMatch(calls -> calls >= 3), held.toString());
        assertEquals(MOST_CONNECTIONS, rlmm.connections());
    }

    @Test
    void callsThatHaveEndedMakeRoom() throws Exception {
        ServiceChannel channel = open(server.endpoint());
        hold(channel, 1);
        assertEventually(
            () -> reaches(channel, rlmm) && rlmm.connections() == 2, "a second connection");
        SocketAddress busy = rlmm.held.get(0);
        rlmm.asked.clear();

        for (int i = 0; i < 20; i++) {
            ask(channel);
        }

        assertTrue(!rlmm.asked.contains(busy), "a call took the connection that had one");
        assertEquals(2, rlmm.connections());
    }

    @Test
    void callsGoToAServerThatIsBackWhenTheOtherStops() throws Exception {
        ServiceChannel channel = open("ipv4:" + server.endpoint() + "," + other.endpoint());
        hold(channel, 8 * MOST_CONNECTIONS);
        assertEventually(() -> rlmm.connections() == MOST_CONNECTIONS, "all connections");
        assertEventually(() -> otherRlmm.connections() == MOST_CONNECTIONS, "all connections");

        server.stop();
        server.startAgain();
        // Each of the four tries the server again by itself: one has it, the others wait still.
        assertEventually(() -> reaches(channel, rlmm), "a call at the server that is back");
        other.stop();
        // A call that is on its way when a connection ends fails, by whatever policy.
        assertEventually(() -> reaches(channel, rlmm), "a call after the stop");

        for (int i = 0; i < 20; i++) {
            ask(channel);
        }
    }

    private ServiceChannel open(String target) {
        ServiceChannel channel = new ServiceChannel("RLMM", target, new MetadataManagerConfig(
            Map.of("endpoint", "127.0.0.1:1", "security.protocol", "PLAINTEXT")), Map.of());
        opened.add(channel);
        return channel;
    }

    private void hold(ServiceChannel channel, int calls) {
        for (int i = 0; i < calls; i++) {
            int held = rlmm.held.size() + otherRlmm.held.size();
            RemoteLogMetadataManagerGrpc.newStub(channel.channel())
                .watchPartitions(WatchPartitionsRequest.getDefaultInstance(), new Ignored<>());
            assertEventually(
                () -> rlmm.held.size() + otherRlmm.held.size() > held, "the call arrives");
        }
    }

    private static void ask(ServiceChannel channel) throws StatusException {
        RemoteLogMetadataManagerGrpc.newBlockingV2Stub(channel.channel())
            .isReady(IsReadyRequest.getDefaultInstance());
    }

    private static boolean reaches(ServiceChannel channel, Rlmm which) {
        int before = which.asked.size();
        try {
            ask(channel);
        } catch (StatusException e) {
            if (e.getStatus().getCode() == Status.Code.UNAVAILABLE) {
                return false;
            }
            throw new AssertionError(e);
        }
        return which.asked.size() > before;
    }

    /** Answers one kind of calls, holds the other kind, and knows the connection of each. */
    private static final class Rlmm implements BindableService {
        private static final Context.Key<SocketAddress> FROM = Context.key("from");
        private final List<SocketAddress> asked = new CopyOnWriteArrayList<>();
        private final List<SocketAddress> held = new CopyOnWriteArrayList<>();

        long connections() {
            return Stream.concat(asked.stream(), held.stream()).distinct().count();
        }

        @Override
        public ServerServiceDefinition bindService() {
            return ServerInterceptors.intercept(new Service(), new ServerInterceptor() {
                @Override
                public <Q, T> ServerCall.Listener<Q> interceptCall(
                    ServerCall<Q, T> call, Metadata headers, ServerCallHandler<Q, T> next
                ) {
                    SocketAddress from =
                        call.getAttributes().get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR);
                    return Contexts.interceptCall(
                        Context.current().withValue(FROM, from), call, headers, next);
                }
            });
        }

        private final class Service extends RemoteLogMetadataManagerImplBase {
            @Override
            public void isReady(
                IsReadyRequest request, StreamObserver<IsReadyResponse> answer
            ) {
                asked.add(FROM.get());
                answer.onNext(IsReadyResponse.getDefaultInstance());
                answer.onCompleted();
            }

            @Override
            public void watchPartitions(
                WatchPartitionsRequest request, StreamObserver<WatchPartitionsResponse> answer
            ) {
                held.add(FROM.get());
            }
        }
    }

    private static final class Ignored<T> implements StreamObserver<T> {
        @Override
        public void onNext(T message) {
            // Nothing depends on it.
        }

        @Override
        public void onError(Throwable cause) {
            // The test ends.
        }

        @Override
        public void onCompleted() {
            // As above.
        }
    }
}
