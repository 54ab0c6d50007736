package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.junit.jupiter.api.Test;

class PatienceTest {
    private final List<Long> waitedMs = new ArrayList<>();
    private long nowNanos;

    @Test
    void callThatIsNeverTakenUpEndsAfterTheTimeOfItsTurn() {
        Patience patience =
            new Patience(Duration.ofMillis(250), Duration.ofMillis(100), () -> nowNanos);

        assertThrows(TimeoutException.class, () -> patience.take(this::nothingComes));

        assertEquals(List.of(100L, 100L, 50L), waitedMs);
        assertEquals("not taken up for 250 ms", patience.complaint());
    }

    @Test
    void stepThatIsMadeInTimeIsMadeOnce() throws Exception {
        Patience patience =
            new Patience(Duration.ofMinutes(1), Duration.ofMinutes(1), () -> nowNanos);

        assertEquals("made", patience.take((timeout, unit) -> {
            waitedMs.add(unit.toMillis(timeout));
            return "made";
        }));

        assertEquals(1, waitedMs.size());
    }

    private Void nothingComes(long timeout, TimeUnit unit) throws TimeoutException {
        waitedMs.add(unit.toMillis(timeout));
        nowNanos += unit.toNanos(timeout);
        throw new TimeoutException();
    }
}
