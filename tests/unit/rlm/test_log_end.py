"""Test when the local log cannot be the one of the tier's log start."""

from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.local_log import LocalPartition, log_end_problem
from services.rlm.kafka_log.log_dir import find_partitions
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments, write_log_dir


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    """Provide a log that ends at offset 25, with two rolled segments."""
    return three_segments(write_log_dir(tmp_path / "logs"))


@pytest.fixture
def local(files: PartitionFiles) -> LocalPartition:
    return LocalPartition(find_partitions([files.path.parent]).partitions[NAME])


def test_a_log_that_ends_at_the_log_start_has_only_expired(local: LocalPartition) -> None:
    log = local.read()
    assert log is not None
    assert log_end_problem(local, log, 25) is None


def test_a_log_that_ends_below_the_log_start_is_another(
    files: PartitionFiles, local: LocalPartition
) -> None:
    log = local.read()
    assert log is not None
    problem = log_end_problem(local, log, 26)
    assert problem is not None
    assert (problem.kind, problem.path) == (
        ProblemKind.LOG_END_BELOW_LOG_START,
        str(files.path),
    )
    assert (problem.offset, problem.blocked_segments) == (0, 2)
    assert "ends at offset 25, below the tier's log start 26" in problem.message
    assert "restore the partition's log" in problem.message


def test_a_log_that_has_grown_since_it_was_checked_is_the_same(
    files: PartitionFiles, local: LocalPartition
) -> None:
    log = local.read()
    assert log is not None
    files.segment(20, [batch(20, 5), batch(25)])
    assert log_end_problem(local, log, 26) is None
