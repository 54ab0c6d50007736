"""The broker deletes what it has shipped, by its own retention; the tier still has it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from services.api.ids import TopicIdPartition
from services.api.lineage import parse_checkpoint
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import IndexType
from services.client import ReadFailedError
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.kafka_log.partition_dir import list_segments, read_lineage
from tests.harness.eventually import eventually
from tests.harness.kafka_client import Topic
from tests.harness.variants import first_of
from tests.kafka.kept import BY_SIZE, BY_TIME, RECORDS_PER_ROUND
from tests.kafka.records import SeenRecord, consumed, fetched, sources
from tests.kafka.tiered_broker import (
    TieredBroker,
    produce_segments,
    ranges_in_tier,
    ranges_on_disk,
)

pytestmark = pytest.mark.kafka

RETENTION = ((BY_SIZE, {"retention_bytes": "12000"}), (BY_TIME, {"retention_ms": "3600000"}))
LATEST_EPOCH = 4


@dataclass
class Trimmed:
    """A partition whose older segments the broker has deleted since they were shipped.

    `records` are those from before; a test may write more.
    """

    tier: TieredBroker
    topic: Topic
    name: TopicIdPartition
    folder: Path
    records: list[SeenRecord]

    @property
    def local_log_start_offset(self) -> int:
        return self.tier.cluster.offsets(self.name.topic, self.name.partition).log_start_offset


@pytest.fixture(scope="module", params=first_of(RETENTION), ids=lambda param: param[0].name)
def trimmed(tier: TieredBroker, request: pytest.FixtureRequest) -> Trimmed:
    topic, config = request.param
    ((name, folder),) = tier.partitions(topic).items()
    records = consumed(tier.cluster, name)
    tier.ship(topic)
    epochs = read_lineage(folder)
    assert len(epochs.entries) == 3
    tier.cluster.configure(topic.name, **config)
    wait_until_deleted(tier, name, folder, epochs.entries[-1].start_offset)
    tier.cluster.configure(topic.name, **dict.fromkeys(config, "-1"))
    return Trimmed(tier, topic, name, folder, records)


def wait_until_deleted(
    tier: TieredBroker, name: TopicIdPartition, folder: Path, through_offset: int
) -> None:
    """Wait until the broker has deleted at least this, and nothing more is being deleted."""

    def is_deleted() -> bool:
        # The broker moves its log start first, to where it will be when the files are gone.
        start = tier.cluster.offsets(name.topic, name.partition).log_start_offset
        return list_segments(folder)[0].base_offset == start > through_offset

    eventually(is_deleted, deadline_ms=30_000)


def test_every_record_from_offset_0_is_read_from_the_tier_and_the_broker_together(
    trimmed: Trimmed,
) -> None:
    rlm = trimmed.tier.manager(*trimmed.tier.broker.log_dirs)
    assert fetched(rlm, trimmed.name, 0)[: len(trimmed.records)] == trimmed.records


def test_records_are_read_locally_only_while_the_broker_has_them(trimmed: Trimmed) -> None:
    start = trimmed.local_log_start_offset
    assert 0 < start <= trimmed.records[-1].offset
    found = sources(trimmed.tier.manager(*trimmed.tier.broker.log_dirs), trimmed.name, 0)
    assert found == {offset: "REMOTE" if offset < start else "LOCAL" for offset in found}


def test_a_read_in_an_epoch_that_the_broker_has_forgotten_starts_anywhere(
    trimmed: Trimmed,
) -> None:
    (only,) = read_lineage(trimmed.folder).entries
    assert only.leader_epoch == LATEST_EPOCH
    rlm = trimmed.tier.manager(*trimmed.tier.broker.log_dirs)
    for offset in range(0, only.start_offset, 37):
        expected = trimmed.records[offset:]
        assert fetched(rlm, trimmed.name, offset)[: len(expected)] == expected


def test_log_start_is_in_the_tier_and_local_start_is_the_brokers(
    trimmed: Trimmed,
) -> None:
    seen = trimmed.tier.describe(trimmed.name)
    assert seen.log_start_offset == 0
    assert seen.local_log_start_offset == trimmed.local_log_start_offset


def test_later_segments_have_epochs_that_the_broker_has_forgotten(
    trimmed: Trimmed,
) -> None:
    tier = trimmed.tier
    before = tier.finished(trimmed.name)
    produce_segments(tier.cluster, trimmed.topic)
    tier.ship(trimmed.topic)
    *older, newest = tier.finished(trimmed.name)
    assert older[: len(before)] == before
    assert len(older) >= len(before)
    history = parse_checkpoint(tier.index(newest, IndexType.LEADER_EPOCH).decode())
    assert [entry.leader_epoch for entry in history.entries] == [0, 2, LATEST_EPOCH]
    assert [entry.start_offset for entry in history.entries] == [
        0,
        RECORDS_PER_ROUND,
        2 * RECORDS_PER_ROUND,
    ]


def test_the_tier_alone_serves_all_that_was_shipped(trimmed: Trimmed) -> None:
    end = trimmed.tier.finished(trimmed.name)[-1].end_offset
    shipped = [record for record in trimmed.records if record.offset <= end]
    read = fetched(trimmed.tier.manager(), trimmed.name, 0)
    assert read[: len(shipped)] == shipped


def test_records_that_were_deleted_on_request_before_the_copy_are_not_served(
    tier: TieredBroker, tmp_path: Path
) -> None:
    topic = Topic("deleted-on-request", 1, 8192)
    name, folder = tier.create(topic)
    produce_segments(tier.cluster, topic)
    inside_a_segment = ranges_on_disk(folder)[1][0] + 1
    tier.cluster.delete_records(topic.name, 0, inside_a_segment)
    # The broker writes its log starts down from time to time only.
    eventually(lambda: tier.bounds(name).log_start_offset == inside_a_segment)
    assert tier.bounds(name) == tier.cluster.offsets(topic.name, 0)
    tier.ship(topic)
    rlm = tier.without_rolled_segments(tmp_path)
    assert fetched(rlm, name, inside_a_segment) == consumed(tier.cluster, name)
    with pytest.raises(ReadFailedError, match="OFFSET_OUT_OF_RANGE"):
        fetched(rlm, name, inside_a_segment - 1)


def test_unrolled_records_deleted_by_time_are_reported_lost(
    tier: TieredBroker,
) -> None:
    """A broker rolls by time only when somebody writes, and what it never rolled nobody copies."""
    topic = Topic("gone-idle", 1, 8192)
    name, folder = tier.create_shipped(topic)
    never_rolled = list_segments(folder)[-1].base_offset
    end = tier.cluster.offsets(name.topic, name.partition).log_end_offset
    assert never_rolled < end
    tier.cluster.configure(topic.name, retention_ms="1")
    eventually(lambda: [s.base_offset for s in list_segments(folder)] == [end], 30_000)
    report = ship(tier.broker.log_dirs, tier.rsm, tier.rlmm, topics=[topic.name])
    (problem,) = report.partitions[0].problems
    assert report.outcome is ShipOutcome.PARTIAL
    assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, never_rolled)


def test_retention_by_size_keeps_unrolled_records(tier: TieredBroker) -> None:
    topic = Topic("gone-idle-by-size", 1, 8192)
    name, folder = tier.create_shipped(topic)
    records = consumed(tier.cluster, name)
    never_rolled = list_segments(folder)[-1].base_offset
    tier.cluster.configure(topic.name, retention_bytes="1")
    wait_until_deleted(tier, name, folder, never_rolled - 1)
    tier.ship(topic)
    assert fetched(tier.manager(*tier.broker.log_dirs), name, 0) == records


def test_segments_deleted_before_shipping_are_a_gap_for_readers(
    tier: TieredBroker,
) -> None:
    topic = Topic("lost-in-the-middle", 1, 8192)
    name, folder = tier.create_shipped(topic)
    (*_, (_, last_shipped)) = shipped = ranges_on_disk(folder)
    produce_segments(tier.cluster, topic)
    records = consumed(tier.cluster, name)
    tier.cluster.configure(topic.name, retention_bytes="9000")
    wait_until_deleted(tier, name, folder, last_shipped + 1)
    tier.wait_for_checkpoint(name)
    report = ship(tier.broker.log_dirs, tier.rsm, tier.rlmm, topics=[topic.name])
    (problem,) = report.partitions[0].problems
    assert report.outcome is ShipOutcome.PARTIAL
    assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, last_shipped + 1)
    start = list_segments(folder)[0].base_offset
    rlm = tier.manager(*tier.broker.log_dirs)
    assert ranges_in_tier(tier.finished(name)) == [*shipped, *ranges_on_disk(folder)]
    assert fetched(rlm, name, start) == records[start:]
    assert fetched(rlm, name, 0) == [*records[: last_shipped + 1], *records[start:]]
