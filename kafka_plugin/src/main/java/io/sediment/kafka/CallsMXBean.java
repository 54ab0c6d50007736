package io.sediment.kafka;

/** What the calls of one RPC have done since the broker started, as JMX attributes. */
public interface CallsMXBean {
    /** How many calls have begun. */
    long getCalls();

    /** How many calls have failed after all retries. */
    long getFailures();

    /** How many retries there were because no server had processed the call. */
    long getRepeats();

    /** The time of the calls that have ended, together. */
    long getTimeMs();
}
