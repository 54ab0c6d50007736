package io.sediment.kafka;

import com.google.protobuf.UnsafeByteOperations;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import io.sediment.tieredstorage.v1.CopyLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.CopyLogSegmentDataResponse;
import io.sediment.tieredstorage.v1.CopyLogSegmentHeader;
import io.sediment.tieredstorage.v1.SegmentChunk;
import io.sediment.tieredstorage.v1.SegmentFileHeader;
import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.ClosedByInterruptException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeoutException;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/** One copy of one segment: a header, then the bytes of each file in chunks, then the answer. */
final class SegmentCopy {
    static final int CHUNK_BYTES = 1024 * 1024;
    private static final String CALL = "CopyLogSegmentData";

    private final BlockingClientCall<CopyLogSegmentDataRequest, CopyLogSegmentDataResponse> call;
    private final Failures failures;
    private final Patience patience;

    /**
     * @param call just begun; {@link #run} ends it
     * @param patience which the call was begun with
     */
    SegmentCopy(
        BlockingClientCall<CopyLogSegmentDataRequest, CopyLogSegmentDataResponse> call,
        Failures failures,
        Patience patience
    ) {
        this.call = call;
        this.failures = failures;
        this.patience = patience;
    }

    /**
     * Sends the segment and waits until it is stored. Holds a few chunks in memory.
     *
     * @return what the service wants to be kept with the segment's metadata
     * @throws RemoteStorageException if a file cannot be read or the service refuses; if a
     *     repeat may succeed, a {@link RetriableRemoteStorageException}
     */
    Optional<CustomMetadata> run(RemoteLogSegmentMetadata metadata, LogSegmentData data)
        throws RemoteStorageException {
        boolean done = false;
        try {
            CopyLogSegmentDataResponse answer = exchange(metadata, data);
            done = true;
            return answer.hasCustomMetadata()
                ? Optional.of(Conversions.toKafka(answer.getCustomMetadata()))
                : Optional.empty();
        } catch (StatusException e) {
            throw failures.of(CALL, e);
        } catch (TimeoutException e) {
            StreamingCalls.cancel(call, patience.complaint(), e);
            throw failures.ofStandstill(CALL, patience.complaint(), e);
        } catch (InterruptedException e) {
            throw failures.ofInterrupt(CALL, e);
        } catch (ClosedByInterruptException e) {
            throw new RetriableRemoteStorageException("interrupted while reading a segment", e);
        } catch (IOException e) {
            throw new RemoteStorageException("cannot read the segment to copy: " + e, e);
        } finally {
            if (!done) {
                StreamingCalls.cancel(call, "the copy was given up", null);
            }
        }
    }

    private CopyLogSegmentDataResponse exchange(
        RemoteLogSegmentMetadata metadata, LogSegmentData data
    ) throws RemoteStorageException, StatusException, IOException, InterruptedException,
        TimeoutException {
        List<SegmentPart> parts = SegmentPart.of(data);
        boolean wanted = send(CopyLogSegmentDataRequest.newBuilder()
            .setHeader(header(metadata, parts))
            .build());
        for (SegmentPart part : parts) {
            wanted = wanted && send(part);
        }
        call.halfClose();
        CopyLogSegmentDataResponse answer = patience.take(call::read);
        // The status comes after the answer, and only it says that the answer holds.
        if (answer == null || patience.take(call::read) != null) {
            throw failures.ofAnswer(CALL, "not exactly one message", null);
        }
        return answer;
    }

    /** False: the service ended the call well and wants no more. */
    private boolean send(SegmentPart part) throws RemoteStorageException, StatusException,
        IOException, InterruptedException, TimeoutException {
        try (InputStream bytes = part.source().open()) {
            long leftBytes = part.sizeBytes();
            boolean wanted = true;
            while (wanted && leftBytes > 0) {
                // A new array each time: gRPC may hold the last one still.
                byte[] chunk = bytes.readNBytes((int) Math.min(CHUNK_BYTES, leftBytes));
                if (chunk.length == 0) {
                    throw new RemoteStorageException(part.name() + " shrank while it was copied: "
                        + leftBytes + " of " + part.sizeBytes() + " bytes are missing");
                }
                leftBytes -= chunk.length;
                wanted = send(CopyLogSegmentDataRequest.newBuilder()
                    .setChunk(SegmentChunk.newBuilder()
                        .setFile(part.file())
                        .setData(UnsafeByteOperations.unsafeWrap(chunk)))
                    .build());
            }
            return wanted;
        }
    }

    private boolean send(CopyLogSegmentDataRequest message)
        throws StatusException, InterruptedException, TimeoutException {
        return patience.take((timeout, unit) -> call.write(message, timeout, unit));
    }

    private static CopyLogSegmentHeader header(
        RemoteLogSegmentMetadata metadata, List<SegmentPart> parts
    ) {
        CopyLogSegmentHeader.Builder header = CopyLogSegmentHeader.newBuilder()
            .setMetadata(Conversions.toMessage(metadata));
        for (SegmentPart part : parts) {
            header.addFiles(SegmentFileHeader.newBuilder()
                .setFile(part.file())
                .setSizeBytes(part.sizeBytes()));
        }
        return header.build();
    }
}
