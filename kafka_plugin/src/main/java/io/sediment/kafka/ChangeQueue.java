package io.sediment.kafka;

import java.util.ArrayDeque;
import java.util.Queue;

/**
 * Limits the active changes; the others begin in their order as these end. A broker that removes a
 * partition begins a change of each of its segments at once, thousands of them,
 * and gives the removal up for good if RLMM refuses a single one.
 */
final class ChangeQueue {
    /** RLMM serves all its callers with a few more threads than this; a partition's changes wait. */
    static final int MOST_UNDER_WAY = 16;

    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private int underWay;

    /**
     * Begins a change now or later.
     *
     * @param change begins the call and returns; {@link #ended} is called once when the call ended
     */
    void begin(Runnable change) {
        synchronized (this) {
            if (underWay == MOST_UNDER_WAY) {
                waiting.add(change);
                return;
            }
            underWay++;
        }
        change.run();
    }

    /** Begins the next change after one has ended or failed. */
    void ended() {
        Runnable next;
        synchronized (this) {
            next = waiting.poll();
            if (next == null) {
                underWay--;
                return;
            }
        }
        next.run();
    }
}
