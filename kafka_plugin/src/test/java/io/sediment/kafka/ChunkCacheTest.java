package io.sediment.kafka;

import static io.sediment.kafka.Eventually.assertEventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class ChunkCacheTest {
    private static final int CHUNK = ChunkCache.CHUNK_BYTES;

    private final RemoteLogSegmentMetadata segment = Samples.newSegment(0, 8 * CHUNK);
    private final AtomicLong nowNanos = new AtomicLong();
    private final AtomicInteger requests = new AtomicInteger();
    private volatile int lostBytes;
    private volatile CountDownLatch arrival = new CountDownLatch(0);
    private final ChunkCache cache = new ChunkCache(2 * CHUNK, (log, start, end) -> {
        try {
            arrival.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        byte[] bytes = new byte[end - start + 1];
        Arrays.fill(bytes, (byte) (start / CHUNK + 1));
        return new ByteArrayInputStream(bytes);
    }, Optional.empty(), nowNanos::get);

    @AfterEach
    void close() {
        arrival.countDown();
        cache.close();
    }

    @Test
    void chunkIsEvictedOnlyAfterItsReaderHasPassedIt() throws Exception {
        fetchWhole(0);
        fetchWhole(CHUNK);
        assertEquals(Optional.empty(), cache.get(segment, 2 * CHUNK, true));
        cache.pass(segment, CHUNK);
        fetchWhole(2 * CHUNK);
        assertEquals(Optional.empty(), cache.get(segment, CHUNK, false));
        assertTrue(cache.get(segment, 0, false).isPresent());
        assertEquals(1, cache.counts().evictions());
        assertEquals(2 * CHUNK, cache.counts().cachedBytes());
    }

    @Test
    void theChunkThatWasPassedFirstIsEvictedFirst() throws Exception {
        fetchWhole(0);
        fetchWhole(CHUNK);
        cache.pass(segment, CHUNK);
        cache.pass(segment, 0);
        fetchWhole(2 * CHUNK);
        assertTrue(cache.get(segment, 0, false).isPresent());
        assertFalse(cache.get(segment, CHUNK, false).isPresent());
    }

    @Test
    void chunkOfAReaderThatHasStoppedIsEvicted() throws Exception {
        fetchWhole(0);
        cache.fetchAhead(segment, CHUNK, 4);
        nowNanos.set(TimeUnit.SECONDS.toNanos(9));
        assertTrue(cache.get(segment, 0, false).isPresent());
        assertEventually(() -> cache.isWhole(segment, CHUNK), "the fetch ends");
        assertFalse(cache.get(segment, 2 * CHUNK, true).isPresent());
        nowNanos.set(TimeUnit.SECONDS.toNanos(10));
        assertEventually(() -> cache.get(segment, 2 * CHUNK, true).isPresent(), "room");
        assertEquals(CHUNK, cache.counts().neverUsedBytes());
    }

    @Test
    void chunkThatIsOnItsWayIsNeverEvicted() {
        arrival = new CountDownLatch(1);
        cache.get(segment, 0, true);
        cache.get(segment, CHUNK, true);
        cache.pass(segment, 0);
        nowNanos.set(TimeUnit.SECONDS.toNanos(3));
        assertFalse(cache.get(segment, 2 * CHUNK, true).isPresent());
    }

    @Test
    void readerDoesNotJoinAFetchThatStandsStill() {
        arrival = new CountDownLatch(1);
        assertTrue(cache.get(segment, 0, true).isPresent());
        nowNanos.set(TimeUnit.SECONDS.toNanos(4));
        assertTrue(cache.get(segment, 0, true).isPresent());
        nowNanos.set(TimeUnit.SECONDS.toNanos(5));
        assertFalse(cache.get(segment, 0, true).isPresent());
    }

    @Test
    void bytesOfADroppedFetchCountUntilItEnds() {
        arrival = new CountDownLatch(1);
        cache.get(segment, 0, true);
        cache.drop(segment.remoteLogSegmentId());
        assertEquals(CHUNK, cache.counts().cachedBytes());
        assertFalse(cache.get(segment, 0, false).isPresent());
        arrival.countDown();
        assertEventually(() -> cache.counts().cachedBytes() == 0, "its memory is free");
    }

    @Test
    void anotherSizeIsAnotherChunk() throws Exception {
        fetchWhole(0);
        RemoteLogSegmentMetadata shorter = new RemoteLogSegmentMetadata(
            segment.remoteLogSegmentId(), 0, 99, -1L, 7, 0L, CHUNK / 2, Optional.empty(),
            segment.state(), segment.segmentLeaderEpochs(), true);
        assertFalse(cache.get(shorter, 0, false).isPresent());
    }

    @Test
    void memoryOfAChunkIsUsedAgainOnceItsLastReaderHasReleasedIt() throws Exception {
        Chunk first = whole(0);
        Chunk second = cache.get(segment, 0, false).orElseThrow();
        cache.pass(segment, 0);
        cache.release(first);
        fetchWhole(CHUNK);
        fetchWhole(2 * CHUNK);
        assertEquals(1, cache.counts().evictions());
        assertEquals(1, byteOf(second, CHUNK - 1), "it is being read");
        cache.release(second);
        cache.pass(segment, CHUNK);
        fetchWhole(3 * CHUNK);
        assertThrows(NullPointerException.class, () -> byteOf(second, 0), "it is free");
        assertEquals(4, byteOf(cache.get(segment, 3 * CHUNK, false).orElseThrow(), 3 * CHUNK));
    }

    @Test
    void memoryOfADroppedFetchIsUsedAgainWhenItHasEnded() throws Exception {
        arrival = new CountDownLatch(1);
        Chunk dropped = cache.get(segment, 0, true).orElseThrow();
        cache.drop(segment.remoteLogSegmentId());
        cache.release(dropped);
        arrival.countDown();
        assertEventually(() -> cache.counts().cachedBytes() == 0, "the fetch ends");
        assertThrows(NullPointerException.class, () -> byteOf(dropped, 0), "it is free");
    }

    @Test
    void memoryThatNobodyUsesForAMinuteIsFreed() throws Exception {
        fetchWhole(0);
        fetchWhole(CHUNK);
        cache.pass(segment, 0);
        nowNanos.set(TimeUnit.SECONDS.toNanos(59));
        cache.freeUnused();
        assertEquals(2 * CHUNK, cache.counts().cachedBytes());
        nowNanos.set(TimeUnit.SECONDS.toNanos(60));
        cache.get(segment, CHUNK, false).ifPresent(cache::release);
        assertFalse(cache.get(segment, 0, false).isPresent());
        assertEventually(() -> cache.counts().cachedBytes() == CHUNK, "the other is read");
        nowNanos.set(TimeUnit.SECONDS.toNanos(70));
        cache.freeUnused();
        assertEquals(CHUNK, cache.counts().cachedBytes(), "its reader may have stopped");
        nowNanos.set(TimeUnit.SECONDS.toNanos(130));
        cache.freeUnused();
        assertEquals(0, cache.counts().cachedBytes());
        assertEquals(0, cache.spareBytes());
        assertEquals(0, cache.counts().evictions(), "no other needed the room");
    }

    @Test
    void chunkOnItsWayIsNotFreed() {
        arrival = new CountDownLatch(1);
        cache.get(segment, 0, true);
        nowNanos.set(TimeUnit.MINUTES.toNanos(10));
        cache.freeUnused();
        assertEquals(CHUNK, cache.counts().cachedBytes());
    }

    @Test
    void chunksAheadArriveByRequestsOfTwoAtOnceAndLeaveHalfOfTheRoom() throws Exception {
        try (ChunkCache roomy = new ChunkCache(
                8 * CHUNK, this::numbered, Optional.empty(), nowNanos::get)) {
            arrival = new CountDownLatch(1);
            roomy.get(segment, 0, true);
            roomy.fetchAhead(segment, CHUNK, 4);
            assertEventually(() -> requests.get() == 3, "none waits for another");
            arrival.countDown();
            for (int start = 0; start < 4 * CHUNK; start += CHUNK) {
                Chunk chunk = roomy.get(segment, start, false).orElseThrow();
                chunk.await(start + CHUNK - 1);
                assertEquals(start / CHUNK, byteOf(chunk, start));
                assertEquals(start / CHUNK, byteOf(chunk, start + CHUNK - 1));
            }
            assertFalse(roomy.get(segment, 4 * CHUNK, false).isPresent());
            assertEquals(3, requests.get());
            roomy.fetchAhead(segment, 7 * CHUNK, 4);
            assertEventually(() -> roomy.isWhole(segment, 7 * CHUNK), "the segment's last");
        }
    }

    @Test
    void chunksOfOneRequestWaitForTheReaderThatTakesThem() throws Exception {
        try (ChunkCache roomy = new ChunkCache(
                4 * CHUNK, this::numbered, Optional.empty(), nowNanos::get)) {
            roomy.fetchAhead(segment, 0, 4);
            assertEventually(() -> roomy.isWhole(segment, CHUNK), "all have arrived");
            for (int start = 0; roomy.get(segment, start, false).isPresent(); start += CHUNK) {
                nowNanos.addAndGet(TimeUnit.SECONDS.toNanos(9));
            }
            assertEquals(TimeUnit.SECONDS.toNanos(18), nowNanos.get());
            roomy.get(segment, 6 * CHUNK, true);
            roomy.get(segment, 7 * CHUNK, true);
            assertFalse(roomy.get(segment, 5 * CHUNK, true).isPresent());
            assertTrue(roomy.get(segment, CHUNK, false).isPresent());
            assertEquals(0, roomy.counts().evictions());
        }
    }

    @Test
    void requestThatBreaksOffKeepsTheChunksThatHaveArrived() throws Exception {
        lostBytes = CHUNK;
        try (ChunkCache roomy = new ChunkCache(
                8 * CHUNK, this::numbered, Optional.empty(), nowNanos::get)) {
            arrival = new CountDownLatch(1);
            roomy.fetchAhead(segment, 0, 2);
            Chunk first = roomy.get(segment, 0, false).orElseThrow();
            Chunk last = roomy.get(segment, CHUNK, false).orElseThrow();
            nowNanos.set(TimeUnit.SECONDS.toNanos(5));
            assertFalse(roomy.get(segment, CHUNK, false).isPresent(), "all stand still");
            arrival.countDown();
            first.await(CHUNK - 1);
            assertThrows(RemoteStorageException.class, () -> last.await(CHUNK));
            assertEventually(() -> roomy.counts().cachedBytes() == CHUNK, "the fetch ends");
            assertTrue(roomy.get(segment, 0, false).isPresent());
            assertFalse(roomy.get(segment, CHUNK, false).isPresent());
        }
    }

    @Test
    void readerGetsMoreChunksAheadTheLongerItReads() {
        assertEquals(1, ChunkCache.chunksAhead(0));
        assertEquals(1, ChunkCache.chunksAhead(4L * CHUNK - 1));
        assertEquals(2, ChunkCache.chunksAhead(4L * CHUNK));
        assertEquals(4, ChunkCache.chunksAhead(Long.MAX_VALUE));
    }

    /** Bytes that have the number of their chunk, of which the last are lost. */
    private InputStream numbered(RemoteLogSegmentMetadata log, int start, int end) {
        requests.incrementAndGet();
        try {
            arrival.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        byte[] bytes = new byte[end - start + 1 - lostBytes];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) ((start + at) / CHUNK);
        }
        return new ByteArrayInputStream(bytes);
    }

    @Test
    void closedCacheFetchesNothing() {
        cache.close();
        assertFalse(cache.get(segment, 0, true).isPresent());
    }

    private void fetchWhole(int start) throws Exception {
        cache.release(whole(start));
    }

    private Chunk whole(int start) throws Exception {
        Chunk chunk = cache.get(segment, start, true).orElseThrow();
        chunk.await(start + CHUNK - 1);
        // The fetch ends after its last byte has arrived.
        assertEventually(() -> cache.isWhole(segment, start), "the fetch ends");
        return chunk;
    }

    private static byte byteOf(Chunk chunk, int position) {
        byte[] one = new byte[1];
        chunk.copy(position, one, 0, 1);
        return one[0];
    }
}
