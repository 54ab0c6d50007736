package io.sediment.kafka;

import io.sediment.tieredstorage.v1.LogDigest;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import java.net.MalformedURLException;
import java.net.URL;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/**
 * A log in the object store: its URL, for how long the URL is used, and the crc32c of each block.
 * Every holder of the URL can read the log: it belongs in no log line and no exception.
 */
final class OpenedLog {
    private static final Set<String> PROTOCOLS = Set.of("http", "https");
    // Nothing depends on more, and the sum of times cannot overflow.
    private static final long MAX_VALID_MS = TimeUnit.HOURS.toMillis(1);

    private final URL url;
    private final long usableUntilNanos;
    private final LogDigest digest;

    private OpenedLog(URL url, long usableUntilNanos, LogDigest digest) {
        this.url = url;
        this.usableUntilNanos = usableUntilNanos;
        this.digest = digest;
    }

    /**
     * Reads an answer of OpenLogSegment.
     *
     * @param askedNanos when the call was sent
     * @throws IllegalArgumentException if the answer does not describe this segment's log
     */
    static OpenedLog of(
        RemoteLogSegmentMetadata segment, OpenLogSegmentResponse answer, long askedNanos
    ) {
        LogDigest digest = answer.getLog();
        int sizeBytes = segment.segmentSizeInBytes();
        if (digest.getWhole().getSizeBytes() != sizeBytes) {
            throw new IllegalArgumentException("a log of " + digest.getWhole().getSizeBytes()
                + " bytes, the segment has " + sizeBytes);
        }
        int blockBytes = digest.getChunkBytes();
        if (blockBytes <= 0 || ChunkCache.CHUNK_BYTES % blockBytes != 0) {
            throw new IllegalArgumentException("digests of " + blockBytes + " bytes each");
        }
        int blocks = (sizeBytes - 1) / blockBytes + 1;
        if (digest.getChunkCrc32CCount() != blocks) {
            throw new IllegalArgumentException(
                digest.getChunkCrc32CCount() + " digests for " + blocks + " blocks");
        }
        long validNanos =
            TimeUnit.MILLISECONDS.toNanos(Math.min(answer.getValidForMs(), MAX_VALID_MS));
        // The last quarter is for requests that are slow to arrive.
        return new OpenedLog(url(answer), askedNanos + validNanos / 4 * 3, digest);
    }

    URL url() {
        return url;
    }

    /** The store, for messages. */
    String host() {
        return url.getAuthority();
    }

    boolean isUsable(long nowNanos) {
        return usableUntilNanos - nowNanos > 0;
    }

    /** The size of each part of the log, but the last, that has a digest of its own. */
    int blockBytes() {
        return digest.getChunkBytes();
    }

    /** The crc32c of the block that begins at a position. */
    int crc32c(int position) {
        return digest.getChunkCrc32C(position / digest.getChunkBytes());
    }

    private static URL url(OpenLogSegmentResponse answer) {
        try {
            URL url = new URL(answer.getUrl());
            if (PROTOCOLS.contains(url.getProtocol())) {
                return url;
            }
        } catch (MalformedURLException e) {
            // Its message has the URL.
        }
        throw new IllegalArgumentException("no URL of http or https");
    }
}
