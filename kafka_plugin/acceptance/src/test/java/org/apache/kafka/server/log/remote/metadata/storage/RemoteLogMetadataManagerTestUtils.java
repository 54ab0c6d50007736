package org.apache.kafka.server.log.remote.metadata.storage;

import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;

import io.sediment.acceptance.BrokerPlugins;

/**
 * Stands before the class of this name in Kafka's test jar, so that Kafka's test classes get their
 * manager here. What it builds is the plugin's.
 *
 * <p>Each case of Kafka's has a new cluster and so an empty metadata topic, and
 * RemoteLogMetadataManagerTest relies on that: all its cases use one partition. The services
 * outlive the clusters, so the managers built one after another go round the endpoints of
 * {@code kafka.cases.endpoints}, each an RLMM on a database of its own: as many are needed as that
 * class has runs.
 */
public final class RemoteLogMetadataManagerTestUtils {
    private static final List<String> ENDPOINTS = BrokerPlugins.list("kafka.cases.endpoints");
    private static Iterator<String> next = ENDPOINTS.iterator();

    private RemoteLogMetadataManagerTestUtils() {
    }

    public static Builder builder() {
        return new Builder();
    }

    private static synchronized String nextEndpoint() {
        if (!next.hasNext()) {
            next = ENDPOINTS.iterator();
        }
        return next.next();
    }

    /** Takes what Kafka's takes; of it only the store has a meaning without a metadata topic. */
    public static final class Builder {
        private Supplier<RemotePartitionMetadataStore> store = RemotePartitionMetadataStore::new;

        private Builder() {
        }

        public Builder bootstrapServers(String ignored) {
            return this;
        }

        public Builder remotePartitionMetadataStore(
                Supplier<RemotePartitionMetadataStore> supplier) {
            store = supplier;
            return this;
        }

        public Builder remoteLogMetadataTopicPartitioner(
                Function<Integer, RemoteLogMetadataTopicPartitioner> ignored) {
            return this;
        }

        public Builder overrideRemoteLogMetadataManagerProps(Map<String, Object> ignored) {
            return this;
        }

        public TopicBasedRemoteLogMetadataManager build() {
            return new PluginInTopicBasedClothes(
                    BrokerPlugins.metadataManager(nextEndpoint()), store.get());
        }
    }
}
