"""A broker starts on segments and rebuilt indexes that were fetched back from the tier."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import IndexType
from services.rlm.copy.ship import ship
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, snapshot_path
from tests.data.kafka_log_content import PAYMENTS, TELEMETRY, produce_payments, produce_telemetry
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster
from tests.kafka.records import SeenRecord, consumed
from tests.kafka.tiered_broker import TieredBroker, rolled

pytestmark = pytest.mark.kafka

INDEXES = {
    IndexType.OFFSET: ".index",
    IndexType.TIMESTAMP: ".timeindex",
    IndexType.TRANSACTION: ".txnindex",
}


@dataclass(frozen=True)
class Seen:
    """What clients get from a partition with the help of its indexes and snapshots."""

    records: list[SeenRecord]
    committed: list[SeenRecord]
    offsets_for_times: dict[int, int]


def test_broker_serves_segments_and_indexes_restored_from_the_tier(
    tier: TieredBroker, tmp_path: Path
) -> None:
    with kafka_broker(tmp_path / "broker", {"log.retention.ms": "-1"}) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(PAYMENTS, TELEMETRY)
        produce_payments(cluster, 0)
        produce_telemetry(cluster, 0)
        names = list(find_partitions([broker.log_dir]).partitions)
        before = {name: see(cluster, name) for name in names}
    remove_indexes(broker.log_dir)
    report = ship([broker.log_dir], tier.rsm, tier.rlmm)
    rebuilt = [problem.kind for p in report.partitions for problem in p.problems]
    assert set(rebuilt) == {ProblemKind.INDEX_REBUILT}
    restored = restore_rolled_segments(tier, broker.log_dir)
    with broker:
        cluster = Cluster(broker.bootstrap_servers)
        assert {name: see(cluster, name) for name in names} == before
    assert {path: path.read_bytes() for path in restored} == restored


def see(cluster: Cluster, name: TopicIdPartition) -> Seen:
    records = consumed(cluster, name)
    times = sorted({record.timestamp_ms for record in records})
    return Seen(
        records,
        consumed(cluster, name, "read_committed"),
        cluster.offsets_for_times(name.topic, name.partition, times),
    )


def remove_indexes(log_dir: Path) -> None:
    for found in find_partitions([log_dir]).partitions.values():
        for segment in rolled(found.path):
            for suffix in INDEXES.values():
                segment.file(suffix).unlink(missing_ok=True)


def restore_rolled_segments(tier: TieredBroker, log_dir: Path) -> dict[Path, bytes]:
    """Put the tier's bytes in the place of every rolled segment; answer the files."""
    files: dict[Path, bytes] = {}
    for name, found in find_partitions([log_dir]).partitions.items():
        for remote in tier.finished(name):
            folder, following = found.path, remote.end_offset + 1
            segment = LocalSegment(folder, remote.start_offset, 0, following)
            files[segment.log_path] = b"".join(tier.rsm.fetch_log_segment(remote, 0))
            for index_type, suffix in INDEXES.items():
                if index_type is not IndexType.TRANSACTION or not remote.txn_idx_empty:
                    files[segment.file(suffix)] = tier.index(remote, index_type)
            snapshot = tier.index(remote, IndexType.PRODUCER_SNAPSHOT)
            files[snapshot_path(folder, following)] = snapshot
    for path, data in files.items():
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    return files
