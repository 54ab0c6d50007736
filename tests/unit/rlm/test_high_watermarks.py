"""Test a broker's replication-offset-checkpoint, and its effect on a partition's log."""

from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log import checkpoints as module
from services.rlm.kafka_log.checkpoints import HighWatermarks, read_offset_checkpoint
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LogFileError, fingerprint_of
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    in_transaction,
    three_segments,
    write_log_dir,
)

BUNDLED = Path(__file__).parents[2] / "data" / "kafka-log"
HERE = (NAME.topic, NAME.partition)
FILE = "replication-offset-checkpoint"


@pytest.fixture
def watermarks(tmp_path: Path, clock: Clock) -> HighWatermarks:
    return HighWatermarks(tmp_path, clock)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of all reads of the file."""
    made: list[Path] = []

    def counted(path: Path) -> dict[tuple[str, int], int] | None:
        made.append(path)
        return read_offset_checkpoint(path)

    monkeypatch.setattr(module, "read_offset_checkpoint", counted)
    return made


def test_a_real_one_is_read() -> None:
    watermarks = HighWatermarks(BUNDLED)
    assert (watermarks.of("payments", 0), watermarks.of("orders.eu-west", 2)) == (504, 0)


def test_without_the_checkpoint_file_there_is_no_high_watermark(watermarks: HighWatermarks) -> None:
    assert watermarks.of("t", 0) is None


@pytest.mark.parametrize("text", ["", "0\n0\n", "0\n2\nt 1 5\nu 0 5\n"])
def test_a_partition_that_is_not_listed_is_not_known(
    tmp_path: Path, watermarks: HighWatermarks, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    watermarks.refresh()
    with pytest.raises(LogFileError, match="does not list t-0") as caught:
        watermarks.of("t", 0)
    assert caught.value.kind is ProblemKind.HIGH_WATERMARK_UNKNOWN
    assert caught.value.path == tmp_path / FILE


@pytest.mark.parametrize("text", ["\n", "1\n0\n", "0\n2\nt 0 5\n", "0\n1\nt 0 x\n", "0\n1\nt 0\n"])
def test_damaged_checkpoint_fails_every_read(
    tmp_path: Path, watermarks: HighWatermarks, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    for _ in range(2):
        with pytest.raises(LogFileError, match="damaged") as caught:
            watermarks.of("t", 0)
        assert (caught.value.kind, caught.value.path) == (
            ProblemKind.UNREADABLE,
            tmp_path / FILE,
        )
    with pytest.raises(LogFileError, match="damaged"):
        watermarks.refresh()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("junk\n", "damaged: version must be 0, is 'junk'"),
        ("0\n2\nt 0 5\n", "damaged: announces 2 entries and has 1"),
    ],
)
def test_damage_of_a_checkpoint_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(LogFileError) as caught:
        read_offset_checkpoint(tmp_path / FILE)
    assert caught.value.reason == reason


def test_it_is_read_once_a_second_for_all_callers(
    tmp_path: Path, watermarks: HighWatermarks, clock: Clock, reads: list[Path]
) -> None:
    high_watermarks(tmp_path, {("t", n): 5 for n in range(100)})
    assert [watermarks.of("t", n) for n in range(100)] == [5] * 100
    assert len(reads) == 1
    high_watermarks(tmp_path, {("t", n): 6 for n in range(100)})
    clock.now_s += 0.9
    assert watermarks.of("t", 0) == 5
    clock.now_s += 0.1
    assert [watermarks.of("t", n) for n in range(100)] == [6] * 100
    assert len(reads) == 2


def test_it_is_read_again_only_when_it_is_another_file(
    tmp_path: Path, watermarks: HighWatermarks, reads: list[Path]
) -> None:
    path = high_watermarks(tmp_path, {("t", 0): 5})
    eventually(lambda: fingerprint_of(path))
    for _ in range(3):
        watermarks.refresh()
    assert len(reads) == 1
    high_watermarks(tmp_path, {("t", 0): 7})
    watermarks.refresh()
    assert (watermarks.of("t", 0), len(reads)) == (7, 2)


def test_one_that_was_damaged_is_used_when_it_is_written_again(
    tmp_path: Path, watermarks: HighWatermarks
) -> None:
    (tmp_path / FILE).write_text("?")
    with pytest.raises(LogFileError):
        watermarks.refresh()
    high_watermarks(tmp_path, {("t", 0): 5})
    watermarks.refresh()
    assert watermarks.of("t", 0) == 5


def test_each_look_through_the_directories_looks_at_it(tmp_path: Path) -> None:
    log_dir = write_log_dir(tmp_path / "logs")
    three_segments(log_dir)
    high_watermarks(log_dir, {HERE: 5})
    found = find_partitions([log_dir])
    partition = LocalPartition(found.partitions[NAME])
    assert bounds(partition)[0] == 5
    high_watermarks(log_dir, {HERE: 15})
    found = find_partitions([log_dir], found)
    assert bounds(partition)[0] == 15


def test_a_damaged_one_is_a_problem_of_its_directory(tmp_path: Path) -> None:
    log_dir = write_log_dir(tmp_path / "logs")
    three_segments(log_dir)
    (log_dir / FILE).write_text("?")
    (problem,) = find_partitions([log_dir]).problems
    assert (problem.kind, problem.path) == (ProblemKind.UNREADABLE, str(log_dir / FILE))


def looked(partition: LocalPartition) -> LocalLog:
    log = partition.read()
    assert log is not None
    return log


def bounds(partition: LocalPartition) -> tuple[int, int, int]:
    log = looked(partition)
    return log.high_watermark, log.last_stable_offset, log.log_end_offset


@pytest.mark.parametrize(
    ("written", "expected"),
    [(5, (10, 10, 25)), (12, (12, 12, 25)), (25, (25, 22, 25)), (99, (25, 22, 25))],
)
def test_the_lower_of_high_watermark_and_open_transaction_is_stable_within_the_log(
    tmp_path: Path, written: int, expected: tuple[int, int, int]
) -> None:
    """The log begins at 10, a transaction is open from 22 on."""
    log_dir = write_log_dir(tmp_path / "logs")
    files = PartitionFiles(log_dir)
    files.segment(10, [batch(10, 10)])
    files.snapshot(20)
    files.segment(20, [batch(20, 2), in_transaction(22, 9, 3)])
    high_watermarks(log_dir, {HERE: written})
    assert bounds(LocalPartition(find_partitions([log_dir]).partitions[NAME])) == expected


def test_unknown_high_watermark_counts_as_the_log_start(tmp_path: Path) -> None:
    log_dir = write_log_dir(tmp_path / "logs")
    three_segments(log_dir)
    high_watermarks(log_dir, {})
    log = looked(LocalPartition(find_partitions([log_dir]).partitions[NAME]))
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (0, 0, 25)
    assert log.high_watermark_problem is not None
    assert log.high_watermark_problem.blocked_segments == 2
