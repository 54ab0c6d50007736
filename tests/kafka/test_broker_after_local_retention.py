"""A broker and RLM's local retention on one log directory: never both at once, and whatever RLM has
left half done, the broker loads."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from demos.kafka_broker import KafkaBroker
from services.api.ids import TopicIdPartition
from services.local.process import ProcessError
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LogDirError, list_segments
from services.rlm.retention import local_files
from services.rlm.retention.local_files import LogDirLocks, delete_segment_files
from tests.data.kafka_log_content import RecordMaker
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster, Topic, send_batch
from tests.harness.variants import first_of
from tests.kafka.records import SeenRecord, consumed

pytestmark = pytest.mark.kafka

LEFT_AT = (None, "local.log_renamed", "local.indexes_removed", "local.log_removed")
"""Of the partition with that number: None: nothing was left half done."""
LOGS = Topic("half-deleted", len(LEFT_AT), 8192)
DELETED = 2


class Killed(BaseException):
    """At a failpoint."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, name: str | None) -> Iterator[None]:
    def failpoint(reached: str) -> None:
        if reached == name:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(local_files, "failpoint", failpoint)
        try:
            yield
        except Killed:
            assert name is not None
        else:
            assert name is None


def produce(cluster: Cluster) -> None:
    make = RecordMaker(LOGS, 0)
    for partition in range(LOGS.partitions):
        with cluster.idempotent("lz4") as producer:
            for _ in range(30):
                send_batch(producer, LOGS, partition, [make.json_record("key") for _ in range(6)])


def delete_oldest(folder: Path, monkeypatch: pytest.MonkeyPatch, left_at: str | None) -> None:
    """Some segments, of the last of them as far as `left_at`."""
    fd = os.open(folder, os.O_RDONLY)
    *whole, last = list_segments(folder)[:DELETED]
    for segment in whole:
        delete_segment_files(segment, fd)
    with killed_at(monkeypatch, left_at):
        delete_segment_files(last, fd)
    os.close(fd)


def seen(broker: KafkaBroker, names: list[TopicIdPartition]) -> dict[int, list[SeenRecord]]:
    cluster = Cluster(broker.bootstrap_servers)
    return {name.partition: consumed(cluster, name) for name in names}


def files_of(folder: Path) -> set[tuple[str, str]]:
    """(offset, suffix) of all that belongs to segments."""
    names = (path.name.partition(".") for path in folder.glob("0*"))
    return {(offset, suffix) for offset, _, suffix in names}


@pytest.mark.parametrize(
    "end",
    first_of(
        [pytest.param(KafkaBroker.kill, id="killed"), pytest.param(KafkaBroker.stop, id="stopped")]
    ),
)
def test_broker_loads_the_log_left_by_a_killed_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[KafkaBroker], None]
) -> None:
    with kafka_broker(tmp_path / "broker", {"log.retention.ms": "-1"}) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(LOGS)
        produce(cluster)
        found = find_partitions([broker.log_dir]).partitions
        names = list(found)
        assert len(names) == LOGS.partitions
        before = seen(broker, names)
        with pytest.raises(LogDirError, match=r"another process holds its \.lock"):
            LogDirLocks([broker.log_dir])
        end(broker)
        with closing(LogDirLocks([broker.log_dir])):
            with pytest.raises(ProcessError):
                broker.start()
            printed = (broker.directory / "broker.log").read_text()
            assert "Failed to acquire lock on file .lock" in printed
            starts = {}
            for name in names:
                folder = found[name].path
                starts[name.partition] = list_segments(folder)[DELETED].base_offset
                delete_oldest(folder, monkeypatch, LEFT_AT[name.partition])
        broker.start()
        cluster = Cluster(broker.bootstrap_servers)
        for name in names:
            offsets = cluster.offsets(name.topic, name.partition)
            assert offsets.log_start_offset == starts[name.partition]
            assert offsets.log_end_offset == before[name.partition][-1].offset + 1
        assert seen(broker, names) == {
            partition: [record for record in records if record.offset >= starts[partition]]
            for partition, records in before.items()
        }
        for name in names:
            left = files_of(found[name].path)
            assert min(left)[0] == f"{starts[name.partition]:020}"
            assert not [suffix for _, suffix in left if "deleted" in suffix]
