package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.Status;
import io.grpc.SynchronizationContext;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.junit.jupiter.api.Test;

class EndpointResolverTest {
    private final Map<String, String> addresses = new HashMap<>();
    private final List<List<String>> results = new ArrayList<>();
    private final List<Status> errors = new ArrayList<>();

    @Test
    void hostThatIsUnknownForAMomentKeepsItsAddresses() throws Exception {
        addresses.putAll(Map.of("a", "192.0.2.1", "b", "192.0.2.2"));
        EndpointResolver resolver = started();
        addresses.remove("a");
        List<String> lines = LogLines.during(resolver::refresh);
        addresses.put("b", "192.0.2.3");
        resolver.refresh();
        addresses.clear();
        resolver.refresh();
        addresses.putAll(Map.of("a", "192.0.2.4", "b", "192.0.2.3"));
        resolver.refresh();

        assertEquals(
            List.of(
                List.of("192.0.2.1", "192.0.2.2"),
                List.of("192.0.2.1", "192.0.2.3"),
                List.of("192.0.2.4", "192.0.2.3")),
            results);
        assertEquals(List.of(), errors);
        assertEquals(1, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("cannot resolve a:1 (of a:1,b:1)"), lines::toString);
    }

    @Test
    void hostsThatWereNeverKnownAreAnError() {
        started();

        assertEquals(List.of(), results);
        assertEquals("cannot resolve a:1, b:1", errors.get(0).getDescription());
    }

    private EndpointResolver started() {
        NameResolver.Args args = NameResolver.Args.newBuilder()
            .setDefaultPort(1)
            .setProxyDetector(target -> null)
            .setSynchronizationContext(new SynchronizationContext((thread, e) -> {
                throw new AssertionError(e);
            }))
            .setServiceConfigParser(new NameResolver.ServiceConfigParser() {
                @Override
                public NameResolver.ConfigOrError parseServiceConfig(Map<String, ?> config) {
                    return NameResolver.ConfigOrError.fromConfig(config);
                }
            })
            .setOffloadExecutor(Runnable::run)
            .build();
        EndpointResolver resolver =
            new EndpointResolver(Endpoint.parseAll("a:1,b:1"), args, this::lookUp);
        resolver.start(new NameResolver.Listener2() {
            @Override
            public void onResult(NameResolver.ResolutionResult result) {
                results.add(result.getAddressesOrError().getValue().stream()
                    .map(EndpointResolverTest::address)
                    .toList());
            }

            @Override
            public void onError(Status error) {
                errors.add(error);
            }
        });
        return resolver;
    }

    private InetAddress[] lookUp(String host) throws UnknownHostException {
        if (!addresses.containsKey(host)) {
            throw new UnknownHostException(host);
        }
        return new InetAddress[] {InetAddress.getByName(addresses.get(host))};
    }

    private static String address(EquivalentAddressGroup group) {
        return ((InetSocketAddress) group.getAddresses().get(0)).getAddress().getHostAddress();
    }
}
