package io.sediment.kafka;

import com.google.protobuf.ByteString;
import io.sediment.tieredstorage.v1.SegmentFile;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;

/**
 * One file of a segment that is to be copied.
 *
 * @param file which
 * @param name what to call it in messages
 * @param sizeBytes how much of it is copied; a file that grows later is cut there
 * @param source gives its bytes from the first on
 */
record SegmentPart(SegmentFile file, String name, long sizeBytes, Source source) {

    /** Opens the bytes of a part. */
    interface Source {
        InputStream open() throws IOException;
    }

    /** The parts in the order of {@link SegmentFile}; a transaction index if there is one. */
    static List<SegmentPart> of(LogSegmentData data) throws IOException {
        List<SegmentPart> parts = new ArrayList<>();
        parts.add(of(SegmentFile.SEGMENT_FILE_LOG, data.logSegment()));
        parts.add(of(SegmentFile.SEGMENT_FILE_OFFSET, data.offsetIndex()));
        parts.add(of(SegmentFile.SEGMENT_FILE_TIMESTAMP, data.timeIndex()));
        parts.add(of(SegmentFile.SEGMENT_FILE_PRODUCER_SNAPSHOT, data.producerSnapshotIndex()));
        if (data.transactionIndex().isPresent()) {
            parts.add(of(SegmentFile.SEGMENT_FILE_TRANSACTION, data.transactionIndex().get()));
        }
        // A duplicate has a position of its own: the caller may read its buffer again.
        ByteString leaderEpochs = ByteString.copyFrom(data.leaderEpochIndex().duplicate());
        parts.add(new SegmentPart(
            SegmentFile.SEGMENT_FILE_LEADER_EPOCH,
            "the leader epoch index",
            leaderEpochs.size(),
            leaderEpochs::newInput));
        return parts;
    }

    private static SegmentPart of(SegmentFile file, Path path) throws IOException {
        return new SegmentPart(
            file, path.toString(), Files.size(path), () -> Files.newInputStream(path));
    }
}
