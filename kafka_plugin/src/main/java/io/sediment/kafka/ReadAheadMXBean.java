package io.sediment.kafka;

/** What the read-ahead has done since the broker started, as JMX attributes. */
public interface ReadAheadMXBean {
    /** The bound of the bytes held: {@code rsm.config.read.ahead.max.bytes}. */
    long getMaxBytes();

    /** Bytes of logs in memory now, or about to arrive. */
    long getHeldBytes();

    /** How many times a reader found its chunk in memory or on its way. */
    long getHits();

    /** How many times a sequential reader did not. */
    long getMisses();

    /** How many of the misses found no room: more sequential readers than fit. */
    long getMisfits();

    /** How many chunks were evicted for others. */
    long getEvictions();

    /** Bytes asked for before a reader needed them. */
    long getFetchedAheadBytes();

    /** Of these, the bytes evicted or dropped before a reader needed them. */
    long getNeverUsedBytes();

    /** Bytes of logs in {@code rsm.config.read.ahead.directory}; 0 without one. */
    long getDiskHeldBytes();

    /** How many chunks were read from there instead of from RSM or the store. */
    long getDiskHits();

    /** How many files there were damaged or missing, and how many writes, reads, deletions failed. */
    long getDiskFailures();
}
