package io.sediment.kafka;

import java.util.function.BooleanSupplier;

import org.junit.jupiter.api.Assertions;

/** Waits for what another thread does. */
final class Eventually {
    private static final long TIMEOUT_MS = 60_000;
    private static final long INTERVAL_MS = 10;

    private Eventually() {
    }

    static void assertEventually(BooleanSupplier condition, String what) {
        long deadlineMs = System.currentTimeMillis() + TIMEOUT_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadlineMs) {
                Assertions.fail("not within " + TIMEOUT_MS + " ms: " + what);
            }
            try {
                Thread.sleep(INTERVAL_MS);
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
        }
    }
}
