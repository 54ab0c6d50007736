package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Optional;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.junit.jupiter.api.Test;

class ReadersTest {
    private static final int SIZE = 10_000;
    private final RemoteLogSegmentMetadata first = Samples.newSegment(0, SIZE);
    private final RemoteLogSegmentMetadata second = Samples.newSegment(100, SIZE);
    private final Readers readers = new Readers();

    @Test
    void readThatBeginsWithinOrAtTheEndOfAnEarlierOneIsSequential() {
        read(first, 1_000, 3_000);
        assertTrue(read(first, 3_000, 4_000).isSequential());
        assertTrue(read(first, 3_500, 5_000).isSequential());
    }

    @Test
    void readElsewhereIsNot() {
        assertFalse(read(first, 1_000, 3_000).isSequential());
        assertFalse(read(first, 3_001, 4_000).isSequential());
        assertFalse(read(first, 999, 999).isSequential());
        assertFalse(read(second, 1_000, 3_000).isSequential());
    }

    @Test
    void readThatIsTriedAgainIsSequential() {
        read(first, 1_000, 1_000);
        assertTrue(read(first, 1_000, 3_000).isSequential());
    }

    @Test
    void readGoesOnInTheNextSegmentOnlyFromTheEndOfTheOneBefore() {
        read(first, 0, SIZE - 1);
        assertFalse(read(second, 0, 10).isSequential());
        read(first, 5_000, SIZE);
        assertTrue(read(second, 0, 10).isSequential());
    }

    @Test
    void aReadIsContinuedOnce() {
        Readers.Read earlier = read(first, 0, 10);
        assertEquals(Optional.of(earlier), readers.begin(first, 10).earlier());
        assertEquals(Optional.empty(), readers.begin(first, 5).earlier());
    }

    @Test
    void onlyASequentialReaderIsExpectedInTheNextSegment() {
        read(first, 0, SIZE);
        assertFalse(readers.anyBegins(second));
        read(first, SIZE - 1, SIZE);
        assertTrue(readers.anyBegins(second));
        assertFalse(readers.anyBegins(Samples.newSegment(101, SIZE)));
    }

    @Test
    void theOldestReadsAreForgotten() {
        read(first, 0, 10);
        for (int other = 0; other < 1024; other++) {
            read(Samples.newSegment(0, SIZE), 0, 10);
        }
        assertFalse(read(first, 10, 20).isSequential());
    }

    private Readers.Read read(RemoteLogSegmentMetadata segment, int start, int end) {
        Readers.Read read = readers.begin(segment, start).read();
        read.reach(end);
        return read;
    }
}
