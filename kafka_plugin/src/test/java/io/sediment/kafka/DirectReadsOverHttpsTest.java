package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CopyOnWriteArrayList;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLSocketFactory;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The broker's trust store is that of its JVM, whose sockets the tests set. */
class DirectReadsOverHttpsTest {
    private static final int SIZE = 2 * 1024 * 1024 + 1000;

    private final SSLSocketFactory before = HttpsURLConnection.getDefaultSSLSocketFactory();
    private final TestAuthority authority = new TestAuthority();
    private final ObjectStore store =
        new ObjectStore(Optional.of(authority.httpsServer(authority.issue("store"))));
    private final byte[] log = random();
    /** The first position of each stream. */
    private final List<Integer> streamed = new CopyOnWriteArrayList<>();
    private final DirectReads reads = new DirectReads(
        "7",
        of -> LogServer.opened(log, store.put("log", log)),
        (of, start, end) -> {
            streamed.add(start);
            return new ByteArrayInputStream(Arrays.copyOfRange(log, start, end + 1));
        },
        () -> 0);

    @AfterEach
    void close() {
        reads.close();
        store.close();
        HttpsURLConnection.setDefaultSSLSocketFactory(before);
    }

    @Test
    void storeWithACertificateOfATrustedAuthorityIsRead() throws Exception {
        trust(authority);

        assertArrayEquals(log, readAll());

        assertEquals(List.of(), streamed);
        assertEquals(SIZE, reads.figures.get("Bytes"));
    }

    @Test
    void storeWithACertificateOfAnotherAuthorityIsStreamedAndSaidOnce() throws Exception {
        trust(new TestAuthority());

        List<String> lines = LogLines.during(() -> {
            assertArrayEquals(log, readAll());
            assertArrayEquals(log, readAll());
        });

        assertEquals(List.of(0, 0), streamed);
        assertEquals(List.of(), store.starts());
        assertEquals(0, reads.figures.get("Bytes"));
        assertSaidOnce(lines, store.host(), "SSLHandshakeException");
    }

    @Test
    void storeWithACertificateOfAnotherHostIsStreamedAndSaidOnce() throws Exception {
        trust(authority);
        try (ObjectStore other = new ObjectStore(
                Optional.of(authority.httpsServer(authority.issue("other", "192.0.2.1"))));
            DirectReads misled = new DirectReads(
                "8", of -> LogServer.opened(log, other.put("log", log)),
                (of, start, end) -> new ByteArrayInputStream(log), () -> 0)) {
            List<String> lines = LogLines.during(() -> {
                try (InputStream bytes = misled.open(Samples.newSegment(0, SIZE), 0, SIZE - 1)) {
                    assertArrayEquals(log, bytes.readAllBytes());
                }
            });
            assertSaidOnce(lines, other.host(), "No subject alternative names matching");
            assertEquals(List.of(), other.starts());
        }
    }

    private static void assertSaidOnce(List<String> lines, String host, String reason) {
        assertEquals(1, lines.size(), lines::toString);
        String line = lines.get(0);
        assertTrue(line.contains(" WARN ") && line.contains(host) && line.contains(reason), line);
        assertTrue(!line.contains(ObjectStore.SECRET), "the URL is in " + line);
    }

    private byte[] readAll() throws Exception {
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, SIZE);
        try (InputStream bytes = reads.open(segment, 0, SIZE - 1)) {
            return bytes.readAllBytes();
        }
    }

    private static void trust(TestAuthority trusted) {
        HttpsURLConnection.setDefaultSSLSocketFactory(trusted.trusting().getSocketFactory());
    }

    private static byte[] random() {
        byte[] bytes = new byte[SIZE];
        new Random(SIZE).nextBytes(bytes);
        return bytes;
    }
}
