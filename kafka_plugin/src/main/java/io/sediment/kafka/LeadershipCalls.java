package io.sediment.kafka;

import io.grpc.StatusException;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesRequest;
import io.sediment.tieredstorage.v1.OnStopPartitionsRequest;
import io.sediment.tieredstorage.v1.PartitionLeadership;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerBlockingV2Stub;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;

import org.apache.kafka.common.TopicIdPartition;

/** The two calls of {@link LeadershipNotices}. No leader epoch is sent: the interface has none. */
final class LeadershipCalls implements LeadershipNotices.Sender {
    private final Supplier<RemoteLogMetadataManagerBlockingV2Stub> stub;
    private final int brokerId;
    private final Optional<String> clusterId;

    /**
     * @param stub gives a stub with a fresh deadline
     * @param clusterId of the broker's cluster, by which an RLM knows whose the topics are
     */
    LeadershipCalls(
        Supplier<RemoteLogMetadataManagerBlockingV2Stub> stub,
        int brokerId,
        Optional<String> clusterId
    ) {
        this.stub = stub;
        this.brokerId = brokerId;
        this.clusterId = clusterId;
    }

    @Override
    public void onPartitionLeadershipChanges(Map<TopicIdPartition, LeadershipNotices.Role> roles)
        throws StatusException {
        OnPartitionLeadershipChangesRequest.Builder request =
            OnPartitionLeadershipChangesRequest.newBuilder().setBrokerId(brokerId);
        clusterId.ifPresent(request::setClusterId);
        roles.forEach((partition, role) -> {
            PartitionLeadership leadership = PartitionLeadership.newBuilder()
                .setTopicIdPartition(Conversions.toMessage(partition))
                .build();
            switch (role) {
                case LEADER -> request.addLeaders(leadership);
                case FOLLOWER -> request.addFollowers(leadership);
            }
        });
        stub.get().onPartitionLeadershipChanges(request.build());
    }

    @Override
    public void onStopPartitions(Set<TopicIdPartition> partitions) throws StatusException {
        OnStopPartitionsRequest.Builder request =
            OnStopPartitionsRequest.newBuilder().setBrokerId(brokerId);
        partitions.forEach(partition -> request.addPartitions(Conversions.toMessage(partition)));
        stub.get().onStopPartitions(request.build());
    }
}
