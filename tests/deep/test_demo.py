"""`python -m demos ship` on a log of one's own, and the reading back that it rests on."""

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demos.read_back import Reading, read_back
from demos.stage import SPARE_BYTES, check_room, link_log_dir, unlink_segments
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import all_descriptions
from services.cli.output import EXIT_FAILED, CommandError
from services.records.batches import FileWindow, walk_batches
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.demos import running_demo
from tests.harness.eventually import eventually
from tests.harness.processes import runs
from tests.harness.small_limits import small_disk
from tests.harness.world import BUNDLED_LOG, World

Listing = dict[str, tuple[int, int, int, int]]


def own_log(directory: Path, *folders: str) -> Path:
    """Files of one's own: a copy of some partitions of the bundled log."""
    log_dir = directory / "kafka [own]"
    log_dir.mkdir()
    for folder in folders:
        shutil.copytree(BUNDLED_LOG / folder, log_dir / folder)
    for file in BUNDLED_LOG.iterdir():
        if file.is_file():
            shutil.copy(file, log_dir)
    return log_dir


def make_read_only(log_dir: Path) -> None:
    for path in [*log_dir.rglob("*"), log_dir]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def listing(log_dir: Path) -> Listing:
    """Everything about the files that writing to them would change."""
    stats = {str(path): path.lstat() for path in [log_dir, *log_dir.rglob("*")]}
    return {p: (s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for p, s in stats.items()}


def demo_of(log_dir: Path) -> list[str]:
    return ["ship", "--log-dir", str(log_dir)]


def linked_files(scratch: Path) -> list[Path]:
    """What the demo made of the log directory."""
    return [path for path in scratch.glob("*/log/**/*") if not path.is_dir()]


@dataclass(frozen=True)
class Shown:
    """One demo, and what was seen beside it."""

    exit_code: int
    report: dict[str, Any]
    errors: str
    before: Listing
    after: Listing
    links: list[bool]
    left_over: list[Path]
    cut: Path

    def partition(self, name: str) -> dict[str, Any]:
        found = {f"{p['topic']}-{p['partition']}": p for p in self.report["partitions"]}
        return dict(found[name])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, server_directory: Path) -> Shown:
    """Of a log that nobody may write to, with one segment cut off in the middle of a batch."""
    log_dir = own_log(tmp_path_factory.mktemp("own"), "profiles-0", "clicks-0", "orders.eu-west-2")
    cut = log_dir / "clicks-0" / f"{144:020}.log"
    cut.write_bytes(cut.read_bytes()[:4000])
    make_read_only(log_dir)
    before, scratch = listing(log_dir), server_directory / "demo"
    with running_demo(demo_of(log_dir), scratch) as process:
        eventually(lambda: list(scratch.glob("*/data/*/*.pid")), deadline_ms=120_000)
        links = [path.is_symlink() for path in linked_files(scratch)]
        output, errors = process.communicate(timeout=280)
    left_over = list(scratch.iterdir())
    report = json.loads(output)
    after = listing(log_dir)
    return Shown(process.returncode, report, errors, before, after, links, left_over, cut)


@pytest.mark.long
@pytest.mark.deep
def test_a_damaged_segment_is_named_and_makes_the_exit_code_one(shown: Shown) -> None:
    assert shown.exit_code == 1
    (problem,) = shown.report["problems"]
    assert (problem["kind"], problem["offset"]) == ("TRUNCATED_BATCH", 176)
    assert (problem["path"], problem["blocked_segments"]) == (str(shown.cut), 3)
    assert f"TRUNCATED_BATCH: {shown.cut} at offset 176: " in shown.errors


@pytest.mark.deep
def test_everything_but_the_damage_is_read_back(shown: Shown) -> None:
    clicks, profiles = shown.partition("clicks-0"), shown.partition("profiles-0")
    assert not any(p["failures"] for p in shown.report["partitions"])
    assert (clicks["remote_segments"], clicks["last_offset"]) == (2, 399)
    # Of 50 batches of eight records those of offsets 176 to 215 were cut off.
    assert clicks["batches"] == 45
    assert (profiles["remote_segments"], profiles["batches"]) == (10, 90)
    assert profiles["last_offset"] == 728
    assert profiles["read_from_tier_bytes"] == profiles["remote_size_bytes"]


@pytest.mark.deep
def test_a_demo_never_writes_into_the_log(shown: Shown) -> None:
    assert shown.after == shown.before


@pytest.mark.deep
def test_a_demo_copies_no_file_of_the_log(shown: Shown) -> None:
    assert len(shown.links) > 50
    assert all(shown.links)


@pytest.mark.deep
def test_a_demo_leaves_nothing_behind(shown: Shown) -> None:
    assert shown.left_over == []


@pytest.mark.long
@pytest.mark.deep
def test_a_demo_of_a_whole_log_ends_well(server_directory: Path) -> None:
    with running_demo(demo_of(BUNDLED_LOG), server_directory / "whole-demo") as process:
        output, errors = process.communicate(timeout=280)
    report = json.loads(output)
    assert process.returncode == 0, errors
    assert report["problems"] == []
    assert len(report["partitions"]) == 11
    assert sum(p["remote_segments"] for p in report["partitions"]) == 72
    for partition in report["partitions"]:
        assert partition["read_from_tier_bytes"] == partition["remote_size_bytes"]


def test_a_demo_that_is_signalled_to_end_cleans_up(tmp_path: Path, server_directory: Path) -> None:
    scratch = server_directory / "ended-demo"
    with running_demo(demo_of(own_log(tmp_path, "clicks-0")), scratch) as process:
        pid_files = eventually(lambda: list(scratch.glob("*/data/*/*.pid")), deadline_ms=120_000)
        pids = [int(path.read_text().split()[0]) for path in pid_files]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert list(scratch.iterdir()) == []
    eventually(lambda: not [pid for pid in pids if runs(pid)])


def test_a_log_that_the_disk_has_no_room_for_stops_the_demo_at_once(tmp_path: Path) -> None:
    log_dir = own_log(tmp_path, "clicks-0")
    with (
        small_disk(tmp_path / "disk", 1024 * 1024) as disk,
        running_demo(demo_of(log_dir), disk.path / "full-demo") as process,
    ):
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (EXIT_FAILED, "")
    assert "5 rolled segments; " in errors
    assert errors.splitlines()[-1].endswith("are needed; set TMPDIR to a larger one")
    assert "starting" not in errors


def test_room_is_needed_for_the_segments_and_something_more(tmp_path: Path) -> None:
    check_room(1000, SPARE_BYTES + 1000, tmp_path)
    with pytest.raises(CommandError, match=r"has 1\.0 GiB free, 1\.0 GiB are needed"):
        check_room(1000, SPARE_BYTES + 999, tmp_path)


# Reading back


def read_all_back(world: World, log_dir: Path) -> dict[TopicIdPartition, Reading]:
    with world.storage() as rsm, world.metadata() as rlmm:
        rlm = BrokerRemoteLogManager([log_dir], rsm, rlmm)
        ours = world.local_segments()
        return {
            d.topic_id_partition: read_back(
                rlm,
                d.topic_id_partition,
                world.log_dir / f"{d.topic_id_partition.topic}-{d.topic_id_partition.partition}",
                d.log_start_offset,
            )
            for d in all_descriptions(rlm)
            if d.topic_id_partition in ours
        }


def test_of_a_lost_object_exactly_its_offsets_fail(world: World, tmp_path: Path) -> None:
    world.ship()
    lost_disk = tmp_path / "lost-disk"
    link_log_dir(world.log_dir, lost_disk)
    for folder in lost_disk.iterdir():
        if folder.is_dir():
            assert unlink_segments(folder, through_offset=10_000) > 0
    whole = read_all_back(world, lost_disk)
    assert not any(reading.failures for reading in whole.values())
    victim = next(r for r in world.rows() if r.topic_id_partition.topic == "profiles")
    segment_id = victim.remote_log_segment_id.id.hex
    (key,) = (
        key
        for key in world.object_keys()
        if segment_id in key.replace("-", "") and key.endswith(".log")
    )
    world.s3.client().remove_object(world.bucket, key)
    after = read_all_back(world, lost_disk)
    for name, reading in after.items():
        if name != victim.topic_id_partition:
            assert reading == whole[name]
    hurt = after[victim.topic_id_partition]
    expected = batches_between(
        world, victim.topic_id_partition, victim.start_offset, victim.end_offset
    )
    assert [(f.first_offset, f.last_offset) for f in hurt.failures] == expected
    assert hurt.batches == whole[victim.topic_id_partition].batches - len(expected)


def batches_between(
    world: World, name: TopicIdPartition, first_offset: int, last_offset: int
) -> list[tuple[int, int]]:
    """First and last offset of each batch in the broker's own file."""
    (segment,) = (s for s in world.local_segments()[name] if s.base_offset == first_offset)
    assert segment.end_offset == last_offset
    with FileWindow(segment.log_path) as window:
        batches = walk_batches(window, 0, window.size_bytes, first_offset, verify=True)
        return [(batch.base_offset, batch.last_offset) for batch in batches]
