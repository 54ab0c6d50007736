"""A broker with log.preallocate=true: its files are larger than its logs, RLM counts the logs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.kafka_broker import KafkaBroker
from services.api.ids import TopicIdPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import list_segments
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack, description
from tests.kafka.records import consumed, fetched
from tests.kafka.tiered_broker import IMPATIENT, produce_segments

pytestmark = pytest.mark.kafka

TRIMMED = Topic("trimmed", 1, 16_384, {"preallocate": "false"})
PREALLOCATED = Topic("preallocated", 1, 16_384)
RECORDS = 25
"""Six to a segment, so that the active one has one, and is filled with zeros to 16 KiB."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    settings = {**IMPATIENT, "log.preallocate": "true", "log.retention.ms": "-1"}
    with kafka_broker(tmp_path / "broker", settings) as made:
        yield made


def names_of(broker: KafkaBroker) -> list[TopicIdPartition]:
    """Return the partitions, the one of TRIMMED first."""
    found = find_partitions([broker.log_dir]).partitions
    return sorted(found, key=lambda name: name.topic, reverse=True)


def take_in(rlm: BrokerRemoteLogManager, rolled: int) -> None:
    """Copy until both tiers have all of the rolled segments: the broker's checkpoint lags."""

    def is_copied() -> bool:
        take_turns(rlm)
        found = [description(rlm, topic.name) for topic in (TRIMMED, PREALLOCATED)]
        return [each.remote_segments for each in found] == [rolled] * 2

    eventually(is_copied, 30_000)


def test_retention_by_size_deletes_what_it_deletes_without_preallocation(
    broker: KafkaBroker, stack: Stack, tmp_path: Path
) -> None:
    cluster = Cluster(broker.bootstrap_servers)
    cluster.create(TRIMMED, PREALLOCATED)
    for topic in (TRIMMED, PREALLOCATED):
        produce_segments(cluster, topic, RECORDS)
    trimmed, preallocated = names_of(broker)
    folders = [find_partitions([broker.log_dir]).partitions[n].path for n in names_of(broker)]
    actual, files = ([s.file_bytes for s in list_segments(folder)] for folder in folders)
    assert files[:-1] == actual[:-1]
    assert files[-1] == PREALLOCATED.segment_bytes > actual[-1] + actual[0] // 2
    rlm = stack.rlm(broker.log_dir, limits=AT_ONCE)
    take_in(rlm, len(actual) - 1)
    sizes = [description(rlm, topic.name).local_size_bytes for topic in (TRIMMED, PREALLOCATED)]
    assert sizes == [sum(actual)] * 2
    limit_bytes = sum(actual[1:]) - actual[1] // 2
    for name in (trimmed, preallocated):
        stack.rlmm.put_topic_config(name.topic_id, {"retention.bytes": str(limit_bytes)}, now=True)
    take_turns(rlm, rounds=3)
    starts = [description(rlm, name.topic).log_start_offset for name in (trimmed, preallocated)]
    assert starts == [list_segments(folders[0])[1].base_offset] * 2
    records = consumed(cluster, preallocated)
    broker.kill()
    assert list_segments(folders[1])[-1].file_bytes == PREALLOCATED.segment_bytes
    assert fetched(rlm, preallocated, starts[1]) == records[starts[1] :]
