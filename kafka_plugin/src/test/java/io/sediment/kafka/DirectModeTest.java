package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import javax.management.ObjectName;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class DirectModeTest {
    private static final int MIB = 1024 * 1024;
    private static final int CHUNK = ChunkCache.CHUNK_BYTES;

    private final LogServer rsm = new LogServer();
    private final LocalServer server = new LocalServer(rsm);
    private final ObjectStore store = new ObjectStore();
    private final RemoteLogSegmentMetadata segment = Samples.newSegment(0, 3 * CHUNK + 17);
    private final byte[] log = rsm.put(segment);
    private final SedimentRemoteStorageManager manager = new SedimentRemoteStorageManager();
    private final AtomicReference<Exception> failure = new AtomicReference<>();

    @AfterEach
    void close() {
        manager.close();
        server.close();
        store.close();
    }

    @Test
    void sequentialReaderReadsEachChunkOnceFromTheStore() throws Exception {
        rsm.handOut(store);
        manager.configure(server.settings("broker.id", 9, "direct.reads", "true"));
        ObjectName name = new ObjectName("io.sediment.kafka:type=DirectReads,broker=9");

        assertArrayEquals(log, readAll());

        assertEquals(List.of(0, CHUNK, 2 * CHUNK, 3 * CHUNK),
            store.starts().stream().sorted().toList());
        assertTrue(rsm.fetched().stream().noneMatch(LogServer.Range::isChunk));
        assertEquals((long) log.length,
            ManagementFactory.getPlatformMBeanServer().getAttribute(name, "Bytes"));
        manager.close();
        assertFalse(ManagementFactory.getPlatformMBeanServer().isRegistered(name));
    }

    @Test
    void rsmWithoutDirectReadsIsNoFailure() throws Exception {
        List<String> lines = LogLines.during(() -> {
            manager.configure(server.settings("broker.id", 9, "direct.reads", "true"));
            assertArrayEquals(log, readAll());
        });
        assertEquals(0, lines.stream().filter(line -> line.contains("does not serve")).count(),
            () -> "" + lines);
        assertEquals(1, lines.stream().filter(line -> line.contains("RSM_DIRECT_READS")).count(),
            () -> "" + lines);
    }

    @Test
    void nothingIsReadDirectlyUnlessThatIsSet() throws Exception {
        rsm.handOut(store);
        manager.configure(server.settings("broker.id", 9));
        assertArrayEquals(log, readAll());
        assertEquals(List.of(), store.starts());
    }

    @Test
    void managerIsClosedWhileTheStoreStandsStill() throws Exception {
        rsm.handOut(store);
        store.standStill();
        manager.configure(server.settings("broker.id", 9, "direct.reads", "true"));
        try (InputStream stream = manager.fetchLogSegment(segment, 0)) {
            stream.readNBytes(MIB);
        }
        // Of a sequential reader, who waits for the store as long as the manager is open.
        Thread reader = new Thread(() -> {
            try (InputStream stream = manager.fetchLogSegment(segment, MIB)) {
                stream.readNBytes(MIB);
            } catch (IOException | RemoteStorageException e) {
                failure.set(e);
            }
        });
        reader.start();
        assertEventually(() -> !store.starts().isEmpty(), "the store is asked");

        manager.close();

        reader.join(TimeUnit.SECONDS.toMillis(60));
        assertEquals(RetriableRemoteStorageException.class, failure.get().getClass());
    }

    private byte[] readAll() throws Exception {
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        while (read.size() < log.length) {
            try (InputStream stream = manager.fetchLogSegment(segment, read.size())) {
                read.write(stream.readNBytes(MIB));
            }
        }
        return read.toByteArray();
    }
}
