package io.sediment.kafka;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusOr;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Checks where a service listens: {@code host:port} and {@code dns:///host:port}, all addresses of a
 * name, or {@code ipv4:address:port,address:port}. Adds the last form to gRPC for Java, which has
 * only the others.
 */
final class Target {
    private static final String LIST = "ipv4";
    private static final int MAX_PORT = 65_535;
    private static final Pattern HOST_AND_PORT =
        Pattern.compile("(\\[[0-9A-Fa-f:.]+]|[A-Za-z0-9._-]+):([0-9]{1,5})");
    private static final Pattern IPV4 = Pattern.compile("[0-9]{1,3}(\\.[0-9]{1,3}){3}:.*");

    static {
        NameResolverRegistry.getDefaultRegistry().register(new ListProvider());
    }

    private Target() {
    }

    /**
     * Checks a target and makes its form known to gRPC.
     *
     * @throws IllegalArgumentException if the text is no target
     */
    static void require(String text) {
        List<String> parts = text.startsWith(LIST + ":")
            ? addresses(text)
            : List.of(text.replaceFirst("^dns:///", ""));
        if (!parts.stream().allMatch(Target::isHostAndPort)
            || text.startsWith(LIST + ":") && !parts.stream().allMatch(IPV4.asMatchPredicate())
            || parts.stream().distinct().count() < parts.size()) {
            throw new IllegalArgumentException("'" + text + "' is not host:port, such as"
                + " rsm.example.com:9090 or [2001:db8::1]:9090, nor dns:///host:port, nor a list of"
                + " addresses, such as ipv4:192.0.2.1:9090,192.0.2.2:9090");
        }
    }

    private static boolean isHostAndPort(String text) {
        Matcher parts = HOST_AND_PORT.matcher(text);
        return parts.matches()
            && Integer.parseInt(parts.group(2)) >= 1
            && Integer.parseInt(parts.group(2)) <= MAX_PORT;
    }

    private static List<String> addresses(String list) {
        return List.of(list.substring(LIST.length() + 1).split(",", -1));
    }

    /** Resolves a list of addresses to itself. With TLS each has a certificate of its own address. */
    private static NameResolver resolver(List<String> addresses) {
        return new NameResolver() {
            @Override
            public String getServiceAuthority() {
                return addresses.get(0);
            }

            @Override
            public void start(Listener2 listener) {
                listener.onResult2(ResolutionResult.newBuilder()
                    .setAddressesOrError(
                        StatusOr.fromValue(addresses.stream().map(Target::group).toList()))
                    .build());
            }

            @Override
            public void shutdown() {
                // Nothing is active.
            }
        };
    }

    private static EquivalentAddressGroup group(String address) {
        int colon = address.indexOf(':');
        return new EquivalentAddressGroup(
            new InetSocketAddress(
                address.substring(0, colon), Integer.parseInt(address.substring(colon + 1))),
            Attributes.newBuilder()
                .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, address)
                .build());
    }

    private static final class ListProvider extends NameResolverProvider {
        // Lower than gRPC's own resolver of DNS, which stays the default.
        private static final int PRIORITY = 4;

        @Override
        public NameResolver newNameResolver(URI target, NameResolver.Args args) {
            return LIST.equals(target.getScheme()) ? resolver(addresses(target.toString())) : null;
        }

        @Override
        public String getDefaultScheme() {
            return LIST;
        }

        @Override
        protected boolean isAvailable() {
            return true;
        }

        @Override
        protected int priority() {
            return PRIORITY;
        }
    }
}
