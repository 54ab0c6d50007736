package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.Test;

class LogRangesTest {
    private static final int FIRST = LogRanges.FIRST_RANGE_BYTES;

    private final byte[] log = new byte[10 * FIRST + 7];
    private final RemoteLogSegmentMetadata segment = Samples.newSegment(0, log.length);
    private final List<List<Integer>> opened = new ArrayList<>();
    private int closed;

    LogRangesTest() {
        new Random(1).nextBytes(log);
    }

    @Test
    void readsTheWholeLogInRangesThatDouble() throws Exception {
        try (InputStream stream = from(0)) {
            assertArrayEquals(log, stream.readAllBytes());
            assertEquals(-1, stream.read());
        }
        assertEquals(
            List.of(
                List.of(0, FIRST - 1),
                List.of(FIRST, 3 * FIRST - 1),
                List.of(3 * FIRST, 7 * FIRST - 1),
                List.of(7 * FIRST, log.length - 1)),
            opened);
        assertEquals(opened.size(), closed);
    }

    @Test
    void onlyWhatIsReadIsAskedFor() throws Exception {
        try (InputStream stream = from(5)) {
            assertArrayEquals(Arrays.copyOfRange(log, 5, 5 + FIRST), stream.readNBytes(FIRST));
        }
        assertEquals(List.of(List.of(5, 5 + FIRST - 1)), opened);
    }

    @Test
    void singleBytesCrossTheEndOfRange() throws Exception {
        try (InputStream stream = from(0)) {
            stream.skipNBytes(FIRST - 1);
            assertEquals(Byte.toUnsignedInt(log[FIRST - 1]), stream.read());
            assertEquals(Byte.toUnsignedInt(log[FIRST]), stream.read());
        }
    }

    @Test
    void lastByteIsRangeOfItsOwn() throws Exception {
        assertArrayEquals(new byte[] {log[log.length - 1]}, from(log.length - 1).readAllBytes());
    }

    @Test
    void closedStreamOpensNoFurtherRange() throws Exception {
        InputStream stream = from(0);
        stream.readNBytes(FIRST);
        stream.close();
        assertEquals(-1, stream.read(new byte[1], 0, 1));
        assertEquals(1, opened.size());
    }

    @Test
    void failureOfFirstRangeIsThrownAndOfLaterOneIsReadError() throws Exception {
        assertThrows(
            RemoteStorageException.class,
            () -> new LogRanges(LogRangesTest::fail, segment, 0));
        InputStream stream = new LogRanges(
            (of, start, end) -> start == 0 ? open(of, start, end) : fail(of, start, end), segment, 0);
        stream.skipNBytes(FIRST);
        IOException failure = assertThrows(IOException.class, stream::read);
        assertEquals(RemoteStorageException.class, failure.getCause().getClass());
    }

    @Test
    void rangeThatIsShortIsNoEnd() throws Exception {
        for (int shortRange : new int[] {0, 1}) {
            InputStream stream = new LogRanges(
                (of, start, end) -> open(of, start, start == shortRange * FIRST ? end - 1 : end),
                Samples.newSegment(0, 2 * FIRST),
                0);
            assertThrows(IOException.class, stream::readAllBytes);
        }
    }

    private InputStream from(int position) throws RemoteStorageException {
        return new LogRanges(this::open, segment, position);
    }

    private InputStream open(RemoteLogSegmentMetadata of, int start, int end) {
        opened.add(List.of(start, end));
        return new ByteArrayInputStream(log, start, end - start + 1) {
            @Override
            public void close() {
                closed++;
            }
        };
    }

    private static InputStream fail(RemoteLogSegmentMetadata of, int start, int end)
        throws RemoteStorageException {
        throw new RemoteStorageException("no range from " + start + " to " + end);
    }
}
