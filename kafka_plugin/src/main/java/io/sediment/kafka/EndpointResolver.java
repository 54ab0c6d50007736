package io.sediment.kafka;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.StatusOr;
import io.grpc.SynchronizationContext;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Resolves several endpoints to all their addresses, without those at which another service listens
 * unless no other is left. With TLS each address must have a certificate
 * of its own endpoint. If a host cannot be resolved, the failure is logged once, and its last
 * addresses are kept: the connections to them may be in order.
 */
final class EndpointResolver extends NameResolver {
    private static final Logger LOG = LoggerFactory.getLogger(EndpointResolver.class);
    private static final String SCHEME = "sediment";
    /** The addresses to leave out; set by the channel. */
    static final Args.Key<WrongEndpoints> WRONG_ENDPOINTS =
        Args.Key.create("sediment.wrong-endpoints");

    private final List<Endpoint> endpoints;
    private final Executor executor;
    private final SynchronizationContext channel;
    private final Hosts hosts;
    private final Optional<WrongEndpoints> wrong;
    private final AtomicBoolean busy = new AtomicBoolean();
    // Read and written by one resolution at a time.
    private final Map<Endpoint, List<EquivalentAddressGroup>> last = new ConcurrentHashMap<>();
    private Listener2 listener;
    // Used in the channel's context, as the next two.
    private List<EquivalentAddressGroup> known = List.of();
    private List<EquivalentAddressGroup> resolved = List.of();
    private String warned = "";

    static {
        NameResolverRegistry.getDefaultRegistry().register(new Provider());
    }

    /** Looks up the addresses of a host. */
    interface Hosts {
        InetAddress[] addresses(String host) throws UnknownHostException;
    }

    EndpointResolver(List<Endpoint> endpoints, Args args, Hosts hosts) {
        this.endpoints = endpoints;
        this.hosts = hosts;
        executor = args.getOffloadExecutor();
        channel = args.getSynchronizationContext();
        wrong = Optional.ofNullable(args.getArg(WRONG_ENDPOINTS));
    }

    /** Makes the target of a channel to these endpoints. */
    static String target(List<Endpoint> endpoints) {
        try {
            return new URI(SCHEME, null, "/" + Endpoint.join(endpoints), null).toString();
        } catch (URISyntaxException e) {
            throw new IllegalArgumentException(e);
        }
    }

    @Override
    public String getServiceAuthority() {
        return endpoints.get(0).toString();
    }

    @Override
    public void start(Listener2 addressListener) {
        listener = addressListener;
        wrong.ifPresent(each -> each.whenFound(() -> channel.execute(this::publish)));
        refresh();
    }

    @Override
    public void refresh() {
        if (busy.compareAndSet(false, true)) {
            executor.execute(this::resolve);
        }
    }

    @Override
    public void shutdown() {
        // An active resolution ends by itself; the channel ignores its result.
    }

    private void resolve() {
        List<EquivalentAddressGroup> found = new ArrayList<>();
        List<String> unknown = new ArrayList<>();
        for (Endpoint endpoint : endpoints) {
            try {
                last.put(endpoint, Stream.of(hosts.addresses(endpoint.host()))
                    .map(address -> group(endpoint, address))
                    .toList());
            } catch (UnknownHostException e) {
                unknown.add(endpoint.toString());
            }
            found.addAll(last.getOrDefault(endpoint, List.of()));
        }
        channel.execute(() -> {
            busy.set(false);
            report(found, unknown);
        });
    }

    private List<EquivalentAddressGroup> withoutWrong() {
        List<EquivalentAddressGroup> right = known.stream()
            .filter(group -> wrong.isEmpty() || !wrong.get().isLeftOut(group.getAddresses().get(0)))
            .toList();
        return right.isEmpty() ? known : right;
    }

    private void report(List<EquivalentAddressGroup> found, List<String> unknown) {
        String problem = unknown.isEmpty() ? "" : "cannot resolve " + String.join(", ", unknown);
        known = found;
        if (found.isEmpty()) {
            resolved = List.of();
            listener.onError(Status.UNAVAILABLE.withDescription(problem));
            return;
        }
        if (!problem.equals(warned) && !problem.isEmpty()) {
            LOG.warn("{} (of {}); using their last addresses, if any, and the other endpoints,"
                + " and retrying every 2 s", problem, Endpoint.join(endpoints));
        }
        warned = problem;
        publish();
    }

    /** Hands the addresses to the channel if it has others. Looks up no host. */
    private void publish() {
        List<EquivalentAddressGroup> right = withoutWrong();
        if (!right.isEmpty() && !right.equals(resolved)) {
            resolved = right;
            listener.onResult2(ResolutionResult.newBuilder()
                .setAddressesOrError(StatusOr.fromValue(right))
                .build());
        }
    }

    private static EquivalentAddressGroup group(Endpoint endpoint, InetAddress address) {
        return new EquivalentAddressGroup(
            new InetSocketAddress(address, endpoint.port()),
            Attributes.newBuilder()
                .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, endpoint.toString())
                .build());
    }

    /** Makes resolvers for targets of {@link #target}. */
    private static final class Provider extends NameResolverProvider {
        // Lower than gRPC's own resolver of DNS, which stays the default.
        private static final int PRIORITY = 4;

        @Override
        public NameResolver newNameResolver(URI target, Args args) {
            if (!SCHEME.equals(target.getScheme())) {
                return null;
            }
            return new EndpointResolver(
                Endpoint.parseAll(target.getPath().substring(1)),
                args,
                InetAddress::getAllByName);
        }

        @Override
        public String getDefaultScheme() {
            return SCHEME;
        }

        @Override
        public Collection<Class<? extends SocketAddress>> getProducedSocketAddressTypes() {
            return Set.of(InetSocketAddress.class);
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
