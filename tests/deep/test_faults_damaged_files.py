"""Files of a broker that are damaged or missing: the partition is blocked and named once, indexes
are rebuilt, and the next partition does not notice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind
from tests.harness.retained_log import take_turns
from tests.harness.ship_stack import Stack
from tests.harness.troubles import ALL, Trouble

Damage = Callable[[Path], object]


@pytest.fixture
def trouble(stack: Stack) -> Trouble:
    return Trouble(stack, stack.log_dir)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00garbage")


def half(path: Path) -> None:
    """As a crash leaves a checkpoint that was being written: the last line is missing."""
    path.write_text("0\n1\n")


def unreadable(path: Path) -> None:
    """As on a disk with a bad block: it opens, and no read of it succeeds, whoever reads."""
    path.unlink()
    path.mkdir()


CHECKPOINT, SNAPSHOT, LOG = "leader-epoch-checkpoint", f"{10:020}.snapshot", f"{0:020}.log"
DAMAGES: list[tuple[str, Damage, ProblemKind]] = [
    (CHECKPOINT, Path.unlink, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, half, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, garbage, ProblemKind.LEADER_EPOCHS_MISSING),
    (CHECKPOINT, unreadable, ProblemKind.UNREADABLE),
    (SNAPSHOT, unreadable, ProblemKind.UNREADABLE),
    (LOG, garbage, ProblemKind.TRUNCATED_BATCH),
    (LOG, unreadable, ProblemKind.UNREADABLE),
]


@pytest.mark.parametrize(("file", "damage", "kind"), DAMAGES)
def test_a_damaged_file_holds_its_partition_back_and_is_logged_once(
    trouble: Trouble, caplog: pytest.LogCaptureFixture, file: str, damage: Damage, kind: ProblemKind
) -> None:
    path = trouble.files.path / file
    damage(path)
    take_turns(trouble.rlm, rounds=3)
    assert (kind, str(path)) in trouble.problems()
    reported = [r.getMessage() for r in caplog.records if r.name.endswith("problem_log")]
    assert len(reported) == 1
    assert f"{kind.value}: {path}" in reported[0]
    assert trouble.blocked() == 1
    assert trouble.stack.ranges() == []
    trouble.assert_nothing_is_left_over()


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *(
            (f"{0:020}{suffix}", damage)
            for suffix in (".index", ".timeindex")
            for damage in (Path.unlink, garbage)
        ),
        (SNAPSHOT, garbage),
    ],
)
def test_a_damaged_index_or_snapshot_is_rebuilt(
    trouble: Trouble, file: str, damage: Damage
) -> None:
    path = trouble.files.path / file
    damage(path)
    take_turns(trouble.rlm)
    assert trouble.problems() == [(ProblemKind.INDEX_REBUILT, str(path))]
    assert (trouble.stack.ranges(), trouble.blocked()) == (ALL, 0)
    trouble.assert_nothing_is_left_over()
