package io.sediment.kafka;

import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.config.ConfigDef;

/** Settings of {@link SedimentRemoteLogMetadataManager}: the broker's {@code rlmm.config.*}. */
final class MetadataManagerConfig extends ServiceConfig {
    static final String PREFIX = "rlmm.config.";
    private static final int UNKNOWN = -1;
    private static final String NODE_ID = PREFIX + "node.id";
    private static final String BROKER_ID = PREFIX + "broker.id";
    private static final String CLUSTER_ID = PREFIX + "cluster.id";
    private static final String METADATA_MAX_AGE_MS = PREFIX + "metadata.max.age.ms";
    private static final int DEFAULT_METADATA_MAX_AGE_MS = 300_000;
    private static final ConfigDef DEFINITION = definition(PREFIX, "RLMM")
        .define(METADATA_MAX_AGE_MS, ConfigDef.Type.INT, DEFAULT_METADATA_MAX_AGE_MS,
            ConfigDef.Range.atLeast(0), ConfigDef.Importance.LOW,
            "For how long consumers may keep reading segments looked up before, while RLMM is"
                + " away; 0 lets every such read fail.")
        .define(NODE_ID, ConfigDef.Type.INT, UNKNOWN, ConfigDef.Importance.LOW,
            "The broker's id; the broker sets it.")
        .define(BROKER_ID, ConfigDef.Type.INT, UNKNOWN, ConfigDef.Importance.LOW,
            "The broker's id under the name that it has before Kafka 4.4 (KIP-1232).")
        .define(CLUSTER_ID, ConfigDef.Type.STRING, null, ConfigDef.Importance.LOW,
            "The id of the broker's cluster; the broker sets it.");

    MetadataManagerConfig(Map<String, ?> configs) {
        super(DEFINITION, PREFIX, configs);
    }

    /** Returns for how long answers of RLMM may be used while it is away. */
    int metadataMaxAgeMs() {
        return getInt(METADATA_MAX_AGE_MS);
    }

    /** Returns the broker's id; -1 if the broker did not set it. */
    int brokerId() {
        int nodeId = getInt(NODE_ID);
        return nodeId == UNKNOWN ? getInt(BROKER_ID) : nodeId;
    }

    /** Returns the id of the broker's cluster; empty if the broker did not set it. */
    Optional<String> clusterId() {
        return Optional.ofNullable(getString(CLUSTER_ID)).filter(id -> !id.isBlank());
    }
}
