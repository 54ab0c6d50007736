package io.sediment.kafka;

import java.util.Map;

import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/** Settings of {@link SedimentRemoteStorageManager}: the broker's {@code rsm.config.*}. */
final class StorageManagerConfig extends ServiceConfig {
    static final String PREFIX = "rsm.config.";
    private static final String PROGRESS_TIMEOUT_MS = PREFIX + "progress.timeout.ms";
    private static final int DEFAULT_PROGRESS_TIMEOUT_MS = 60_000;
    private static final String READ_AHEAD_MAX_BYTES = PREFIX + "read.ahead.max.bytes";
    private static final long DEFAULT_READ_AHEAD_MAX_BYTES = 96L * 1024 * 1024;
    private static final String DIRECT_READS = PREFIX + "direct.reads";
    private static final ConfigDef DEFINITION = definition(PREFIX, "RSM")
        .define(
            PROGRESS_TIMEOUT_MS,
            ConfigDef.Type.INT,
            DEFAULT_PROGRESS_TIMEOUT_MS,
            ConfigDef.Range.atLeast(1),
            ConfigDef.Importance.LOW,
            "How long a copy or a read that RSM has taken up may stand still before it is ended.")
        .define(
            READ_AHEAD_MAX_BYTES,
            ConfigDef.Type.LONG,
            DEFAULT_READ_AHEAD_MAX_BYTES,
            ConfigDef.Range.atLeast(0),
            ConfigDef.Importance.MEDIUM,
            "How many bytes of logs to hold in the broker's heap for all sequential readers; 0"
                + " reads nothing ahead.")
        .define(
            DIRECT_READS,
            ConfigDef.Type.BOOLEAN,
            false,
            ConfigDef.Importance.MEDIUM,
            "Whether to read chunks from the object store itself, by URLs that RSM hands out; RSM"
                + " needs RSM_DIRECT_READS=true.");

    private final int progressTimeoutMs;
    private final long readAheadMaxBytes;
    private final boolean directReads;

    StorageManagerConfig(Map<String, ?> configs) {
        super(DEFINITION, PREFIX, configs);
        progressTimeoutMs = getInt(PROGRESS_TIMEOUT_MS);
        readAheadMaxBytes = getLong(READ_AHEAD_MAX_BYTES);
        directReads = getBoolean(DIRECT_READS);
        if (directReads && readAheadMaxBytes < ChunkCache.CHUNK_BYTES) {
            throw new ConfigException(DIRECT_READS + "=true reads chunks of "
                + ChunkCache.CHUNK_BYTES + " bytes: " + READ_AHEAD_MAX_BYTES + "="
                + readAheadMaxBytes + " has no room for one");
        }
    }

    /** How long a stream that RSM has taken up may move no message before it is ended. */
    int progressTimeoutMs() {
        return progressTimeoutMs;
    }

    /** How many bytes of logs to hold in the heap for all sequential readers. */
    long readAheadMaxBytes() {
        return readAheadMaxBytes;
    }

    /** Whether to read chunks from the object store itself. */
    boolean directReads() {
        return directReads;
    }
}
