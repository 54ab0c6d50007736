package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.junit.jupiter.api.Test;

class PatienceTest {
    private final List<Long> waitedMs = new ArrayList<>();

    @Test
    void callThatIsNeverTakenUpEndsAfterTheTimeOfItsTurn() {
        Patience patience = new Patience(Duration.ofMillis(250), Duration.ofMillis(100));

        long beganNanos = System.nanoTime();
        assertThrows(TimeoutException.class, () -> patience.take(this::nothingComes));

        assertTrue(System.nanoTime() - beganNanos >= TimeUnit.MILLISECONDS.toNanos(250));
        assertEquals(3, waitedMs.size());
        assertTrue(waitedMs.stream().allMatch(ms -> ms <= 100), waitedMs::toString);
        assertEquals("not taken up for 250 ms", patience.complaint());
    }

    @Test
    void stepThatIsMadeInTimeIsMadeOnce() throws Exception {
        Patience patience = new Patience(Duration.ofMinutes(1), Duration.ofMinutes(1));

        assertEquals("made", patience.take((timeout, unit) -> {
            waitedMs.add(unit.toMillis(timeout));
            return "made";
        }));

        assertEquals(1, waitedMs.size());
    }

    private Void nothingComes(long timeout, TimeUnit unit)
        throws InterruptedException, TimeoutException {
        waitedMs.add(unit.toMillis(timeout));
        unit.sleep(timeout);
        throw new TimeoutException();
    }
}
