package io.sediment.kafka;

import java.util.Map;

import org.apache.kafka.common.config.ConfigDef;

/** Settings of {@link SedimentRemoteStorageManager}: the broker's {@code rsm.config.*}. */
final class StorageManagerConfig extends ServiceConfig {
    static final String PREFIX = "rsm.config.";
    private static final String PROGRESS_TIMEOUT_MS = PREFIX + "progress.timeout.ms";
    private static final int DEFAULT_PROGRESS_TIMEOUT_MS = 60_000;
    private static final ConfigDef DEFINITION = definition(PREFIX, "RSM")
        .define(
            PROGRESS_TIMEOUT_MS,
            ConfigDef.Type.INT,
            DEFAULT_PROGRESS_TIMEOUT_MS,
            ConfigDef.Range.atLeast(1),
            ConfigDef.Importance.LOW,
            "How long a copy or a read that RSM has taken up may stand still before it is ended.");

    private final int progressTimeoutMs;

    StorageManagerConfig(Map<String, ?> configs) {
        super(DEFINITION, PREFIX, configs);
        progressTimeoutMs = getInt(PROGRESS_TIMEOUT_MS);
    }

    /** How long a stream that RSM has taken up may move no message before it is ended. */
    int progressTimeoutMs() {
        return progressTimeoutMs;
    }
}
