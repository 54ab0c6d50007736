package io.sediment.kafka;

/** What look-ups in RLMM have done since the broker started, as JMX attributes. */
public interface LookUpsMXBean {
    /** How many look-ups were answered from memory. */
    long getHits();

    /** How many look-ups called RLMM. */
    long getMisses();

    /** How many look-ups were answered from memory because RLMM was away. */
    long getServedWhileAway();

    /** Whether all changes up to 3 s ago are known, so that look-ups may be answered from memory. */
    boolean isCurrent();
}
