package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

import org.junit.jupiter.api.Test;

class ChangeQueueTest {
    private final ChangeQueue queue = new ChangeQueue();
    private final List<Integer> begun = new ArrayList<>();

    @Test
    void fewAreUnderWayAndTheOthersFollowInTheirOrder() {
        List<Integer> all = IntStream.range(0, 1_000).boxed().toList();
        all.forEach(change -> queue.begin(() -> begun.add(change)));
        assertEquals(all.subList(0, ChangeQueue.MOST_UNDER_WAY), begun);

        queue.ended();
        queue.ended();
        assertEquals(all.subList(0, ChangeQueue.MOST_UNDER_WAY + 2), begun);

        all.forEach(change -> queue.ended());
        assertEquals(all, begun);
    }

    @Test
    void whatEndsMakesRoomAgain() {
        for (int change = 0; change < 100; change++) {
            int number = change;
            queue.begin(() -> begun.add(number));
            queue.ended();
        }
        assertEquals(100, begun.size());
    }
}
