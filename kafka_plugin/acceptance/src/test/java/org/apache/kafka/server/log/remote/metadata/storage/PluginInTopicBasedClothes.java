package org.apache.kafka.server.log.remote.metadata.storage;

import java.io.IOException;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Another plugin under the type that Kafka's tests ask for. Nothing topic-based is ever started:
 * every call goes to the plugin and every answer comes from it.
 *
 * <p>Kafka's tests also look at what their store was told, so it is told of each event after the
 * plugin has taken it. It cannot answer: no partition in it is ever marked initialized, without
 * which its reads fail.
 */
final class PluginInTopicBasedClothes extends TopicBasedRemoteLogMetadataManager {
    private final RemoteLogMetadataManager plugin;
    private final RemotePartitionMetadataStore store;

    PluginInTopicBasedClothes(RemoteLogMetadataManager plugin, RemotePartitionMetadataStore store) {
        super(RemoteLogMetadataTopicPartitioner::new, () -> store);
        this.plugin = plugin;
        this.store = store;
    }

    @Override
    public CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata metadata)
            throws RemoteStorageException {
        return plugin.addRemoteLogSegmentMetadata(metadata)
                .thenRun(() -> store.handleRemoteLogSegmentMetadata(metadata));
    }

    @Override
    public CompletableFuture<Void> updateRemoteLogSegmentMetadata(
            RemoteLogSegmentMetadataUpdate update) throws RemoteStorageException {
        return plugin.updateRemoteLogSegmentMetadata(update)
                .thenRun(() -> store.handleRemoteLogSegmentMetadataUpdate(update));
    }

    @Override
    public CompletableFuture<Void> putRemotePartitionDeleteMetadata(
            RemotePartitionDeleteMetadata metadata) throws RemoteStorageException {
        return plugin.putRemotePartitionDeleteMetadata(metadata)
                .thenRun(() -> store.handleRemotePartitionDeleteMetadata(metadata));
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(
            TopicIdPartition partition, int epochForOffset, long offset)
            throws RemoteStorageException {
        return plugin.remoteLogSegmentMetadata(partition, epochForOffset, offset);
    }

    @Override
    public Optional<Long> highestOffsetForEpoch(TopicIdPartition partition, int leaderEpoch)
            throws RemoteStorageException {
        return plugin.highestOffsetForEpoch(partition, leaderEpoch);
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition)
            throws RemoteStorageException {
        return plugin.listRemoteLogSegments(partition);
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(
            TopicIdPartition partition, int leaderEpoch) throws RemoteStorageException {
        return plugin.listRemoteLogSegments(partition, leaderEpoch);
    }

    @Override
    public long remoteLogSize(TopicIdPartition partition, int leaderEpoch)
            throws RemoteStorageException {
        return plugin.remoteLogSize(partition, leaderEpoch);
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(
            TopicIdPartition partition, int epoch, long offset) throws RemoteStorageException {
        return plugin.nextSegmentWithTxnIndex(partition, epoch, offset);
    }

    @Override
    public boolean isReady(TopicIdPartition partition) {
        return plugin.isReady(partition);
    }

    @Override
    public void onPartitionLeadershipChanges(
            Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) {
        plugin.onPartitionLeadershipChanges(leaders, followers);
        leaders.forEach(store::maybeLoadPartition);
        followers.forEach(store::maybeLoadPartition);
    }

    @Override
    public void onStopPartitions(Set<TopicIdPartition> partitions) {
        plugin.onStopPartitions(partitions);
    }

    /** The plugin was configured when it was made; Kafka's manager skips a second time too. */
    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public void onBrokerReady() {
    }

    @Override
    boolean isInitialized() {
        return true;
    }

    @Override
    public void close() throws IOException {
        plugin.close();
    }
}
