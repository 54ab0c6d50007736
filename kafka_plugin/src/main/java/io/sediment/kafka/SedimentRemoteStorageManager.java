package io.sediment.kafka;

import io.grpc.stub.BlockingClientCall;
import io.grpc.stub.ClientCalls;
import io.sediment.kafka.CallFigures.Attempt;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.FetchIndexRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataByIdRequest;
import io.sediment.tieredstorage.v1.OpenLogSegmentRequest;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerBlockingV2Stub;
import java.io.InputStream;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Implements Kafka's RemoteStorageManager (KIP-405) over Sediment's RSM, with the settings of
 * {@link StorageManagerConfig}.
 *
 * <p>Thread-safe once configured. If a retry may succeed, for example because the service is away,
 * the failure is a {@link RetriableRemoteStorageException}; null arguments are refused.
 */
public final class SedimentRemoteStorageManager implements RemoteStorageManager {
    // A reader waits for this call, and then for the stream instead.
    private static final int OPEN_TIMEOUT_MS = 5_000;
    // A server that stops closes its connections meanwhile, so that the repeat goes to another one.
    private static final long REPEAT_PAUSE_MS = 50;
    private static final long FREE_EVERY_MS = 60_000;

    // Without copies: gRPC would hold their bytes in memory for a repeat.
    private static final Map<String, ?> REPEATS = Map.of("methodConfig", List.of(Map.of(
        "name", Stream.of("FetchLogSegment", "FetchIndex", "OpenLogSegment", "DeleteLogSegmentData")
            .map(method ->
                Map.of("service", RemoteStorageManagerGrpc.SERVICE_NAME, "method", method))
            .toList(),
        "retryPolicy", ServiceChannel.REPEAT_ELSEWHERE)));

    private volatile ServiceChannel channel;
    private volatile ServiceChannel metadata;
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
        Optional<DiskChunks> disk = config.openReadAheadDirectory();
        channel = new ServiceChannel("RSM", config.target(), config, REPEATS);
        metadata =
            new ServiceChannel("RLMM", config.rlmmTarget(), config, MetadataService.REPEATS);
        String broker = config.broker();
        ChunkSource streams = this::openLog;
        direct = config.directReads()
            ? Optional.of(new DirectReads(broker, this::openDirectly, streams, System::nanoTime))
            : Optional.empty();
        readAhead = new ReadAhead(
            broker,
            config.readAheadMaxBytes(),
            direct.<ChunkSource>map(reads -> reads).orElse(streams),
            streams,
            disk,
            System::nanoTime,
            FREE_EVERY_MS);
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
     * Opens the log from a byte on, inclusive.
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
            // The size is unknown, or the read begins beyond the end, which RSM refuses.
            return fetchLogSegment(request.build());
        }
        configured();
        return readAhead.open(metadata, startPosition);
    }

    /**
     * Opens the log between two bytes, both inclusive; it ends at the end of the file at the latest.
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
     * Opens an index file as it was copied.
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
        return openStream(
            "FetchIndex", stub -> stub.fetchIndex(request), answer -> answer.getData().newInput());
    }

    /**
     * Deletes all objects of the segment id, those that RLMM knows of it now, unless RLMM keeps
     * them for a while: then they stay, and Sediment deletes them later. Idempotent: succeeds if
     * there are none.
     *
     * @throws RetriableRemoteStorageException also if RLMM cannot be asked
     */
    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata)
        throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        configured();
        readAhead.drop(metadata.remoteLogSegmentId());
        try {
            var stored = stored(metadata);
            if (!stored.hasKeptUntilMs()) {
                failures().call(
                    "DeleteLogSegmentData",
                    () -> stub()
                        .withDeadlineAfter(config.requestTimeoutMs(), TimeUnit.MILLISECONDS)
                        .deleteLogSegmentData(DeleteLogSegmentDataRequest.newBuilder()
                            .setMetadata(stored)
                            .build()),
                    answer -> null);
            }
        } finally {
            // A read from before the deletion may have fetched chunks meanwhile.
            readAhead.drop(metadata.remoteLogSegmentId());
        }
    }

    /** Cancels all calls. Idempotent. */
    @Override
    public void close() {
        ServiceChannel open = channel;
        if (open != null) {
            open.close();
            metadata.close();
            readAhead.close();
            direct.ifPresent(DirectReads::close);
        }
    }

    /**
     * Returns a segment as RLMM has it: its bytes may have been replaced since the broker read it.
     * If RLMM does not have it, the segment as the broker has it.
     */
    private io.sediment.tieredstorage.v1.RemoteLogSegmentMetadata stored(
        RemoteLogSegmentMetadata segment
    ) throws RemoteStorageException {
        var known = Conversions.toMessage(segment);
        GetRemoteLogSegmentMetadataByIdRequest request =
            GetRemoteLogSegmentMetadataByIdRequest.newBuilder()
                .setTopicIdPartition(known.getRemoteLogSegmentId().getTopicIdPartition())
                .addIds(known.getRemoteLogSegmentId().getId())
                .build();
        try {
            return new Failures(metadata.toString()).call(
                "GetRemoteLogSegmentMetadataById",
                () -> RemoteLogMetadataManagerGrpc.newBlockingV2Stub(metadata.channel())
                    .withDeadlineAfter(config.requestTimeoutMs(), TimeUnit.MILLISECONDS)
                    .getRemoteLogSegmentMetadataById(request),
                answer -> answer.getSegmentsList().stream().findFirst().orElse(known));
        } catch (RemoteResourceNotFoundException e) {
            // Kept segments are known, also of a partition that was removed.
            return known;
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
        return failures().call(
            "OpenLogSegment",
            () -> stub()
                .withDeadlineAfter(OPEN_TIMEOUT_MS, TimeUnit.MILLISECONDS)
                .openLogSegment(request),
            answer -> answer);
    }

    private InputStream fetchLogSegment(FetchLogSegmentRequest request)
        throws RemoteStorageException {
        return openStream(
            "FetchLogSegment",
            stub -> ClientCalls.blockingV2ServerStreamingCall(
                stub.getChannel(), LogMessages.METHOD, stub.getCallOptions(), request),
            Function.identity());
    }

    /**
     * Opens a stream, once more if it is lost after RSM's headers and before its first chunk: gRPC
     * does not retry from the headers on.
     */
    private <T> InputStream openStream(
        String name,
        Function<RemoteStorageManagerBlockingV2Stub, BlockingClientCall<?, T>> begin,
        Function<T, InputStream> data
    ) throws RemoteStorageException {
        Patience patience = Patience.withRead(config.progressTimeoutMs());
        try {
            return new ChunkInputStream<>(
                begin.apply(stub(patience).withOption(CallFigures.ATTEMPT, Attempt.FIRST)),
                data, name, failures(), patience);
        } catch (RemoteStorageException e) {
            if (!patience.isTakenUp() || !Failures.isLost(e.getCause())) {
                throw e;
            }
        }
        try {
            TimeUnit.MILLISECONDS.sleep(REPEAT_PAUSE_MS);
        } catch (InterruptedException e) {
            throw failures().ofInterrupt(name, e);
        }
        Patience again = Patience.withRead(config.progressTimeoutMs());
        return new ChunkInputStream<>(
            begin.apply(stub(again).withOption(CallFigures.ATTEMPT, Attempt.REPEAT)),
            data, name, failures(), again);
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

    /** Makes the stub of one stream. */
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
