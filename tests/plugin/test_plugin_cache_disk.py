"""The disk for more chunks is full, gone or emptied: consumers read every record all the same."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.eventually import eventually
from tests.harness.small_limits import SmallDisk, small_disk
from tests.harness.world import World
from tests.plugin.deployment import Partition, tiering_broker
from tests.plugin.jmx import read_jmx
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = [pytest.mark.plugin, pytest.mark.timeout(600)]

MIB = 1024 * 1024
DISK_BYTES = 48 * MIB
HEAP_BYTES = 8 * MIB  # less than what the tier has, so that consumers find some on the disk only
SEGMENT_BYTES = 6 * MIB
RECORDS, RECORD_BYTES = 24, 700_000
READ_AHEAD = "io.sediment.kafka:type=ReadAhead,broker=1"


@dataclass(frozen=True)
class Cached:
    """A tiered partition whose broker keeps chunks on a small disk."""

    partition: Partition
    values: list[bytes]
    disk: SmallDisk
    chunks: Path

    def read(self) -> None:
        assert self.partition.values() == self.values

    def read_until(self, is_so: Callable[[], object]) -> None:
        """Read all again and again, until it is so."""

        def is_so_after_a_read() -> object:
            self.read()
            return is_so()

        eventually(is_so_after_a_read, DEADLINE_MS)

    def hits(self) -> float:
        return read_jmx(self.partition.deployment.broker)[READ_AHEAD, "DiskHits"]

    def files(self) -> list[Path]:
        return list(self.chunks.iterdir())

    def warnings(self) -> list[str]:
        lines = self.partition.deployment.broker_log()
        return [line for line in lines if "WARN" in line and "DiskChunks" in line]


@pytest.fixture
def cached(jar: Path, services: World, tmp_path: Path) -> Iterator[Cached]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        chunks = disk.path / "chunks"
        settings = {
            "rsm.config.read.ahead.max.bytes": str(HEAP_BYTES),
            "rsm.config.read.ahead.directory": str(chunks),
        }
        with tiering_broker(jar, services, tmp_path / "broker", settings=settings) as deployment:
            partition = deployment.create_one("cached", SEGMENT_BYTES, local_retention_bytes="1")
            values = partition.produce(RECORDS, RECORD_BYTES)
            partition.wait_until_moved()
            yield Cached(partition, values, disk, chunks)


def test_every_record_is_read_whatever_happens_to_the_disk(cached: Cached) -> None:
    broker = cached.partition.deployment.broker
    cached.read_until(cached.hits)
    assert cached.warnings() == []

    broker.restart()
    assert cached.files() == [], "the run before has left files"
    cached.disk.fill()
    cached.read_until(cached.warnings)
    assert_only_warning(cached, "No space left")
    cached.disk.free()

    broker.restart()
    cached.read_until(cached.files)
    shutil.rmtree(cached.chunks)
    cached.read_until(cached.warnings)
    assert_only_warning(cached, "NoSuchFile")

    broker.restart()
    cached.read_until(cached.files)
    assert cached.warnings() == []


def assert_only_warning(cached: Cached, reason: str) -> None:
    cached.read()
    (warning,) = cached.warnings()
    assert str(cached.chunks) in warning
    assert reason in warning
