package io.sediment.kafka;

/** What direct reads have done since the broker started, as JMX attributes. */
public interface DirectReadsMXBean {
    /** Bytes read from the object store itself, and verified. */
    long getBytes();

    /** How many direct reads failed, so that RSM had to stream the rest. */
    long getFailures();
}
