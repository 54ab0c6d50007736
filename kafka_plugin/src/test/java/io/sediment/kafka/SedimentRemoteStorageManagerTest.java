package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import io.netty.buffer.PooledByteBufAllocator;
import io.sediment.tieredstorage.v1.CopyLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.CopyLogSegmentDataResponse;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataResponse;
import io.sediment.tieredstorage.v1.FetchIndexRequest;
import io.sediment.tieredstorage.v1.FetchIndexResponse;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerImplBase;
import io.sediment.tieredstorage.v1.SegmentFile;
import io.sediment.tieredstorage.v1.SegmentFileHeader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SedimentRemoteStorageManagerTest {
    private static final int MIB = 1024 * 1024;
    /** Transfers that succeed keep it too, however busy the machine is. */
    private static final int PROGRESS_TIMEOUT_MS = 2_000;

    @TempDir
    private Path directory;
    private final Rsm rsm = new Rsm();
    private LocalServer server;
    private SedimentRemoteStorageManager manager;

    @BeforeEach
    void start() {
        server = new LocalServer(rsm);
        manager = manager(60_000);
    }

    @AfterEach
    void stop() {
        manager.close();
        server.close();
    }

    @Test
    void copySendsEachFileWholeAndInOrder() throws Exception {
        byte[] log = random(2 * MIB + 17);
        rsm.customMetadata = ByteString.copyFromUtf8("custom");
        ByteBuffer leaderEpochs = ByteBuffer.wrap("0\n0\n".getBytes());

        Optional<CustomMetadata> answer = manager.copyLogSegmentData(Samples.SEGMENT,
            segment(log, Optional.of(new byte[] {4}), leaderEpochs));

        assertEquals(Optional.of(new CustomMetadata("custom".getBytes())), answer);
        assertEquals(List.of(SegmentFile.SEGMENT_FILE_LOG, SegmentFile.SEGMENT_FILE_OFFSET,
            SegmentFile.SEGMENT_FILE_TIMESTAMP, SegmentFile.SEGMENT_FILE_PRODUCER_SNAPSHOT,
            SegmentFile.SEGMENT_FILE_TRANSACTION, SegmentFile.SEGMENT_FILE_LEADER_EPOCH),
            rsm.announced.stream().map(SegmentFileHeader::getFile).toList());
        assertArrayEquals(log, rsm.received(SegmentFile.SEGMENT_FILE_LOG));
        assertArrayEquals(new byte[] {1, 2}, rsm.received(SegmentFile.SEGMENT_FILE_OFFSET));
        assertArrayEquals(new byte[] {4}, rsm.received(SegmentFile.SEGMENT_FILE_TRANSACTION));
        assertArrayEquals("0\n0\n".getBytes(), rsm.received(SegmentFile.SEGMENT_FILE_LEADER_EPOCH));
        assertEquals(4, leaderEpochs.remaining());
        assertEquals(MIB, rsm.largestChunkBytes);
    }

    @Test
    void copyWithoutTransactionIndexAnnouncesNone() throws Exception {
        assertEquals(Optional.empty(),
            manager.copyLogSegmentData(Samples.SEGMENT, segment(random(10))));

        assertEquals(5, rsm.announced.size());
        assertFalse(rsm.chunks.containsKey(SegmentFile.SEGMENT_FILE_TRANSACTION));
    }

    @Test
    void copyThatIsRefusedOnTheWayFailsWithTheRefusal() throws Exception {
        rsm.onHeader = answer -> answer.onError(
            LocalServer.refusal(Status.Code.ALREADY_EXISTS, "SEGMENT_ALREADY_EXISTS"));

        RemoteStorageException failure = assertThrows(RemoteStorageException.class, () ->
            manager.copyLogSegmentData(Samples.SEGMENT, segment(random(16 * MIB))));

        assertEquals(RemoteStorageException.class, failure.getClass());
        assertTrue(failure.getMessage().endsWith("ALREADY_EXISTS: said the server"));
    }

    @Test
    void fileThatShrinksFailsTheCopyByItsName() throws Exception {
        LogSegmentData segment = segment(random(32 * MIB));
        rsm.onHeader = answer -> truncate(segment.logSegment(), MIB);

        RemoteStorageException failure = assertThrows(RemoteStorageException.class, () ->
            manager.copyLogSegmentData(Samples.SEGMENT, segment));

        assertEquals(RemoteStorageException.class, failure.getClass());
        assertTrue(failure.getMessage().startsWith(segment.logSegment() + " shrank"));
        assertEventually(rsm.cancelled::get, "the call ends");
    }

    @Test
    void fileThatGrowsIsSentAsFarAsItWasAnnounced() throws Exception {
        byte[] log = random(4 * MIB - 5);
        LogSegmentData segment = segment(log);
        rsm.onHeader = answer -> append(segment.logSegment(), MIB);

        manager.copyLogSegmentData(Samples.SEGMENT, segment);

        assertArrayEquals(log, rsm.received(SegmentFile.SEGMENT_FILE_LOG));
    }

    @Test
    void fileThatIsMissingFailsTheCopyByItsName() throws Exception {
        LogSegmentData segment = segment(random(1));
        Files.delete(segment.timeIndex());

        RemoteStorageException failure = assertThrows(RemoteStorageException.class, () ->
            manager.copyLogSegmentData(Samples.SEGMENT, segment));

        assertEquals(RemoteStorageException.class, failure.getClass());
        assertTrue(failure.getMessage().contains(segment.timeIndex().toString()));
    }

    @Test
    void copyThatStandsStillIsEnded() throws Exception {
        manager.close();
        manager = manager(200);
        rsm.readsNothing = true;

        assertThrows(RetriableRemoteStorageException.class, () ->
            manager.copyLogSegmentData(Samples.SEGMENT, segment(random(16 * MIB))));

        assertEventually(rsm.cancelled::get, "the call ends");
    }

    @Test
    void interruptedCopyIsRetriableAndKeepsTheFlag() throws Exception {
        LogSegmentData segment = segment(random(16 * MIB));
        Thread.currentThread().interrupt();

        assertThrows(RetriableRemoteStorageException.class, () ->
            manager.copyLogSegmentData(Samples.SEGMENT, segment));

        assertTrue(Thread.interrupted());
    }

    @Test
    void logComesInChunksAndIsReadInAnySteps() throws Exception {
        rsm.log = random(MIB + 5);

        try (InputStream log = manager.fetchLogSegment(Samples.segment(rsm.log.length), 0)) {
            assertEquals(Byte.toUnsignedInt(rsm.log[0]), log.read());
            assertEquals(0, log.read(new byte[0]));
            byte[] rest = log.readAllBytes();
            assertArrayEquals(java.util.Arrays.copyOfRange(rsm.log, 1, rsm.log.length), rest);
            assertEquals(-1, log.read());
            assertEquals(-1, log.read(new byte[1]));
        }
        assertEquals(rsm.log.length - 1, rsm.fetched.getEndPosition());
    }

    @Test
    void positionsAreAskedForAsGiven() throws Exception {
        rsm.log = new byte[] {1};

        manager.fetchLogSegment(Samples.SEGMENT, 5, 5).close();

        assertEquals(5, rsm.fetched.getStartPosition());
        assertEquals(5, rsm.fetched.getEndPosition());
    }

    @Test
    void emptyLogIsAnEmptyStream() throws Exception {
        rsm.log = new byte[0];

        assertEquals(-1, manager.fetchLogSegment(Samples.segment(0), 0).read());
    }

    @Test
    void impossiblePositionsAreRefused() {
        assertThrows(IllegalArgumentException.class,
            () -> manager.fetchLogSegment(Samples.SEGMENT, -1));
        assertThrows(IllegalArgumentException.class,
            () -> manager.fetchLogSegment(Samples.SEGMENT, 1, -1));
        assertThrows(IllegalArgumentException.class,
            () -> manager.fetchLogSegment(Samples.SEGMENT, 2, 1));
        assertNull(rsm.fetched);
    }

    @Test
    void whatIsMissingIsThrownByTheFetchItself() {
        rsm.failure = LocalServer.refusal(Status.Code.NOT_FOUND, "REMOTE_RESOURCE_NOT_FOUND");

        assertThrows(RemoteResourceNotFoundException.class,
            () -> manager.fetchLogSegment(Samples.SEGMENT, 0));
        assertThrows(RemoteResourceNotFoundException.class, () ->
            manager.fetchIndex(Samples.SEGMENT, RemoteStorageManager.IndexType.TRANSACTION));
    }

    @Test
    void failureOnTheWayIsThrownByEveryReadFromThenOn() throws Exception {
        rsm.log = random(MIB);
        rsm.failure = Status.UNAVAILABLE.asRuntimeException();

        InputStream log = manager.fetchLogSegment(Samples.SEGMENT, 0);
        assertEquals(MIB, log.readNBytes(MIB).length);
        IOException first = assertThrows(IOException.class, log::read);
        assertThrows(IOException.class, log::read);

        assertEquals(RetriableRemoteStorageException.class, first.getCause().getClass());
    }

    @Test
    void closingEarlyEndsTheCallAndGivesBackItsMemory() throws Exception {
        rsm.log = random(16 * MIB);
        for (int i = 0; i < 5; i++) {
            rsm.cancelled.set(false);
            InputStream log = manager.fetchLogSegment(Samples.SEGMENT, 0, 16 * MIB - 1);
            log.readNBytes(10);
            assertEventually(() -> cachedBytes() > MIB, "the next chunk has arrived");
            log.close();
            log.close();
            assertThrows(IOException.class, log::read);
            assertEventually(rsm.cancelled::get, "the call ends");
        }
        assertEventually(() -> cachedBytes() < MIB, "what had arrived is given back");
    }

    @Test
    void readThatStandsStillIsEnded() throws Exception {
        manager.close();
        manager = manager(PROGRESS_TIMEOUT_MS);
        rsm.log = random(MIB);
        rsm.standsStill = true;

        InputStream log = manager.fetchLogSegment(Samples.SEGMENT, 0);
        assertEquals(MIB, log.readNBytes(MIB).length);
        List<String> lines = LogLines.during(() -> {
            IOException failure = assertThrows(IOException.class, log::read);
            assertEquals(RetriableRemoteStorageException.class, failure.getCause().getClass());
        });

        assertEventually(rsm.cancelled::get, "the call ends");
        assertTrue(lines.get(0).contains("no progress"), lines::toString);
    }

    @Test
    void waitingForAThreadOfTheServerIsNoStandstill() throws Exception {
        manager.close();
        manager = manager(PROGRESS_TIMEOUT_MS);
        rsm.log = random(3 * MIB);

        server.turns().hold();
        letGoOnWellAfterTheTimeout();
        manager.copyLogSegmentData(Samples.SEGMENT, segment(rsm.log));
        assertArrayEquals(rsm.log, rsm.received(SegmentFile.SEGMENT_FILE_LOG));

        server.turns().hold();
        letGoOnWellAfterTheTimeout();
        try (InputStream log = manager.fetchLogSegment(Samples.SEGMENT, 0, 3 * MIB - 1)) {
            assertArrayEquals(rsm.log, log.readAllBytes());
        }
    }

    @Test
    void copyThatStandsStillOnceItWasTakenUpIsEnded() throws Exception {
        manager.close();
        manager = manager(PROGRESS_TIMEOUT_MS);
        rsm.readsNothing = true;
        server.turns().hold();
        letGoOnWellAfterTheTimeout();

        RemoteStorageException failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.copyLogSegmentData(Samples.SEGMENT, segment(random(16 * MIB))));

        assertTrue(failure.getMessage().endsWith("no progress for " + PROGRESS_TIMEOUT_MS + " ms"),
            failure.getMessage());
        assertEventually(rsm.cancelled::get, "the call ends");
    }

    @Test
    void streamThatIsDroppedEndsItsCall() throws Exception {
        rsm.log = random(16 * MIB);
        manager.fetchLogSegment(Samples.SEGMENT, 0);

        assertEventually(() -> {
            System.gc();
            return rsm.cancelled.get();
        }, "the call ends");
    }

    @Test
    void deleteIsOneCall() throws Exception {
        manager.deleteLogSegmentData(Samples.SEGMENT);
        assertEquals(Conversions.toMessage(Samples.SEGMENT), rsm.deleted.getMetadata());

        rsm.failure =
            LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR");
        assertThrows(RetriableRemoteStorageException.class,
            () -> manager.deleteLogSegmentData(Samples.SEGMENT));
    }

    @Test
    void objectsThatRlmmKeepsStay() throws Exception {
        server.segments().know(
            Conversions.toMessage(Samples.SEGMENT).toBuilder().setKeptUntilMs(1).build());

        manager.deleteLogSegmentData(Samples.SEGMENT);

        assertNull(rsm.deleted);
    }

    @Test
    void theObjectsThatRlmmNamesAreDeleted() throws Exception {
        var replaced = Conversions.toMessage(Samples.SEGMENT).toBuilder()
            .setCustomMetadata(ByteString.copyFromUtf8("replaced"))
            .build();
        server.segments().know(replaced);

        manager.deleteLogSegmentData(Samples.SEGMENT);

        assertEquals(replaced, rsm.deleted.getMetadata());
    }

    @Test
    void nothingIsDeletedIfRlmmCannotBeAsked() {
        server.segments().failWith(
            LocalServer.refusal(Status.Code.UNAVAILABLE, "RETRIABLE_REMOTE_STORAGE_ERROR"));

        assertThrows(RetriableRemoteStorageException.class,
            () -> manager.deleteLogSegmentData(Samples.SEGMENT));
        assertNull(rsm.deleted);
    }

    @Test
    void serviceThatIsAwayFailsCallsButNotTheStart() {
        server.stop();
        manager.close();
        manager = manager(60_000);

        RemoteStorageException failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.fetchLogSegment(Samples.SEGMENT, 0));

        assertTrue(failure.getMessage().contains(server.endpoint()), failure.getMessage());
        server.startAgain();
    }

    @Test
    void nullsAreRefused() {
        assertThrows(NullPointerException.class,
            () -> manager.copyLogSegmentData(null, segment(random(1))));
        assertThrows(NullPointerException.class,
            () -> manager.copyLogSegmentData(Samples.SEGMENT, null));
        assertThrows(NullPointerException.class, () -> manager.fetchLogSegment(null, 0));
        assertThrows(NullPointerException.class, () -> manager.fetchIndex(Samples.SEGMENT, null));
        assertThrows(NullPointerException.class, () -> manager.deleteLogSegmentData(null));
    }

    @Test
    void closingTwiceOrUnconfiguredDoesNothing() {
        manager.close();
        manager.close();
        new SedimentRemoteStorageManager().close();
    }

    private void letGoOnWellAfterTheTimeout() {
        CompletableFuture
            .delayedExecutor(3 * PROGRESS_TIMEOUT_MS / 2, TimeUnit.MILLISECONDS)
            .execute(server.turns()::letGoOn);
    }

    private SedimentRemoteStorageManager manager(int progressTimeoutMs) {
        SedimentRemoteStorageManager made = new SedimentRemoteStorageManager();
        made.configure(server.settings("progress.timeout.ms", progressTimeoutMs));
        return made;
    }

    private LogSegmentData segment(byte[] log) throws IOException {
        return segment(log, Optional.empty(), ByteBuffer.wrap(new byte[] {6}));
    }

    private LogSegmentData segment(byte[] log, Optional<byte[]> transactions, ByteBuffer epochs)
        throws IOException {
        Optional<Path> transactionIndex = Optional.empty();
        if (transactions.isPresent()) {
            transactionIndex = Optional.of(file("0.txnindex", transactions.get()));
        }
        return new LogSegmentData(
            file("0.log", log),
            file("0.index", new byte[] {1, 2}),
            file("0.timeindex", new byte[0]),
            transactionIndex,
            file("0.snapshot", new byte[] {3}),
            epochs);
    }

    private Path file(String name, byte[] content) throws IOException {
        return Files.write(directory.resolve(name), content);
    }

    private static byte[] random(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    /** Memory outside of the heap that is in use, of this client and of the server. */
    private static long cachedBytes() {
        return PooledByteBufAllocator.DEFAULT.pinnedDirectMemory();
    }

    private static void truncate(Path file, int sizeBytes) {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE)) {
            channel.truncate(sizeBytes);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static void append(Path file, int sizeBytes) {
        try {
            Files.write(file, new byte[sizeBytes], StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** What the tests tell the server to do, and what it saw. */
    private static final class Rsm extends RemoteStorageManagerImplBase {
        private final Map<SegmentFile, ByteArrayOutputStream> chunks =
            new EnumMap<>(SegmentFile.class);
        private final AtomicBoolean cancelled = new AtomicBoolean();
        private volatile byte[] log;
        private volatile RuntimeException failure;
        private volatile boolean standsStill;
        private volatile boolean readsNothing;
        private volatile ByteString customMetadata;
        private volatile java.util.function.Consumer<StreamObserver<?>> onHeader = answer -> { };
        private volatile List<SegmentFileHeader> announced;
        private volatile int largestChunkBytes;
        private volatile FetchLogSegmentRequest fetched;
        private volatile DeleteLogSegmentDataRequest deleted;

        byte[] received(SegmentFile file) {
            return chunks.get(file).toByteArray();
        }

        @Override
        public StreamObserver<CopyLogSegmentDataRequest> copyLogSegmentData(
            StreamObserver<CopyLogSegmentDataResponse> answer
        ) {
            watch(answer);
            if (readsNothing) {
                ((ServerCallStreamObserver<?>) answer).disableAutoRequest();
            }
            return new StreamObserver<>() {
                @Override
                public void onNext(CopyLogSegmentDataRequest request) {
                    if (request.hasHeader()) {
                        announced = request.getHeader().getFilesList();
                        onHeader.accept(answer);
                    } else {
                        ByteString data = request.getChunk().getData();
                        largestChunkBytes = Math.max(largestChunkBytes, data.size());
                        chunks.computeIfAbsent(
                            request.getChunk().getFile(), file -> new ByteArrayOutputStream())
                            .writeBytes(data.toByteArray());
                    }
                }

                @Override
                public void onError(Throwable cause) {
                    cancelled.set(true);
                }

                @Override
                public void onCompleted() {
                    var message = CopyLogSegmentDataResponse.newBuilder();
                    if (customMetadata != null) {
                        message.setCustomMetadata(customMetadata);
                    }
                    answer.onNext(message.build());
                    answer.onCompleted();
                }
            };
        }

        @Override
        public void fetchLogSegment(
            FetchLogSegmentRequest request, StreamObserver<FetchLogSegmentResponse> answer
        ) {
            fetched = request;
            watch(answer);
            if (log != null) {
                for (int start = 0; start < log.length; start += MIB) {
                    answer.onNext(FetchLogSegmentResponse.newBuilder()
                        .setData(ByteString.copyFrom(log, start, Math.min(MIB, log.length - start)))
                        .build());
                }
            }
            if (failure != null) {
                answer.onError(failure);
            } else if (!standsStill) {
                answer.onCompleted();
            }
        }

        @Override
        public void fetchIndex(
            FetchIndexRequest request, StreamObserver<FetchIndexResponse> answer
        ) {
            answer.onError(failure);
        }

        @Override
        public void deleteLogSegmentData(
            DeleteLogSegmentDataRequest request, StreamObserver<DeleteLogSegmentDataResponse> answer
        ) {
            deleted = request;
            if (failure != null) {
                answer.onError(failure);
            } else {
                answer.onNext(DeleteLogSegmentDataResponse.getDefaultInstance());
                answer.onCompleted();
            }
        }

        private void watch(StreamObserver<?> answer) {
            ((ServerCallStreamObserver<?>) answer).setOnCancelHandler(() -> cancelled.set(true));
        }
    }
}
