package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.stub.StreamObserver;
import io.sediment.kafka.LogServer.After;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataRequest;
import io.sediment.tieredstorage.v1.GetRemoteLogSegmentMetadataResponse;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesRequest;
import io.sediment.tieredstorage.v1.OnPartitionLeadershipChangesResponse;
import io.sediment.tieredstorage.v1.RemoteLogMetadataManagerGrpc.RemoteLogMetadataManagerImplBase;
import io.sediment.tieredstorage.v1.WatchPartitionsRequest;
import io.sediment.tieredstorage.v1.WatchPartitionsResponse;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A broker closes the plugin while consumers wait for the tier and RLMM reports changes. */
class OrderlyCloseTest {
    private static final int CHUNK = ChunkCache.CHUNK_BYTES;
    // Six parts of the plugin wait for their threads, five seconds each at most.
    private static final Duration AT_MOST = Duration.ofSeconds(30);
    /** Of calls: nothing but the close ends them in time. */
    private static final int NEVER_MS = 600_000;

    @TempDir
    Path directory;
    private final LogServer rsm = new LogServer();
    private final Rlmm rlmm = new Rlmm();
    private final LocalServer rsmServer = new LocalServer(rsm);
    private final LocalServer rlmmServer = new LocalServer(rlmm);
    private final SedimentRemoteStorageManager storage = new SedimentRemoteStorageManager();
    private final SedimentRemoteLogMetadataManager metadata =
        new SedimentRemoteLogMetadataManager();
    private final Set<Thread> earlier = Thread.getAllStackTraces().keySet();
    private final List<Thread> readers = new ArrayList<>();
    private final List<Exception> failures = new CopyOnWriteArrayList<>();

    private interface Read {
        void run() throws IOException, RemoteStorageException;
    }

    @AfterEach
    void stop() {
        storage.close();
        metadata.close();
        rsm.goOn();
        rsmServer.close();
        rlmmServer.close();
    }

    @Test
    void closeEndsReadsAndTheWatchAndLeavesNoThreadAndNoLine() throws Exception {
        storage.configure(rsmServer.settings(
            "broker.id", 9, "read.ahead.directory", directory.resolve("chunks").toString(),
            "request.timeout.ms", NEVER_MS, "progress.timeout.ms", NEVER_MS));
        metadata.configure(
            rlmmServer.settings("node.id", 9, "request.timeout.ms", NEVER_MS));
        metadata.onPartitionLeadershipChanges(Set.of(Samples.PARTITION), Set.of());
        assertEventually(() -> rlmm.watches.get() == 1, "the watch is live");
        RemoteLogSegmentMetadata segment = Samples.newSegment(0, 3 * CHUNK);
        rsm.put(segment);
        readSequentially(segment);
        rsm.after(1000, After.WAIT);
        begin(() -> storage.fetchLogSegment(segment, 2 * CHUNK).readAllBytes());
        begin(() -> storage.fetchLogSegment(segment, 5, CHUNK).readAllBytes());
        begin(() -> metadata.remoteLogSegmentMetadata(Samples.PARTITION, 0, 5));
        assertEventually(() -> rlmm.lookUps.get() == 1, "the look-up is on its way");
        assertEventually(() -> readers.stream().allMatch(OrderlyCloseTest::waits), "reads wait");
        assertTrue(pluginThreads().size() > 2, () -> pluginThreads().toString());

        List<String> lines = LogLines.during(() -> Assertions.assertTimeoutPreemptively(
            AT_MOST, () -> {
                storage.close();
                metadata.close();
            }));
        for (Thread reader : readers) {
            reader.join(AT_MOST.toMillis());
        }

        assertEquals(readers.size(), failures.size(), failures::toString);
        // A thread leaves its pool a moment before it ends. Left alone, it ends after a minute.
        long endNanos = System.nanoTime() + AT_MOST.toNanos();
        for (Thread thread : pluginThreads()) {
            thread.join(Math.max(1, (endNanos - System.nanoTime()) / 1_000_000));
        }
        assertEquals(Set.of(), pluginThreads());
        assertEquals(List.of(), lines);
    }

    /** Reads the first chunk as a consumer does, so that the next one is fetched ahead. */
    private void readSequentially(RemoteLogSegmentMetadata segment) throws Exception {
        for (int position = 0; position < CHUNK; position += CHUNK / 4) {
            try (InputStream log = storage.fetchLogSegment(segment, position)) {
                log.readNBytes(CHUNK / 4);
            }
        }
    }

    private void begin(Read read) {
        Thread reader = new Thread(() -> {
            try {
                read.run();
            } catch (IOException | RemoteStorageException e) {
                failures.add(e);
            }
        });
        reader.setDaemon(true);
        reader.start();
        readers.add(reader);
    }

    private static boolean waits(Thread thread) {
        return thread.getState() == Thread.State.WAITING
            || thread.getState() == Thread.State.TIMED_WAITING;
    }

    /** The plugin's threads that were not there before the test. */
    private Set<Thread> pluginThreads() {
        return Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> !earlier.contains(thread))
            .filter(thread -> thread.getName().startsWith("sediment-"))
            .collect(Collectors.toSet());
    }

    /** Reports that a watch has begun, and answers no look-up. */
    private static final class Rlmm extends RemoteLogMetadataManagerImplBase {
        private final AtomicInteger watches = new AtomicInteger();
        private final AtomicInteger lookUps = new AtomicInteger();

        @Override
        public void onPartitionLeadershipChanges(
            OnPartitionLeadershipChangesRequest request,
            StreamObserver<OnPartitionLeadershipChangesResponse> answer
        ) {
            answer.onNext(OnPartitionLeadershipChangesResponse.getDefaultInstance());
            answer.onCompleted();
        }

        @Override
        public void watchPartitions(
            WatchPartitionsRequest request, StreamObserver<WatchPartitionsResponse> answer
        ) {
            answer.onNext(WatchPartitionsResponse.getDefaultInstance());
            watches.incrementAndGet();
        }

        @Override
        public void getRemoteLogSegmentMetadata(
            GetRemoteLogSegmentMetadataRequest request,
            StreamObserver<GetRemoteLogSegmentMetadataResponse> answer
        ) {
            lookUps.incrementAndGet();
        }
    }
}
