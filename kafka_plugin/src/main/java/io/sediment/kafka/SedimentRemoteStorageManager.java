package io.sediment.kafka;

import io.sediment.tieredstorage.v1.DeleteLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.FetchIndexRequest;
import io.sediment.tieredstorage.v1.FetchIndexResponse;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.OpenLogSegmentRequest;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerBlockingV2Stub;
import java.io.InputStream;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Kafka's RemoteStorageManager (KIP-405) over Sediment's RSM; settings:
 * those of {@link StorageManagerConfig}.
 *
 * <p>Thread-safe once configured. A failure that a repeat may cure, a service that is away among
 * them, is a {@link RetriableRemoteStorageException}; null arguments are refused.
 */
public final class SedimentRemoteStorageManager implements RemoteStorageManager {
    // A reader waits for it, and then for the stream instead.
    private static final int OPEN_TIMEOUT_MS = 5_000;

    private volatile ServiceChannel channel;
    private volatile StorageManagerConfig config;
    private volatile Optional<DirectReads> direct = Optional.empty();
    private volatile ReadAhead readAhead;

    /**
     * Reads the settings and returns at once, whether the service is there or not.
     *
     * @throws org.apache.kafka.common.config.ConfigException naming the property at fault
     */
    @Override
    public void configure(Map<String, ?> configs) {
        config = new StorageManagerConfig(configs);
        config.logUnused();
        channel = new ServiceChannel("RSM", config, Map.of());
        String broker = String.valueOf(configs.get("broker.id"));
        ChunkSource streams = this::openLog;
        direct = config.directReads()
            ? Optional.of(new DirectReads(broker, this::openDirectly, streams, System::nanoTime))
            : Optional.empty();
        readAhead = new ReadAhead(
            broker,
            config.readAheadMaxBytes(),
            direct.<ChunkSource>map(reads -> reads).orElse(streams),
            streams,
            System::nanoTime);
    }

    /**
     * Stores a segment. All or nothing; idempotent by segment id: equal bytes again are a success
     * with the first copy's custom metadata.
     */
    @Override
    public Optional<CustomMetadata> copyLogSegmentData(
        RemoteLogSegmentMetadata metadata, LogSegmentData data
    ) throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        Objects.requireNonNull(data, "data");
        Patience patience = Patience.withCopy(config.progressTimeoutMs());
        return new SegmentCopy(stub(patience).copyLogSegmentData(), failures(), patience)
            .run(metadata, data);
    }

    /**
     * The log from a byte on, inclusive.
     *
     * @throws RemoteResourceNotFoundException if the segment is not in the store
     * @throws IllegalArgumentException if the position is negative
     */
    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int startPosition)
        throws RemoteStorageException {
        FetchLogSegmentRequest.Builder request = logRequest(metadata, startPosition);
        int endPosition = metadata.segmentSizeInBytes() - 1;
        if (endPosition < startPosition) {
            // Unknown, or a read beyond the end, which is RSM's to answer.
            return fetchLogSegment(request.build());
        }
        configured();
        return readAhead.open(metadata, startPosition);
    }

    /**
     * The log between two bytes, both inclusive; ends at the end of the file if that is first.
     *
     * @throws RemoteResourceNotFoundException if the segment is not in the store
     * @throws IllegalArgumentException if a position is negative or the end is below the start
     */
    @Override
    public InputStream fetchLogSegment(
        RemoteLogSegmentMetadata metadata, int startPosition, int endPosition
    ) throws RemoteStorageException {
        FetchLogSegmentRequest.Builder request = logRequest(metadata, startPosition);
        if (endPosition < startPosition) {
            throw new IllegalArgumentException(
                "end position " + endPosition + " is below start position " + startPosition);
        }
        return fetchLogSegment(request.setEndPosition(endPosition).build());
    }

    /**
     * An index file as it was copied.
     *
     * @throws RemoteResourceNotFoundException if the segment is not in the store or has no
     *     transaction index
     */
    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType indexType)
        throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        Objects.requireNonNull(indexType, "indexType");
        FetchIndexRequest request = FetchIndexRequest.newBuilder()
            .setMetadata(Conversions.toMessage(metadata))
            .setIndexType(Conversions.toMessage(indexType))
            .build();
        configured();
        // Kafka reads a segment's indexes, unless it has them, before it reads from the segment.
        readAhead.expect(metadata);
        Patience patience = Patience.withRead(config.progressTimeoutMs());
        return ChunkInputStream.open(
            stub(patience).fetchIndex(request),
            FetchIndexResponse::getData,
            "FetchIndex",
            failures(),
            patience);
    }

    /** Removes all that belongs to the segment id. Idempotent: already gone is a success. */
    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata)
        throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        DeleteLogSegmentDataRequest request = DeleteLogSegmentDataRequest.newBuilder()
            .setMetadata(Conversions.toMessage(metadata))
            .build();
        configured();
        readAhead.drop(metadata.remoteLogSegmentId());
        try {
            new UnaryCalls(failures()).make(
                "DeleteLogSegmentData",
                () -> stub()
                    .withDeadlineAfter(config.requestTimeoutMs(), TimeUnit.MILLISECONDS)
                    .deleteLogSegmentData(request),
                answer -> null);
        } finally {
            // What a read of before the deletion has begun to fetch meanwhile.
            readAhead.drop(metadata.remoteLogSegmentId());
        }
    }

    /** Ends what is under way. Idempotent. */
    @Override
    public void close() {
        ServiceChannel open = channel;
        if (open != null) {
            open.close();
            readAhead.close();
            direct.ifPresent(DirectReads::close);
        }
    }

    private InputStream openLog(
        RemoteLogSegmentMetadata metadata, int startPosition, int endPosition
    ) throws RemoteStorageException {
        return fetchLogSegment(
            logRequest(metadata, startPosition).setEndPosition(endPosition).build());
    }

    private OpenLogSegmentResponse openDirectly(RemoteLogSegmentMetadata metadata)
        throws RemoteStorageException {
        OpenLogSegmentRequest request = OpenLogSegmentRequest.newBuilder()
            .setMetadata(Conversions.toMessage(metadata))
            .build();
        return new UnaryCalls(failures()).make(
            "OpenLogSegment",
            () -> stub()
                .withDeadlineAfter(OPEN_TIMEOUT_MS, TimeUnit.MILLISECONDS)
                .openLogSegment(request),
            answer -> answer);
    }

    private InputStream fetchLogSegment(FetchLogSegmentRequest request)
        throws RemoteStorageException {
        Patience patience = Patience.withRead(config.progressTimeoutMs());
        return ChunkInputStream.open(
            stub(patience).fetchLogSegment(request),
            FetchLogSegmentResponse::getData,
            "FetchLogSegment",
            failures(),
            patience);
    }

    private static FetchLogSegmentRequest.Builder logRequest(
        RemoteLogSegmentMetadata metadata, int startPosition
    ) {
        Objects.requireNonNull(metadata, "metadata");
        if (startPosition < 0) {
            throw new IllegalArgumentException("start position " + startPosition + " is negative");
        }
        return FetchLogSegmentRequest.newBuilder()
            .setMetadata(Conversions.toMessage(metadata))
            .setStartPosition(startPosition);
    }

    private RemoteStorageManagerBlockingV2Stub stub() {
        return RemoteStorageManagerGrpc.newBlockingV2Stub(configured().channel());
    }

    /** For one stream. */
    private RemoteStorageManagerBlockingV2Stub stub(Patience patience) {
        return stub().withInterceptors(patience);
    }

    private Failures failures() {
        return new Failures(configured().toString());
    }

    private ServiceChannel configured() {
        if (channel == null) {
            throw new IllegalStateException("configure() was not called");
        }
        return channel;
    }
}
