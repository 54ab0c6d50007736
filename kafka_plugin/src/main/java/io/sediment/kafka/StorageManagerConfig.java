package io.sediment.kafka;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/** Settings of {@link SedimentRemoteStorageManager}: the broker's {@code rsm.config.*}. */
final class StorageManagerConfig extends ServiceConfig {
    static final String PREFIX = "rsm.config.";
    private static final String PROGRESS_TIMEOUT_MS = PREFIX + "progress.timeout.ms";
    private static final int DEFAULT_PROGRESS_TIMEOUT_MS = 60_000;
    private static final String READ_AHEAD_MAX_BYTES = PREFIX + "read.ahead.max.bytes";
    private static final long DEFAULT_READ_AHEAD_MAX_BYTES = 96L * 1024 * 1024;
    private static final String READ_AHEAD_DIRECTORY = PREFIX + "read.ahead.directory";
    private static final String READ_AHEAD_DIRECTORY_MAX_BYTES =
        READ_AHEAD_DIRECTORY + ".max.bytes";
    private static final long DEFAULT_READ_AHEAD_DIRECTORY_MAX_BYTES = 4L * 1024 * 1024 * 1024;
    private static final String DIRECT_READS = PREFIX + "direct.reads";
    private static final String RLMM_ENDPOINT = PREFIX + "rlmm." + ENDPOINT;
    private static final ConfigDef DEFINITION = definition(PREFIX, "RSM")
        .define(RLMM_ENDPOINT, ConfigDef.Type.STRING, null,
            ConfigDef.LambdaValidator.with(ServiceConfig::requireTarget, () -> "as endpoint"),
            ConfigDef.Importance.HIGH,
            "Where RLMM listens, which is asked before each deletion whether to keep the objects.")
        .define(PROGRESS_TIMEOUT_MS, ConfigDef.Type.INT, DEFAULT_PROGRESS_TIMEOUT_MS,
            ConfigDef.Range.atLeast(1), ConfigDef.Importance.LOW,
            "How long a running copy or read may make no progress before it is cancelled.")
        .define(READ_AHEAD_MAX_BYTES, ConfigDef.Type.LONG, DEFAULT_READ_AHEAD_MAX_BYTES,
            ConfigDef.Range.atLeast(0), ConfigDef.Importance.MEDIUM,
            "How many bytes of logs to hold in the broker's heap for all sequential readers; 0"
                + " reads nothing ahead.")
        .define(READ_AHEAD_DIRECTORY, ConfigDef.Type.STRING, null, ConfigDef.Importance.LOW,
            "A directory of this broker's own for more chunks of logs than fit in the heap.")
        .define(READ_AHEAD_DIRECTORY_MAX_BYTES, ConfigDef.Type.LONG,
            DEFAULT_READ_AHEAD_DIRECTORY_MAX_BYTES,
            ConfigDef.Range.atLeast(ChunkCache.CHUNK_BYTES), ConfigDef.Importance.LOW,
            "How many bytes of logs to hold in that directory.")
        .define(DIRECT_READS, ConfigDef.Type.BOOLEAN, false, ConfigDef.Importance.MEDIUM,
            "Whether to read chunks from the object store itself, by URLs that RSM hands out; RSM"
                + " needs RSM_DIRECT_READS=true.");

    private final Optional<Path> readAheadDirectory;

    StorageManagerConfig(Map<String, ?> configs) {
        super(DEFINITION, PREFIX, configs);
        if (rlmmTarget() == null) {
            throw new ConfigException(RLMM_ENDPOINT + " is missing: set it to"
                + " rlmm.config.endpoint; before each deletion the plugin asks RLMM whether to keep"
                + " the objects");
        }
        readAheadDirectory = Optional.ofNullable(getString(READ_AHEAD_DIRECTORY))
            .map(StorageManagerConfig::parsePath);
        if (directReads()) {
            requireRoomForAChunk(DIRECT_READS + "=true");
        }
        if (readAheadDirectory.isPresent()) {
            requireRoomForAChunk(READ_AHEAD_DIRECTORY + "=" + readAheadDirectory.get());
        } else if (originals().containsKey(READ_AHEAD_DIRECTORY_MAX_BYTES)) {
            throw new ConfigException(READ_AHEAD_DIRECTORY_MAX_BYTES + " is set, but "
                + READ_AHEAD_DIRECTORY + " is not: set that too, or remove this");
        }
    }

    /** Returns where RLMM listens, as gRPC reads it; the connection's security is that to RSM. */
    String rlmmTarget() {
        return getString(RLMM_ENDPOINT);
    }

    /** Returns how long a running copy or read may make no progress before it is cancelled. */
    int progressTimeoutMs() {
        return getInt(PROGRESS_TIMEOUT_MS);
    }

    /** Returns how many bytes of logs to hold in the heap for all sequential readers. */
    long readAheadMaxBytes() {
        return getLong(READ_AHEAD_MAX_BYTES);
    }

    /**
     * Opens the directory for chunks of logs, if there is one.
     *
     * @throws ConfigException if it cannot be created or written
     */
    Optional<DiskChunks> openReadAheadDirectory() {
        return readAheadDirectory.map(directory -> {
            try {
                return new DiskChunks(
                    directory, getLong(READ_AHEAD_DIRECTORY_MAX_BYTES), Files::newOutputStream,
                    System::nanoTime);
            } catch (IOException e) {
                throw new ConfigException(READ_AHEAD_DIRECTORY + "=" + directory
                    + " cannot be created or written: " + e + "; let the broker's user write a"
                    + " directory there, or remove the setting");
            }
        });
    }

    /** Returns whether to read chunks from the object store itself. */
    boolean directReads() {
        return getBoolean(DIRECT_READS);
    }

    private void requireRoomForAChunk(String setting) {
        if (readAheadMaxBytes() < ChunkCache.CHUNK_BYTES) {
            throw new ConfigException(setting + " needs chunks of " + ChunkCache.CHUNK_BYTES
                + " bytes: " + READ_AHEAD_MAX_BYTES + "=" + readAheadMaxBytes()
                + " has no room for one");
        }
    }

    private static Path parsePath(String text) {
        if (text.isBlank()) {
            throw new ConfigException(
                READ_AHEAD_DIRECTORY + " is empty: set a directory, or remove the setting");
        }
        try {
            return Path.of(text);
        } catch (InvalidPathException e) {
            throw new ConfigException(READ_AHEAD_DIRECTORY, text, e.getMessage());
        }
    }
}
