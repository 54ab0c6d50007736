"""Print a partition's records from the tier and the broker's disk: read.py RLM TOPIC PARTITION."""

import sys

from services.client import TierConsumer

rlm, topic, partition = sys.argv[1:]
with TierConsumer(rlm) as consumer:
    for record in consumer.records(topic, int(partition), start=0):
        print(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
