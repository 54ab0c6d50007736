package io.sediment.kafka;

import static io.grpc.ConnectivityState.IDLE;
import static io.grpc.ConnectivityState.READY;

import io.grpc.ClientStreamTracer;
import io.grpc.ConnectivityState;
import io.grpc.LoadBalancer;
import io.grpc.LoadBalancerProvider;
import io.grpc.LoadBalancerRegistry;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.util.ForwardingLoadBalancerHelper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Spreads calls over up to four sets of connections, each with one to every address: behind an
 * address may be several processes of a service, and a connection leads to one of them. A call goes
 * to the set with the fewest calls; when all have some, another is opened. A set without a
 * connection gets no call while another has one: each waits by itself before it tries again.
 */
final class FewestCalls extends LoadBalancer {
    private static final int SETS = 4;

    private final AtomicInteger turn = new AtomicInteger();
    private final Helper helper;
    // These belong to gRPC's synchronization context.
    private final List<Connections> sets = new ArrayList<>();
    private ResolvedAddresses addresses;

    private FewestCalls(Helper helper) {
        this.helper = helper;
        sets.add(new Connections());
    }

    @Override
    public Status acceptResolvedAddresses(ResolvedAddresses resolved) {
        addresses = resolved;
        // All say the same of the same addresses.
        return sets.stream()
            .map(set -> set.inTurn.acceptResolvedAddresses(resolved)).toList().get(0);
    }

    @Override
    public void handleNameResolutionError(Status error) {
        sets.forEach(set -> set.inTurn.handleNameResolutionError(error));
    }

    @Override
    public void shutdown() {
        sets.forEach(set -> set.inTurn.shutdown());
        addresses = null;
    }

    private void openAnother() {
        boolean haveAll = sets.stream().allMatch(set -> set.state == READY);
        if (haveAll && sets.size() < SETS && addresses != null) {
            Connections opened = new Connections();
            sets.add(opened);
            opened.inTurn.acceptResolvedAddresses(addresses);
        }
    }

    /** One connection to each address, which get calls in turn. */
    private final class Connections extends ForwardingLoadBalancerHelper {
        private final LoadBalancer inTurn = LoadBalancerRegistry.getDefaultRegistry()
            .getProvider("round_robin").newLoadBalancer(this);
        private final AtomicInteger calls = new AtomicInteger();
        private ConnectivityState state = IDLE;
        private volatile SubchannelPicker picker;
        private final ClientStreamTracer.Factory counter = new ClientStreamTracer.Factory() {
            @Override
            public ClientStreamTracer newClientStreamTracer(
                ClientStreamTracer.StreamInfo info, Metadata headers
            ) {
                return new ClientStreamTracer() {
                    private int counted;

                    @Override
                    public void outboundHeaders() {
                        // Not before: gRPC drops some calls that wait, and reports no end of them.
                        counted = 1;
                        calls.incrementAndGet();
                    }

                    @Override
                    public void streamClosed(Status status) {
                        calls.addAndGet(-counted);
                    }
                };
            }
        };

        @Override
        protected Helper delegate() {
            return helper;
        }

        @Override
        public void updateBalancingState(ConnectivityState newState, SubchannelPicker newPicker) {
            state = newState;
            picker = newPicker;
            List<Connections> ready = sets.stream().filter(set -> set.state == READY).toList();
            // While none is connected the first says whether calls wait or fail.
            List<Connections> best = ready.isEmpty() ? List.of(sets.get(0)) : ready;
            helper.updateBalancingState(best.get(0).state, new SubchannelPicker() {
                @Override
                public PickResult pickSubchannel(PickSubchannelArgs arguments) {
                    List<Connections> equals = new ArrayList<>(best);
                    Collections.rotate(equals, turn.getAndIncrement());
                    Connections fewest =
                        Collections.min(equals, Comparator.comparingInt(set -> set.calls.get()));
                    if (fewest.calls.get() > 0) {
                        helper.getSynchronizationContext().execute(FewestCalls.this::openAnother);
                    }
                    return fewest.picker.pickSubchannel(arguments)
                        .copyWithStreamTracerFactory(fewest.counter);
                }
            });
        }
    }

    /** Gives the policy to gRPC, which finds it by its name. */
    static final class Provider extends LoadBalancerProvider {
        static final String POLICY = "fewest_calls";

        @Override
        public boolean isAvailable() {
            return true;
        }

        @Override
        public int getPriority() {
            return 0;
        }

        @Override
        public String getPolicyName() {
            return POLICY;
        }

        @Override
        public LoadBalancer newLoadBalancer(Helper helper) {
            return new FewestCalls(helper);
        }
    }
}
