"""A Kafka broker's log directory as it lies on the disk. Read only: nothing here writes."""
