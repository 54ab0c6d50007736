"""Read a Kafka broker's log directories; write nothing."""
