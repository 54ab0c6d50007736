package io.sediment.kafka;

import java.util.Map;

import org.apache.kafka.common.config.ConfigDef;

/** Settings of {@link SedimentRemoteLogMetadataManager}: the broker's {@code rlmm.config.*}. */
final class MetadataManagerConfig extends ServiceConfig {
    static final String PREFIX = "rlmm.config.";
    private static final int UNKNOWN = -1;
    private static final String NODE_ID = PREFIX + "node.id";
    private static final String BROKER_ID = PREFIX + "broker.id";
    private static final ConfigDef DEFINITION = definition(PREFIX, "RLMM")
        .define(
            NODE_ID,
            ConfigDef.Type.INT,
            UNKNOWN,
            ConfigDef.Importance.LOW,
            "The broker's id; the broker sets it.")
        .define(
            BROKER_ID,
            ConfigDef.Type.INT,
            UNKNOWN,
            ConfigDef.Importance.LOW,
            "The broker's id under the name that it has before Kafka 4.4 (KIP-1232).");

    private final int brokerId;

    MetadataManagerConfig(Map<String, ?> configs) {
        super(DEFINITION, PREFIX, configs);
        int nodeId = getInt(NODE_ID);
        brokerId = nodeId == UNKNOWN ? getInt(BROKER_ID) : nodeId;
    }

    /** The broker's id; -1 if the broker did not set it. */
    int brokerId() {
        return brokerId;
    }
}
