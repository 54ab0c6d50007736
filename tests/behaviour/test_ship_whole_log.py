"""Test a whole real log: shipped, shipped again, its local copy lost, read back."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.api.remote_log_manager import all_descriptions
from services.rlm.copy.ship import ShipOutcome, ShipReport, ship
from tests.harness.ship_stack import (
    BUNDLED,
    ONE_TRY,
    Counting,
    Stack,
    bundled_name,
    bytes_of,
    description,
    lose_rolled_segments,
    names_of,
    read,
    running_stack,
)


@dataclass
class Shipped:
    """The bundled log, shipped once for all tests that only look."""

    stack: Stack
    log_dir: Path
    before: list[tuple[Path, int]]
    progress: Counting
    report: ShipReport


@pytest.fixture(scope="module")
def shipped(rlmm_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    directory = tmp_path_factory.mktemp("shipped")
    log_dir = Path(shutil.copytree(BUNDLED, directory / "logs"))
    with running_stack(rlmm_database_url, directory / "objects") as stack:
        before, progress = files_in(log_dir), Counting()
        report = ship([log_dir], stack.rsm, stack.rlmm, ONE_TRY, progress)
        yield Shipped(stack, log_dir, before, progress, report)


def files_in(log_dir: Path) -> list[tuple[Path, int]]:
    return [(path, path.stat().st_mtime_ns) for path in sorted(log_dir.rglob("*"))]


def test_a_real_log_is_shipped_lost_and_read_back_byte_for_byte(
    shipped: Shipped, bundled: Path
) -> None:
    assert shipped.report.outcome is ShipOutcome.DONE
    assert sum(p.copied_segments for p in shipped.report.partitions) == 72
    lose_rolled_segments(bundled)
    rlm = shipped.stack.rlm(bundled)
    for found in all_descriptions(rlm):
        name = found.topic_id_partition
        whole = read(rlm, found.log_start_offset, name)
        assert whole == bytes_of(BUNDLED / f"{name.topic}-{name.partition}")


def test_a_rerun_starts_no_copy(shipped: Shipped) -> None:
    names = [p.topic_id_partition for p in shipped.report.partitions]
    before = {name: shipped.stack.segments(name) for name in names}
    second = shipped.stack.ship(shipped.log_dir)
    assert second.outcome is ShipOutcome.DONE
    assert [p.copied_segments for p in second.partitions] == [0] * 11
    assert [p.present_segments for p in second.partitions] == [
        p.copied_segments for p in shipped.report.partitions
    ]
    assert {name: shipped.stack.segments(name) for name in names} == before


def test_registered_metadata_equals_kafkas(shipped: Shipped) -> None:
    third = shipped.stack.segments(bundled_name("telemetry"))[2]
    log = BUNDLED / "telemetry-0" / f"{third.start_offset:020}.log"
    assert third.segment_size_in_bytes == log.stat().st_size
    assert third.broker_id == 1
    assert third.broker_leader_epoch == 4
    assert third.txn_idx_empty


def test_every_partition_is_made_known_even_an_empty_one(shipped: Shipped) -> None:
    assert shipped.stack.segments(bundled_name("orders.eu-west", 2)) == []


def test_nothing_is_written_into_the_log_directory(shipped: Shipped) -> None:
    rlm = shipped.stack.rlm(shipped.log_dir)
    for found in all_descriptions(rlm):
        read(rlm, found.log_start_offset, found.topic_id_partition)
    assert files_in(shipped.log_dir) == shipped.before


def test_progress_counts_every_byte_once(shipped: Shipped) -> None:
    copied = sum(p.copied_bytes for p in shipped.report.partitions)
    reported = shipped.progress
    assert (reported.planned_bytes, reported.sent_bytes, reported.copied_segments) == (
        copied,
        copied,
        72,
    )


def test_a_lost_disk_is_served_from_the_tier_alone(shipped: Shipped) -> None:
    rlm = shipped.stack.tier_reader()
    found = description(rlm, "mixed-codecs")
    assert (found.log_start_offset, found.log_end_offset) == (0, 534)
    assert (found.local_segments, found.remote_segments) == (0, 10)
    whole = bytes_of(BUNDLED / "mixed-codecs-0")
    last = (BUNDLED / "mixed-codecs-0" / f"{534:020}.log").stat().st_size
    assert read(rlm, 0, found.topic_id_partition) == whole[:-last]


def test_descriptions_come_in_pages(shipped: Shipped) -> None:
    rlm = shipped.stack.rlm(shipped.log_dir)
    names: list[tuple[str, int]] = []
    token = ""
    for _ in range(4):
        page = rlm.describe_partitions(page_size=3, page_token=token)
        names += names_of(page.partitions)
        token = page.next_page_token
    assert token == ""
    assert names == sorted(names)
    assert len(names) == 11
