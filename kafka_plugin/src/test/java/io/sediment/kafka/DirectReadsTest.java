package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.sediment.tieredstorage.v1.OpenLogSegmentResponse;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

class DirectReadsTest {
    private static final int MIB = 1024 * 1024;
    private static final int SIZE = 2 * MIB + 1000;

    private final ObjectStore store = new ObjectStore();
    private final RemoteLogSegmentMetadata segment = Samples.newSegment(0, SIZE);
    private final byte[] log = random(SIZE);
    private final AtomicLong nowNanos = new AtomicLong();
    private final AtomicInteger asked = new AtomicInteger();
    /** The first position of each stream. */
    private final List<Integer> streamed = new CopyOnWriteArrayList<>();
    private volatile DirectReads.Opening rsm = asked -> opened(log);
    private final DirectReads reads = new DirectReads(
        "7",
        of -> {
            asked.incrementAndGet();
            return rsm.open(of);
        },
        (of, start, end) -> {
            streamed.add(start);
            return new ByteArrayInputStream(Arrays.copyOfRange(log, start, end + 1));
        },
        nowNanos::get);

    @AfterEach
    void close() {
        reads.close();
        store.close();
    }

    @Test
    void chunkIsReadFromTheStore() throws Exception {
        assertRead(0);
        assertEquals(List.of(0), store.starts());
        assertEquals(List.of(), streamed);
        assertEquals(SIZE, reads.figures.get("Bytes"));
        assertEquals(0, reads.figures.get("Failures"));
    }

    @Test
    void logIsOpenedOnceForAllItsReaders() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Void>> readers = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            int start = number % 3 * MIB;
            readers.add(threads.submit(() -> {
                assertRead(start);
                return null;
            }));
        }
        for (Future<Void> reader : readers) {
            reader.get();
        }
        threads.shutdown();
        assertEquals(1, asked.get());
        assertEquals(List.of(), streamed);
    }

    @Test
    void urlIsAskedForAgainBeforeItExpires() throws Exception {
        assertRead(0);
        nowNanos.set(TimeUnit.MILLISECONDS.toNanos(LogServer.VALID_MS / 4 * 3) - 1);
        assertRead(0);
        assertEquals(1, asked.get());
        nowNanos.incrementAndGet();
        assertRead(0);
        assertEquals(2, asked.get());
        assertEquals(List.of(), streamed);
    }

    @Test
    void damagedBlockIsNamedAndStreamedWithAllThatFollows() throws Exception {
        byte[] damaged = log.clone();
        damaged[MIB + 7] ^= 1;
        rsm = asked -> opened(damaged);

        List<String> lines = LogLines.during(() -> assertRead(0));

        assertEquals(List.of(MIB), streamed);
        assertEquals(MIB, reads.figures.get("Bytes"));
        assertEquals(1, reads.figures.get("Failures"));
        String line = onlyWarning(lines);
        assertTrue(line.contains(segment.remoteLogSegmentId().toString()), line);
        assertTrue(line.contains("bytes " + MIB + " to " + (2 * MIB - 1)), line);
    }

    @Test
    void damagedLogIsStreamedForAMinuteAndOthersAreNot() throws Exception {
        byte[] damaged = log.clone();
        damaged[0] ^= 1;
        rsm = asked -> opened(asked == segment ? damaged : log);
        assertRead(0);
        assertRead(0);
        assertEquals(List.of(0, 0), streamed);
        assertEquals(1, store.starts().size());
        read(Samples.newSegment(100, SIZE), 0);
        assertEquals(2, streamed.size());

        rsm = asked -> opened(log);
        nowNanos.set(TimeUnit.MINUTES.toNanos(1));
        assertRead(0);
        assertEquals(2, streamed.size());
    }

    @ParameterizedTest
    @ValueSource(ints = {200, 302, 403, 404, 416, 500, 503})
    void whateverTheStoreRefusesIsStreamedAndSaidOnce(int status) throws Exception {
        store.answerWith(status);

        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            assertRead(MIB);
            read(Samples.newSegment(100, SIZE), 0);
        });

        assertEquals(List.of(0, MIB, 0), streamed);
        String line = onlyWarning(lines);
        assertTrue(line.contains(": " + status), line);
        assertTrue(line.contains(store.host()), line);
        assertTrue(status < 400 || line.contains("Said"), line);
    }

    @Test
    void storeThatIsAwayIsAskedEachMinuteAndItsReturnIsSaid() throws Exception {
        store.answerWith(403);
        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            nowNanos.set(TimeUnit.SECONDS.toNanos(59));
            assertRead(0);
            assertEquals(1, store.starts().size());
            nowNanos.set(TimeUnit.SECONDS.toNanos(60));
            assertRead(0);
            assertEquals(2, store.starts().size());
            store.answerWith(206);
            nowNanos.set(TimeUnit.SECONDS.toNanos(120));
            assertRead(0);
            assertRead(0);
        });
        assertEquals(List.of(0, 0, 0), streamed);
        onlyWarning(lines);
        assertEquals(1, count(lines, " INFO ", "is read directly again"), () -> "" + lines);
    }

    @Test
    void storeThatWasAwayIsTriedByOneReadFirst() throws Exception {
        store.answerWith(503);
        assertRead(0);
        store.answerWith(206);
        nowNanos.set(TimeUnit.MINUTES.toNanos(1));
        try (InputStream first = reads.open(segment, 0, SIZE - 1)) {
            assertRead(0);
            assertEquals(List.of(0, 0), streamed);
            assertArrayEquals(log, first.readAllBytes());
        }
        assertRead(0);
        assertEquals(List.of(0, 0), streamed);
        assertEquals(3, store.starts().size());
    }

    @Test
    void storeThatStandsStillIsStreamedFrom() throws Exception {
        store.standStill();
        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            assertRead(MIB);
        });
        assertEquals(List.of(0, MIB), streamed);
        assertEquals(List.of(0), store.starts());
        assertTrue(onlyWarning(lines).contains("timed out"), () -> "" + lines);
    }

    @Test
    void answerThatIsCutIsStreamedFromTheLastBlockThatIsWhole() throws Exception {
        store.cutAfter(MIB + 10);
        assertRead(0);
        assertEquals(List.of(MIB), streamed);
        assertEquals(MIB, reads.figures.get("Bytes"));
    }

    @Test
    void storeWithoutARouteIsStreamedFrom() throws Exception {
        int port;
        try (ServerSocket closed = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = closed.getLocalPort();
        }
        rsm = asked -> opened(log).toBuilder()
            .setUrl("http://127.0.0.1:" + port + "/log?" + ObjectStore.SECRET).build();
        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            assertRead(0);
        });
        assertEquals(List.of(0, 0), streamed);
        assertTrue(onlyWarning(lines).contains("ConnectException"), () -> "" + lines);
    }

    @Test
    void failureOfTheStreamIsThatOfTheRead() throws Exception {
        store.cutAfter(10);
        try (DirectReads failing = new DirectReads("8", asked -> opened(log), (of, start, end) -> {
            throw new RemoteResourceNotFoundException("gone");
        }, nowNanos::get)) {
            InputStream bytes = failing.open(segment, 0, SIZE - 1);
            IOException failure = assertThrows(IOException.class, bytes::readAllBytes);
            assertEquals(RemoteResourceNotFoundException.class, failure.getCause().getClass());
        }
    }

    @Test
    void rsmWithoutDirectReadsIsSaidOnceAndAskedAgainAfterTenMinutes() throws Exception {
        rsm = refusal(Status.Code.UNIMPLEMENTED, "NOT_SERVED");
        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            nowNanos.set(TimeUnit.MINUTES.toNanos(10) - 1);
            read(Samples.newSegment(100, SIZE), 0);
            assertEquals(1, asked.get());
            nowNanos.incrementAndGet();
            assertRead(0);
            assertEquals(2, asked.get());
        });
        assertEquals(List.of(0, 0, 0), streamed);
        assertEquals(1, count(lines, " INFO ", "RSM_DIRECT_READS"), () -> "" + lines);
        assertEquals(0, count(lines, " WARN ", ""), () -> "" + lines);
    }

    @ParameterizedTest
    @EnumSource(names = {
        "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "NOT_FOUND", "DATA_LOSS", "UNAVAILABLE",
        "DEADLINE_EXCEEDED", "PERMISSION_DENIED"
    })
    void logThatRsmDoesNotOpenIsStreamedSilentlyAndAskedForAgain(Status.Code code)
        throws Exception {
        rsm = refusal(code, "OF_A_LATER_RELEASE");
        List<String> lines = LogLines.during(() -> {
            assertRead(0);
            assertRead(0);
        });
        assertEquals(List.of(), lines);
        assertEquals(1, asked.get());
        rsm = asked -> opened(log);
        nowNanos.set(TimeUnit.MINUTES.toNanos(1));
        assertRead(0);
        assertEquals(List.of(0, 0), streamed);
    }

    private static List<Consumer<OpenLogSegmentResponse.Builder>> unreadable() {
        return List.of(
            answer -> answer.setUrl("file:///etc/passwd?" + ObjectStore.SECRET),
            answer -> answer.setUrl("no URL " + ObjectStore.SECRET),
            answer -> answer.clearLog(),
            answer -> answer.getLogBuilder().getWholeBuilder().setSizeBytes(SIZE + 1),
            answer -> answer.getLogBuilder().setChunkBytes(3 * MIB),
            answer -> answer.getLogBuilder().setChunkBytes(-MIB),
            answer -> answer.getLogBuilder().addChunkCrc32C(1));
    }

    @ParameterizedTest
    @MethodSource("unreadable")
    void answerThatCannotBeReadIsNamedAndTheLogStreamed(
        Consumer<OpenLogSegmentResponse.Builder> change
    ) throws Exception {
        OpenLogSegmentResponse.Builder answer = opened(log).toBuilder();
        change.accept(answer);
        rsm = asked -> answer.build();
        List<String> lines = LogLines.during(() -> assertRead(0));
        assertEquals(List.of(0), streamed);
        assertEquals(List.of(), store.starts());
        onlyWarning(lines);
    }

    @Test
    void urlThatIsNotValidIsNotUsedTwice() throws Exception {
        rsm = asked -> opened(log).toBuilder().setValidForMs(0).build();
        assertRead(0);
        assertRead(0);
        assertEquals(2, asked.get());
    }

    private void assertRead(int start) throws Exception {
        assertArrayEquals(Arrays.copyOfRange(log, start, SIZE), read(segment, start));
    }

    private byte[] read(RemoteLogSegmentMetadata of, int start) throws Exception {
        try (InputStream bytes = reads.open(of, start, SIZE - 1)) {
            return bytes.readAllBytes();
        }
    }

    /** What RSM answers for the test's log, if the store has these bytes of it. */
    private OpenLogSegmentResponse opened(byte[] stored) {
        return LogServer.opened(log, store.put("log", stored));
    }

    private static DirectReads.Opening refusal(Status.Code code, String reason) {
        return asked -> {
            throw new RemoteStorageException("said RSM", LocalServer.refusal(code, reason));
        };
    }

    private static String onlyWarning(List<String> lines) {
        assertEquals(1, count(lines, " WARN ", ""), () -> "" + lines);
        assertEquals(0, count(lines, ObjectStore.SECRET, ""), () -> "the URL is in " + lines);
        return lines.stream().filter(line -> line.contains(" WARN ")).findFirst().orElseThrow();
    }

    private static long count(List<String> lines, String level, String words) {
        return lines.stream().filter(l -> l.contains(level) && l.contains(words)).count();
    }

    private static byte[] random(int size) {
        byte[] bytes = new byte[size];
        new Random(size).nextBytes(bytes);
        return bytes;
    }
}
