package io.sediment.acceptance;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.Map;
import java.util.Optional;
import java.util.Random;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/** The files of a rolled segment in a directory, of reproducible random bytes. */
final class LocalSegment {
    private static final int INDEX_BYTES = 1_000;
    private static final int BUFFER_BYTES = 1 << 20;

    private final Path log;
    private final Map<IndexType, Path> indexes = new EnumMap<>(IndexType.class);

    private LocalSegment(Path log) {
        this.log = log;
    }

    /** With all five indexes; {@code directory} must be this segment's own. */
    static LocalSegment write(Path directory, int sizeInBytes) throws IOException {
        Random random = new Random(sizeInBytes);
        LocalSegment segment = new LocalSegment(directory.resolve("00000000000000000100.log"));
        try (OutputStream log = Files.newOutputStream(segment.log)) {
            byte[] buffer = new byte[BUFFER_BYTES];
            for (int left = sizeInBytes; left > 0; left -= buffer.length) {
                random.nextBytes(buffer);
                log.write(buffer, 0, Math.min(left, buffer.length));
            }
        }
        for (IndexType type : IndexType.values()) {
            byte[] content = new byte[INDEX_BYTES + type.ordinal()];
            random.nextBytes(content);
            segment.indexes.put(type, Files.write(directory.resolve(type.name()), content));
        }
        return segment;
    }

    /** The same without the one index that a segment may lack. */
    LocalSegment withoutTransactionIndex() {
        LocalSegment other = new LocalSegment(log);
        other.indexes.putAll(indexes);
        other.indexes.remove(IndexType.TRANSACTION);
        return other;
    }

    Path log() {
        return log;
    }

    /** The bytes of the log from {@code from} to {@code to}, both inclusive. */
    byte[] logBytes(int from, int to) throws IOException {
        return Arrays.copyOfRange(Files.readAllBytes(log), from, to + 1);
    }

    byte[] index(IndexType type) throws IOException {
        return Files.readAllBytes(indexes.get(type));
    }

    int sizeInBytes() throws IOException {
        return Math.toIntExact(Files.size(log));
    }

    /** As the broker hands it to a plugin. */
    LogSegmentData data() throws IOException {
        return new LogSegmentData(
                log,
                indexes.get(IndexType.OFFSET),
                indexes.get(IndexType.TIMESTAMP),
                Optional.ofNullable(indexes.get(IndexType.TRANSACTION)),
                indexes.get(IndexType.PRODUCER_SNAPSHOT),
                ByteBuffer.wrap(index(IndexType.LEADER_EPOCH)));
    }
}
