package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.stub.StreamObserver;
import io.netty.handler.ssl.SslContext;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataRequest;
import io.sediment.tieredstorage.v1.DeleteLogSegmentDataResponse;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochRequest;
import io.sediment.tieredstorage.v1.GetHighestOffsetForEpochResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc.RemoteStorageManagerImplBase;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Both plugins over servers that ask every client for a certificate. */
class TlsTest {
    private static final int CALLERS = 4;
    private static final int ROTATIONS = 5;

    @TempDir
    private Path directory;
    private final TestAuthority authority = new TestAuthority();
    private final Rsm rsm = new Rsm();
    private LocalServer server;
    private SedimentRemoteStorageManager manager;

    @BeforeEach
    void start() throws Exception {
        server = new LocalServer(rsm, Optional.of(authority.server(authority.issue("rsm"))));
        authority.writeTo(directory);
        authority.issue("broker").writeTo(directory);
    }

    @AfterEach
    void stop() {
        rsm.finish.countDown();
        if (manager != null) {
            manager.close();
        }
        server.close();
    }

    @Test
    void bothSidesProveWhoTheyAre() throws Exception {
        configure();

        manager.deleteLogSegmentData(Samples.SEGMENT);

        assertEquals(List.of("CN=broker", "CN=broker"), server.peers());
    }

    @Test
    void metadataGoesOverTlsToo() throws Exception {
        try (LocalServer other = new LocalServer(
            new Rlmm(), Optional.of(authority.server(authority.issue("rlmm"))));
            SedimentRemoteLogMetadataManager metadata = new SedimentRemoteLogMetadataManager()) {
            metadata.configure(other.settings(directory));

            assertEquals(Optional.of(9L), metadata.highestOffsetForEpoch(Samples.PARTITION, 0));
            assertEquals(List.of("CN=broker"), other.peers());
        }
    }

    @Test
    void addressOfAListNeedsACertificateOfItsOwn() throws Exception {
        Map<String, Object> settings = server.settings(directory);
        settings.put("endpoint", "ipv4:" + server.endpoint());
        manager = new SedimentRemoteStorageManager();
        manager.configure(settings);

        manager.deleteLogSegmentData(Samples.SEGMENT);
    }

    @Test
    void rsaKeyWorksToo() throws Exception {
        authority.issue("broker", TestAuthority.keys("RSA", 2048), Instant.now(), "127.0.0.1")
            .writeTo(directory);
        configure();

        manager.deleteLogSegmentData(Samples.SEGMENT);
    }

    @Test
    void serverOfAnotherAuthorityIsRefused() throws Exception {
        new TestAuthority().writeTo(directory);

        assertFails("unable to find valid certification path");
    }

    @Test
    void serverWhoseCertificateHasExpiredIsRefused() throws Exception {
        serve(authority.issue("rsm", TestAuthority.keys("EC", 256),
            Instant.now().minus(Duration.ofHours(2)), "127.0.0.1"));

        assertFails("NotAfter");
    }

    @Test
    void serverUnderAnotherNameIsRefused() throws Exception {
        serve(authority.issue(
            "rsm", TestAuthority.keys("EC", 256), Instant.now(), "192.0.2.1"));

        assertFails("matching IP address 127.0.0.1");
    }

    @Test
    void clientOfAnotherAuthorityIsRefusedByTheServer() throws Exception {
        new TestAuthority().issue("broker").writeTo(directory);

        assertFails("certificate");
    }

    @Test
    void clientWhoseCertificateHasExpiredStartsWithAWarningAndIsRefused() throws Exception {
        expired().writeTo(directory);

        List<String> lines = LogLines.during(() ->
            assertFails("certificate"));

        assertTrue(lines.get(0).contains("WARN"), lines::toString);
        assertTrue(lines.get(0).contains(file("tls.crt") + ": the certificate expired at"),
            lines::toString);
    }

    @Test
    void serverWithoutTlsIsNamed() throws Exception {
        server.stop();
        server.startAgain(Optional.empty());

        assertFails("not an SSL/TLS record");
    }

    @Test
    void plaintextToAServerWithTlsNamesTheServer() {
        manager = new SedimentRemoteStorageManager();
        manager.configure(Map.of(
            "endpoint", server.endpoint(),
            "rlmm.endpoint", server.endpoint(),
            "security.protocol", "PLAINTEXT"));

        Exception failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.deleteLogSegmentData(Samples.SEGMENT));

        assertContains(failure, server.endpoint());
        assertContains(failure, "UNAVAILABLE");
    }

    @Test
    void callsGoOnWhileCertificatesAreRotated() throws Exception {
        configure();
        InputStream stream = manager.fetchLogSegment(Samples.SEGMENT, 0, 2);
        assertEquals(1, stream.read());
        ExecutorService pool = Executors.newFixedThreadPool(CALLERS);
        AtomicInteger calls = new AtomicInteger();
        CountDownLatch stop = new CountDownLatch(1);
        List<Future<?>> callers = new ArrayList<>();
        for (int i = 0; i < CALLERS; i++) {
            callers.add(pool.submit(() -> {
                while (stop.getCount() > 0) {
                    manager.deleteLogSegmentData(Samples.SEGMENT);
                    calls.incrementAndGet();
                }
                return null;
            }));
        }
        for (int i = 0; i < ROTATIONS; i++) {
            String name = "broker " + i;
            authority.issue(name).writeTo(directory);
            assertEventually(() -> server.peers().contains("CN=" + name), name);
        }
        stop.countDown();
        for (Future<?> caller : callers) {
            caller.get(10, TimeUnit.SECONDS);
        }
        pool.shutdown();
        rsm.finish.countDown();

        assertTrue(calls.get() > ROTATIONS, () -> calls + " calls");
        assertArrayEquals(new byte[] {2, 3}, stream.readAllBytes());
        // Four at most for each certificate, and as many of the connections that deletions ask by.
        assertEquals(
            1 + ROTATIONS, Set.copyOf(server.peers()).size(), () -> server.peers().toString());
        assertTrue(server.peers().size() <= 8 * (1 + ROTATIONS), () -> server.peers().toString());
    }

    @Test
    void filesThatBecomeBadLeaveTheOldOnesInForceUntilTheyAreGood() throws Exception {
        configure();
        manager.deleteLogSegmentData(Samples.SEGMENT);
        LogLines.during(lines -> {
            TestAuthority.replace(file("tls.crt"), "nothing\n");
            assertEventually(() -> lines.get().stream().anyMatch(line -> line.contains("WARN")
                && line.contains("rsm.config.ssl.certificate.file=" + file("tls.crt"))), "WARN");
            server.stop();
            server.startAgain();
            assertEventually(this::deletes, "the old files work on a new connection");
            assertEquals("CN=broker", server.peers().get(1));
            authority.issue("new broker").writeTo(directory);
            assertEventually(() -> deletes() && server.peers().contains("CN=new broker"), "new");
        });
    }

    @Test
    void badFilesAreNamedOnceAndOnlyIfTheyStay() throws Exception {
        TestAuthority.Issued next = authority.issue("new broker");
        TestAuthority.Issued expired = expired();
        List<String> lines = LogLines.during(() -> {
            try (ReloadedTls tls = reloadedTls()) {
                Files.writeString(file("tls.crt"), "nothing\n");
                poll(tls, 3);
                expired.writeTo(directory);
                poll(tls, 3);
                Files.writeString(
                    file("tls.crt"), TestAuthority.certificatePem(next.certificate()));
                poll(tls, 1);
                next.writeTo(directory);
                poll(tls, 3);
            }
        });

        assertEquals(3, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("WARN"), lines::toString);
        assertTrue(lines.get(0).contains("no BEGIN CERTIFICATE"), lines::toString);
        assertTrue(lines.get(1).contains("WARN"), lines::toString);
        assertTrue(lines.get(1).contains("the certificate expired at"), lines::toString);
        assertTrue(lines.get(2).contains("TLS files reloaded"), lines::toString);
    }

    @Test
    void authorityIsRotatedThroughAFileThatHasBoth() throws Exception {
        configure();
        manager.deleteLogSegmentData(Samples.SEGMENT);
        TestAuthority next = new TestAuthority();
        next.writeTo(directory);
        next.issue("new broker").writeTo(directory);
        server.stop();
        server.startAgain(Optional.of(next.server(next.issue("rsm"))));

        assertEventually(this::deletes, "the new authority is trusted");
        assertEquals("CN=new broker", server.peers().get(server.peers().size() - 1));
    }

    @Test
    void closingEndsTheThreadThatReadsTheFiles() {
        configure();
        manager.close();

        assertEventually(() -> Thread.getAllStackTraces().keySet().stream()
            .noneMatch(thread -> thread.getName().equals("sediment-tls-files")), "it ends");
    }

    @Test
    void fileThatCannotBeUsedIsNamedAtTheStart() throws Exception {
        String key = Files.readString(directory.resolve("tls.key"));
        assertRefused("tls.key", null, "no such file");
        assertRefused("tls.key", "", "no BEGIN PRIVATE KEY");
        assertRefused("tls.key", key.replace("BEGIN P", "BEGIN ENCRYPTED P")
            .replace("END P", "END ENCRYPTED P"), "openssl pkcs8 -topk8 -nocrypt");
        assertRefused("tls.key", key.replace("BEGIN P", "BEGIN EC P").replace("END P", "END EC P"),
            "openssl pkcs8 -topk8 -nocrypt");
        assertRefused(
            "tls.key", TestAuthority.pem("PRIVATE KEY", new byte[] {1}), "cannot be read");
        assertRefused("tls.key",
            TestAuthority.pem("PRIVATE KEY", authority.issue("other").key()), "does not belong to");
        assertRefused("tls.key", TestAuthority.pem("PRIVATE KEY",
            TestAuthority.keys("RSA", 2048).getPrivate().getEncoded()), "does not belong to");
        assertRefused("tls.crt", key, "no BEGIN CERTIFICATE");
        assertRefused("ca.crt", TestAuthority.pem("CERTIFICATE", new byte[] {1}), "cannot be read");
        String noBytes = TestAuthority.pem("CERTIFICATE", new byte[0]);
        assertRefused("ca.crt", noBytes.replace("\n\n", "\nA\n"), "is not Base64");
    }

    private ReloadedTls reloadedTls() throws Exception {
        return new ReloadedTls("RSM at rsm:1", new StorageManagerConfig(
            server.settings(directory)).tlsFiles().orElseThrow());
    }

    private static void poll(ReloadedTls tls, int times) {
        for (int i = 0; i < times; i++) {
            tls.poll();
        }
    }

    private TestAuthority.Issued expired() {
        return authority.issue("broker", TestAuthority.keys("EC", 256),
            Instant.now().minus(Duration.ofHours(2)), "127.0.0.1");
    }

    private void configure() {
        manager = new SedimentRemoteStorageManager();
        manager.configure(server.settings(directory));
    }

    private void serve(TestAuthority.Issued identity) {
        SslContext context = authority.server(identity);
        server.stop();
        server.startAgain(Optional.of(context));
    }

    private boolean deletes() {
        try {
            manager.deleteLogSegmentData(Samples.SEGMENT);
            return true;
        } catch (Exception e) {
            return false;
        }
    }

    private Path file(String name) {
        return directory.resolve(name);
    }

    private void assertFails(String... words) {
        configure();
        Exception failure = assertThrows(RetriableRemoteStorageException.class,
            () -> manager.deleteLogSegmentData(Samples.SEGMENT));
        assertContains(failure, server.endpoint());
        for (String word : words) {
            assertContains(failure, word);
        }
    }

    private void assertRefused(String name, String content, String problem) throws Exception {
        String before = Files.readString(file(name));
        if (content == null) {
            Files.delete(file(name));
        } else {
            Files.writeString(file(name), content);
        }
        Exception failure = assertThrows(ConfigException.class, this::configure);
        assertContains(failure, "rsm.config.ssl.");
        assertContains(failure, file(name).toString());
        assertContains(failure, problem);
        Files.writeString(file(name), before);
    }

    private static void assertContains(Exception failure, String word) {
        assertTrue(failure.getMessage().contains(word), failure.getMessage());
        assertEquals(1, failure.getMessage().lines().count(), failure.getMessage());
    }

    /** Streams one byte, and two more when the test says so. */
    private static final class Rsm extends RemoteStorageManagerImplBase {
        private final CountDownLatch finish = new CountDownLatch(1);

        @Override
        public void deleteLogSegmentData(
            DeleteLogSegmentDataRequest request, StreamObserver<DeleteLogSegmentDataResponse> answer
        ) {
            answer.onNext(DeleteLogSegmentDataResponse.getDefaultInstance());
            answer.onCompleted();
        }

        @Override
        public void fetchLogSegment(
            FetchLogSegmentRequest request, StreamObserver<FetchLogSegmentResponse> answer
        ) {
            answer.onNext(chunk(1));
            try {
                finish.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            answer.onNext(chunk(2));
            answer.onNext(chunk(3));
            answer.onCompleted();
        }

        private static FetchLogSegmentResponse chunk(int value) {
            return FetchLogSegmentResponse.newBuilder()
                .setData(ByteString.copyFrom(new byte[] {(byte) value}))
                .build();
        }
    }

    /** Knows one offset. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        @Override
        public void getHighestOffsetForEpoch(
            GetHighestOffsetForEpochRequest request,
            StreamObserver<GetHighestOffsetForEpochResponse> answer
        ) {
            answer.onNext(
                GetHighestOffsetForEpochResponse.newBuilder().setHighestOffset(9).build());
            answer.onCompleted();
        }
    }
}
