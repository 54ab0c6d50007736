package io.sediment.kafka;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataResponse;
import io.sediment.tieredstorage.v1.FetchIndexRequest;
import io.sediment.tieredstorage.v1.FetchIndexResponse;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.FileDigest;
import io.sediment.tieredstorage.v1.LogDigest;
import io.sediment.tieredstorage.v1.OpenLogSegmentRequest;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerImplBase;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.zip.CRC32C;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/** An RSM's reads: the log's bytes in the range asked for, of logs that tests put there. */
final class LogServer extends RemoteStorageManagerImplBase {
    static final long VALID_MS = 300_000;
    private static final int MESSAGE_BYTES = 1024 * 1024;
    private static final int BLOCK_BYTES = 1024 * 1024;

    /** What the server does with the streams that begin from now on. */
    private volatile Behaviour behaviour = new Behaviour(Integer.MAX_VALUE, After.GO_ON);
    private volatile CountDownLatch released = new CountDownLatch(0);
    private volatile Optional<ObjectStore> store = Optional.empty();
    private final Map<String, byte[]> logs = new ConcurrentHashMap<>();
    private final List<Range> fetched = new CopyOnWriteArrayList<>();

    /** What comes after the first bytes of each stream. */
    enum After { GO_ON, WAIT, FAIL, END }

    private record Behaviour(int bytes, After after) {
    }

    /** A range that was asked for; both ends inclusive. */
    record Range(String segment, int startPosition, int endPosition) {
        int sizeBytes() {
            return endPosition - startPosition + 1;
        }

        boolean isChunk() {
            return startPosition % ChunkCache.CHUNK_BYTES == 0
                && sizeBytes() > LogRanges.FIRST_RANGE_BYTES;
        }
    }

    /** Stores random bytes under a segment. */
    byte[] put(RemoteLogSegmentMetadata segment) {
        byte[] log = new byte[segment.segmentSizeInBytes()];
        new Random(log.length).nextBytes(log);
        logs.put(id(segment), log);
        return log;
    }

    /** Lets the logs be read from a store, too. */
    void handOut(ObjectStore newStore) {
        store = Optional.of(newStore);
    }

    /** Lets each stream that begins from now on send its first bytes, and then do this. */
    void after(int bytes, After what) {
        released.countDown();
        released = new CountDownLatch(what == After.WAIT ? 1 : 0);
        behaviour = new Behaviour(bytes, what);
    }

    /** Lets all streams go on, those that wait too. */
    void goOn() {
        after(Integer.MAX_VALUE, After.GO_ON);
    }

    /** The ranges that were asked for so far, in order. */
    List<Range> fetched() {
        return fetched;
    }

    long fetchedBytes() {
        return fetched.stream().mapToLong(Range::sizeBytes).sum();
    }

    @Override
    public void fetchLogSegment(
        FetchLogSegmentRequest request, StreamObserver<FetchLogSegmentResponse> answer
    ) {
        String id = request.getMetadata().getRemoteLogSegmentId().getId();
        fetched.add(new Range(id, request.getStartPosition(), request.getEndPosition()));
        byte[] log = logs.get(id);
        if (log == null) {
            answer.onError(
                LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND"));
            return;
        }
        Behaviour chosen = behaviour;
        CountDownLatch awaited = released;
        int end = Math.min(request.getEndPosition(), log.length - 1) + 1;
        int start = request.getStartPosition();
        int turn = (int) Math.min((long) start + chosen.bytes(), end);
        send(log, start, turn, answer);
        if (turn < end && chosen.after() == After.FAIL) {
            answer.onError(
                LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"));
            return;
        }
        if (chosen.after() != After.END) {
            await(awaited);
            send(log, turn, end, answer);
        }
        if (!((ServerCallStreamObserver<?>) answer).isCancelled()) {
            answer.onCompleted();
        }
    }

    @Override
    public void openLogSegment(
        OpenLogSegmentRequest request, StreamObserver<OpenLogSegmentResponse> answer
    ) {
        if (store.isEmpty()) {
            answer.onError(LocalServer.refusal(Status.Code.UNIMPLEMENTED, "NOT_SERVED"));
            return;
        }
        String id = request.getMetadata().getRemoteLogSegmentId().getId();
        byte[] log = logs.get(id);
        answer.onNext(opened(log, store.get().put(id, log)));
        answer.onCompleted();
    }

    /** What RSM answers for a log that is at a URL. */
    static OpenLogSegmentResponse opened(byte[] log, String url) {
        LogDigest.Builder digest = LogDigest.newBuilder()
            .setWhole(FileDigest.newBuilder().setSizeBytes(log.length))
            .setChunkBytes(BLOCK_BYTES);
        for (int start = 0; start < log.length; start += BLOCK_BYTES) {
            CRC32C crc32c = new CRC32C();
            crc32c.update(log, start, Math.min(BLOCK_BYTES, log.length - start));
            digest.addChunkCrc32C((int) crc32c.getValue());
        }
        return OpenLogSegmentResponse.newBuilder()
            .setUrl(url)
            .setValidForMs(VALID_MS)
            .setLog(digest)
            .build();
    }

    @Override
    public void fetchIndex(FetchIndexRequest request, StreamObserver<FetchIndexResponse> answer) {
        answer.onNext(
            FetchIndexResponse.newBuilder().setData(ByteString.copyFromUtf8("index")).build());
        answer.onCompleted();
    }

    @Override
    public void deleteLogSegmentData(
        DeleteLogSegmentDataRequest request, StreamObserver<DeleteLogSegmentDataResponse> answer
    ) {
        logs.remove(request.getMetadata().getRemoteLogSegmentId().getId());
        answer.onNext(DeleteLogSegmentDataResponse.getDefaultInstance());
        answer.onCompleted();
    }

    private static void send(
        byte[] log, int start, int end, StreamObserver<FetchLogSegmentResponse> answer
    ) {
        for (int at = start; at < end; at += MESSAGE_BYTES) {
            if (((ServerCallStreamObserver<?>) answer).isCancelled()) {
                return;
            }
            answer.onNext(FetchLogSegmentResponse.newBuilder()
                .setData(ByteString.copyFrom(log, at, Math.min(MESSAGE_BYTES, end - at)))
                .build());
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            // The server goes away.
            Thread.currentThread().interrupt();
        }
    }

    private static String id(RemoteLogSegmentMetadata segment) {
        return Conversions.toMessage(segment).getRemoteLogSegmentId().getId();
    }
}
