"""Test `sediment ship` on bad input: each fault is named by path, offset and reason.

Faults are made in copies of a partition of the bundled log, each under a topic of its own, and
shipped in one go: what is wrong with one must not keep the others back.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest

from services.api.segments import RemoteLogSegmentMetadata
from services.local.stack import own_environment
from services.rlm.kafka_log.log_dir import find_partitions
from tests.harness.databases import Store
from tests.harness.sediment_command import sediment
from tests.harness.world import (
    BUNDLED_LOG,
    FINISHED,
    World,
    linked_log,
    name_topics_anew,
    running_world,
)
from tests.unit.rlm.kafka_bytes import old_message, write_log_dir

# Segments at 0, 72, 144, 216 and 288, the active one at 360; batches of eight records.
ORIGINAL = BUNDLED_LOG / "clicks-0"
BASES = (0, 72, 144, 216, 288)
DAMAGED = 144
AWAY = "127.0.0.1:1"
SECOND_BATCH = 152
LOG, INDEX, TIME_INDEX = (f"{DAMAGED:020}.{each}" for each in ("log", "index", "timeindex"))


def log_of(folder: Path, base: int = DAMAGED) -> Path:
    return folder / f"{base:020}.log"


Damage = Callable[[Path], Path]
"""Changes a partition's folder and returns the path that is at fault."""


def changed(name: str, change: Callable[[bytes], bytes] | None) -> Damage:
    """Return the damage that changes a file, or deletes it."""

    def damage(folder: Path) -> Path:
        path = folder / name
        data = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change(data))
        return path

    return damage


def first_batch_bytes(data: bytes) -> int:
    return int(unpack_from(">i", data, 8)[0]) + 12


def flip_a_bit(data: bytes) -> bytes:
    at = first_batch_bytes(data) + 80
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def old_format(magic: int) -> Damage:
    def insert(data: bytes) -> bytes:
        end = first_batch_bytes(data)
        return data[:end] + old_message(SECOND_BATCH, magic) + data[end:]

    return changed(LOG, insert)


@dataclass(frozen=True)
class Fault:
    """A change of a partition, and the report that it must cause."""

    damage: Damage
    kind: str
    offset: int | None
    reason: str


BLOCKING = {
    "cut": Fault(
        changed(LOG, lambda data: data[: first_batch_bytes(data) + 100]),
        "TRUNCATED_BATCH",
        SECOND_BATCH,
        "batch cut off",
    ),
    "crc": Fault(changed(LOG, flip_a_bit), "CORRUPT_BATCH", SECOND_BATCH, "wrong CRC-32C"),
    "v0": Fault(old_format(0), "OLD_MESSAGE_FORMAT", SECOND_BATCH, "message format 0"),
    "v1": Fault(old_format(1), "OLD_MESSAGE_FORMAT", SECOND_BATCH, "message format 1"),
}
MENDED = {
    "snapshot": Fault(
        changed(f"{DAMAGED + 72:020}.snapshot", lambda _: b""),
        "INDEX_REBUILT",
        DAMAGED,
        "only 0 bytes",
    ),
    "index": Fault(changed(INDEX, None), "INDEX_REBUILT", DAMAGED, "missing"),
    "garbage": Fault(changed(INDEX, lambda _: b"\xff" * 8), "INDEX_REBUILT", DAMAGED, "rebuilt"),
    "time": Fault(changed(TIME_INDEX, lambda _: b"\xff" * 7), "INDEX_REBUILT", DAMAGED, "rebuilt"),
}
NAMELESS = Fault(changed("partition.metadata", None), "PARTITION_METADATA_MISSING", None, "missing")


@dataclass(frozen=True)
class Shipped:
    """The result of one `sediment ship` of a log with faults."""

    exit_code: int
    report: dict[str, Any]
    errors: str
    rows: Sequence[RemoteLogSegmentMetadata]
    at_fault: dict[str, Path]
    world: World
    log_dir: Path

    def partition(self, topic: str) -> dict[str, Any]:
        (found,) = (p for p in self.report["partitions"] if p["topic"] == topic)
        return dict(found)

    def ranges(self, topic: str) -> list[tuple[int, int]]:
        """Return the ranges of RLMM's segments; fail if one of them is not finished."""
        rows = [r for r in self.rows if r.topic_id_partition.topic == topic]
        assert all(row.state is FINISHED for row in rows)
        return [(row.start_offset, row.end_offset) for row in rows]


def ship_with(world: World, log_dir: Path, faults: dict[str, Fault]) -> Shipped:
    at_fault = {}
    write_log_dir(log_dir)
    for topic in ["healthy", *faults]:
        shutil.copytree(ORIGINAL, log_dir / f"{topic}-0")
    name_topics_anew(log_dir)
    for topic, fault in faults.items():
        at_fault[topic] = fault.damage(log_dir / f"{topic}-0")
    world.log_dir = log_dir
    done = sediment(*world.ship_command()[3:])
    report = json.loads(done.stdout)
    return Shipped(done.returncode, report, done.stderr, world.rows(), at_fault, world, log_dir)


@pytest.fixture(scope="module")
def world(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("bad-input")
    with running_world(directory, *store, linked_log(directory)) as made:
        yield made


@pytest.fixture(scope="module")
def blocked(world: World, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    log_dir = tmp_path_factory.mktemp("blocked") / "log"
    return ship_with(world, log_dir, {**BLOCKING, "nameless": NAMELESS})


@pytest.fixture(scope="module")
def mended(world: World, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    return ship_with(world, tmp_path_factory.mktemp("mended") / "log", MENDED)


# What is blocked


@pytest.mark.parametrize("topic", BLOCKING)
def test_a_fault_is_named_and_nothing_is_shipped_from_the_damage_on(
    blocked: Shipped, topic: str
) -> None:
    fault, partition = BLOCKING[topic], blocked.partition(topic)
    (problem,) = partition["problems"]
    assert (problem["kind"], problem["offset"]) == (fault.kind, fault.offset)
    assert (problem["path"], problem["blocked_segments"]) == (str(blocked.at_fault[topic]), 3)
    assert fault.reason in problem["message"]
    reported = f"{fault.kind}: {blocked.at_fault[topic]} at offset {fault.offset}: "
    assert reported in blocked.errors
    assert blocked.ranges(topic) == [(0, 71), (72, 143)]
    assert partition["copied_segments"] == 2


def test_a_partition_without_metadata_is_named_and_others_are_shipped(blocked: Shipped) -> None:
    (problem,) = blocked.report["log_dir_problems"]
    assert (problem["kind"], problem["blocked_segments"]) == (NAMELESS.kind, 5)
    assert problem["path"] == str(blocked.at_fault["nameless"])
    assert [first for first, _ in blocked.ranges("healthy")] == list(BASES)
    assert blocked.exit_code == 1
    assert "Traceback" not in blocked.errors


def test_a_log_that_ends_below_the_tiers_log_start_is_named(world: World, tmp_path: Path) -> None:
    log_dir = write_log_dir(tmp_path / "log")
    folder = Path(shutil.copytree(ORIGINAL, log_dir / "replaced-0"))
    name_topics_anew(log_dir)
    world.log_dir = log_dir
    assert sediment(*world.ship_command()[3:]).returncode == 0
    (name,) = find_partitions([log_dir]).partitions
    with world.metadata() as rlmm:
        rlmm.raise_log_start_offset(name, 360)
    for base in (216, 288, 360):
        log_of(folder, base).unlink()
    done = sediment(*world.ship_command()[3:])
    assert done.returncode == 1
    (problem,) = json.loads(done.stdout)["partitions"][0]["problems"]
    assert (problem["kind"], problem["blocked_segments"]) == ("LOG_END_BELOW_LOG_START", 2)
    assert (
        f"LOG_END_BELOW_LOG_START: {folder} at offset 0: the log ends at offset 216" in done.stderr
    )
    assert "create it again; blocks 2 segments" in done.stderr


def test_segments_above_the_high_watermark_are_left_out_and_reported(
    world: World, tmp_path: Path
) -> None:
    log_dir = write_log_dir(tmp_path / "log")
    shutil.copytree(ORIGINAL, log_dir / "crashed-0")
    name_topics_anew(log_dir)
    checkpoint = log_dir / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\ncrashed 0 200\n")
    world.log_dir = log_dir
    done = sediment(*world.ship_command()[3:])
    report = json.loads(done.stdout)
    (partition,) = report["partitions"]
    assert (done.returncode, report["outcome"]) == (1, "PARTIAL")
    assert (partition["copied_segments"], partition["unsettled_segments"]) == (2, 3)
    assert partition["settled_before_offset"] == 200
    assert "crashed-0: 3 rolled segments not copied, which reach offset 200: " in done.stderr
    # Without the file RLM assumes that there is no other replica: docs/understand/copying.md.
    checkpoint.unlink()
    done = sediment(*world.ship_command()[3:])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fault_leaves_no_object_without_a_row(blocked: Shipped, mended: Shipped) -> None:
    rows = blocked.rows
    ids = {row.topic_id_partition.topic_id.hex for row in rows}
    world = blocked.world
    keys = [
        str(o.object_name) for o in world.s3.client().list_objects(world.bucket, recursive=True)
    ]
    ours = [key for key in keys if key.split("/")[0].replace("-", "") in ids]
    assert len(ours) == 3 * len(rows)


# What is mended


@pytest.mark.parametrize("topic", MENDED)
def test_a_rebuilt_index_is_reported_and_its_segment_shipped(mended: Shipped, topic: str) -> None:
    (problem,) = mended.partition(topic)["problems"]
    assert (problem["kind"], problem["blocked_segments"]) == ("INDEX_REBUILT", 0)
    assert problem["path"] == str(mended.at_fault[topic])
    assert MENDED[topic].reason in problem["message"]
    assert [first for first, _ in mended.ranges(topic)] == list(BASES)


def test_a_mended_log_is_shipped_byte_for_byte(mended: Shipped) -> None:
    mended.world.log_dir = mended.log_dir
    mended.world.assert_all_shipped()
    assert mended.exit_code == 0


# What cannot be shipped at all


NO_LOG_DIR = "not a Kafka log directory: no meta.properties, no partitions"


@pytest.mark.parametrize(
    ("name", "file", "reason"),
    [
        ("gone", "", "no such directory"),
        ("", "", "is empty"),
        ("", "holiday.jpg", NO_LOG_DIR),
        ("", "syslog.log", NO_LOG_DIR),
        (ORIGINAL, "", "is a partition's folder; name the log directory above it"),
    ],
)
def test_a_log_directory_that_cannot_be_used_is_named(
    name: str | Path, file: str, reason: str, tmp_path: Path
) -> None:
    directory = tmp_path / name
    if file:
        (directory / file).touch()
    done = sediment("ship", directory, "--rsm", AWAY, "--rlmm", AWAY, "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sediment: {directory}: {reason}\n"


def test_a_log_directory_that_is_named_twice_is_refused() -> None:
    addresses = ("--rsm", AWAY, "--rlmm", AWAY)
    done = sediment("ship", BUNDLED_LOG, BUNDLED_LOG, *addresses)
    reported = f"sediment: {BUNDLED_LOG}: is named twice, also as {BUNDLED_LOG}\n"
    assert (done.returncode, done.stderr) == (2, reported)


def test_usable_log_directory_is_shipped_beside_an_unusable_one(
    world: World, tmp_path: Path
) -> None:
    world.log_dir = linked_log(tmp_path, ("profiles",))
    name_topics_anew(world.log_dir)
    done = sediment(*world.ship_command()[3:], tmp_path / "gone")
    (shipped,) = json.loads(done.stdout)["partitions"]
    assert (done.returncode, shipped["blocked_segments"]) == (1, 0)
    assert shipped["copied_segments"] > 0
    assert f"{tmp_path / 'gone'}: no such directory" in done.stderr


@pytest.mark.parametrize("away", ["rsm", "rlmm"])
def test_a_service_that_is_away_is_named_once(world: World, away: str, tmp_path: Path) -> None:
    log_dir = linked_log(tmp_path)
    name_topics_anew(log_dir)
    addresses = {"rsm": world.rsm.address, "rlmm": world.rlmm.address, away: AWAY}
    done = sediment(
        "ship",
        log_dir,
        *("--rsm", addresses["rsm"], "--rlmm", addresses["rlmm"]),
        *("--retry-for", "0.5", "-o", "json"),
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "run the command again" in line)
    assert f"{away} at {AWAY}" in line
    assert "3 partitions not finished" in line


@pytest.mark.deep
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_run_says_in_one_line_to_run_it_again(sent: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "services.cli", "ship", str(BUNDLED_LOG)]
        with subprocess.Popen(
            [*command, "--rsm", address, "--rlmm", address, "--retry-for", "600"],
            env=own_environment({}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as shipping:
            listener.accept()[0].close()  # the copy has begun
            listener.close()
            shipping.send_signal(sent)
            output, errors = shipping.communicate(timeout=60)
    assert (shipping.returncode, output) == (128 + sent, "")
    said = "interrupted; finished segments are in the tier, run the command again for the rest"
    assert errors == f"sediment: {said}\n"


@pytest.mark.deep
def test_a_name_that_several_topics_have_had_must_be_made_plain(
    world: World, blocked: Shipped, mended: Shipped
) -> None:
    done = sediment("segments", "healthy-0", "--rlmm", world.rlmm.address)
    assert done.returncode == 2
    assert done.stderr.startswith("sediment: several topics have had the name ")
    one_of_them = done.stderr.split()[-1]
    again = sediment("segments", one_of_them, "--rlmm", world.rlmm.address, "-o", "json")
    assert len(again.stdout.splitlines()) == 5
