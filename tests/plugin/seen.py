"""What clients see of a partition: the same before and after its segments have left the disk."""

from dataclasses import dataclass

from tests.harness.kafka_client import Offsets
from tests.kafka.records import SeenRecord, consumed
from tests.plugin.deployment import Partition

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
BEYOND_ALL_RECORDS_MS = 2**53


@dataclass(frozen=True)
class Seen:
    """All records by each isolation level, the bounds, and the offset that is found for a time."""

    records: dict[str, list[SeenRecord]]
    bounds: Offsets
    found_for_time: dict[int, int]


def seen(partition: Partition, asked_times_ms: list[int] | None = None) -> Seen:
    """Read all of a partition; times are looked up as given, or some that lie in it."""
    cluster, name = partition.deployment.cluster, partition.name
    records = {level: consumed(cluster, name, level) for level in ISOLATION_LEVELS}
    times_ms = asked_times_ms or _times_in(records["read_uncommitted"])
    found = cluster.offsets_for_times(name.topic, name.partition, times_ms)
    return Seen(records, cluster.offsets(name.topic, name.partition), found)


def _times_in(records: list[SeenRecord]) -> list[int]:
    """Before all, at some, just behind each of them, and beyond all."""
    some = [record.timestamp_ms for record in records[:: max(1, len(records) // 3)]]
    return [0, *some, *(time_ms + 1 for time_ms in some), BEYOND_ALL_RECORDS_MS]
