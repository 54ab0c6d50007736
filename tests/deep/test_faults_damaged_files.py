"""Files of a broker that are damaged or missing: the partition is held back and named once, indexes
are rebuilt, and the next partition does not notice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack
from tests.harness.troubles import ALL, WELL, Trouble
from tests.unit.rlm.kafka_bytes import batch, three_segments

Damage = Callable[[Path], object]


@pytest.fixture
def trouble(stack: Stack, log_dir: Path) -> Trouble:
    return Trouble(stack, log_dir)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00garbage")


def half(path: Path) -> None:
    """As a crash leaves a checkpoint that was being written: the last line is missing."""
    path.write_text("0\n1\n")


def unreadable(path: Path) -> None:
    """As on a disk with a bad block: it opens, and no read of it succeeds, whoever reads."""
    path.unlink()
    path.mkdir()


def after_a_producer(snapshot: Path) -> None:
    """Remove the snapshot of a segment that a producer with an id wrote."""
    snapshot.unlink()
    snapshot.with_name(LOG).write_bytes(batch(0, 10, producer_id=7))


CHECKPOINT, SNAPSHOT, LOG = "leader-epoch-checkpoint", f"{10:020}.snapshot", f"{0:020}.log"
DAMAGES: list[tuple[str, Damage, ProblemKind]] = [
    (CHECKPOINT, Path.unlink, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, half, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, garbage, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, unreadable, ProblemKind.UNREADABLE),
    (SNAPSHOT, after_a_producer, ProblemKind.PRODUCER_SNAPSHOT_MISSING),
    (SNAPSHOT, garbage, ProblemKind.PRODUCER_SNAPSHOT_MISSING),
    (LOG, garbage, ProblemKind.TRUNCATED_BATCH),
    (LOG, unreadable, ProblemKind.UNREADABLE),
]


@pytest.mark.parametrize(("file", "damage", "kind"), DAMAGES)
def test_a_damaged_file_holds_its_partition_back_and_is_logged_once(
    trouble: Trouble,
    caplog: pytest.LogCaptureFixture,
    file: str,
    damage: Damage,
    kind: ProblemKind,
) -> None:
    path = trouble.files.path / file
    damage(path)
    take_turns(trouble.rlm, rounds=3)
    assert (kind, str(path)) in trouble.problems()
    reported = [r.getMessage() for r in caplog.records if r.name.endswith("problem_log")]
    assert len(reported) == 1
    assert f"{kind.value}: {path}" in reported[0]
    assert trouble.held_back() == 1
    assert trouble.stack.ranges() == []
    trouble.assert_nothing_is_left_over()


@pytest.mark.parametrize("damage", [Path.unlink, garbage])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_rebuilt(trouble: Trouble, suffix: str, damage: Damage) -> None:
    path = trouble.files.file(0, suffix)
    damage(path)
    take_turns(trouble.rlm)
    assert trouble.problems() == [(ProblemKind.INDEX_REBUILT, str(path))]
    assert (trouble.stack.ranges(), trouble.held_back()) == (ALL, 0)
    trouble.assert_nothing_is_left_over()


def test_a_folder_without_the_topics_id_is_logged_once(
    stack: Stack, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = three_segments(log_dir)
    three_segments(log_dir, WELL)
    (files.path / "partition.metadata").unlink()
    rlm = BrokerRemoteLogManager([log_dir], stack.rsm, stack.rlmm, AT_ONCE)
    take_turns(rlm, rounds=3)
    (reported,) = [r.getMessage() for r in caplog.records if r.name.endswith("problem_log")]
    assert f"PARTITION_METADATA_MISSING: {files.path}" in reported
    assert stack.ranges(WELL) == ALL
