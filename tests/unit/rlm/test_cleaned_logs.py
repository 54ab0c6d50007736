"""Test what the log cleaner's checkpoint tells of compacted logs."""

from pathlib import Path
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.rlm.cleanup_policies import CleanedLogs, is_awaited, is_compacted
from services.rlm.kafka_admin.cluster_view import NoPolicy

CLEANED = TopicIdPartition(uuid4(), "profiles", 1)
OTHERS = [TopicIdPartition(CLEANED.topic_id, "profiles", 0), TopicIdPartition(uuid4(), "t", 1)]


@pytest.fixture
def log_dirs(tmp_path: Path) -> list[Path]:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    return directories


def written(log_dir: Path, text: str) -> None:
    made = log_dir / "made"
    made.write_text(text)
    made.replace(log_dir / "cleaner-offset-checkpoint")


def test_a_cleaned_log_is_compacted_and_others_are_not(log_dirs: list[Path]) -> None:
    policies = CleanedLogs(log_dirs)
    written(log_dirs[0], "")
    written(log_dirs[1], "0\n1\nprofiles 1 40\n")
    assert is_compacted(policies.of(CLEANED))
    assert [policies.of(each) for each in OTHERS] == ["delete", "delete"]
    written(log_dirs[1], "0\n0\n")
    assert policies.of(CLEANED) == "delete"


@pytest.mark.parametrize("text", [None, "0\n2\nprofiles 1 40\n", "\xff"])
def test_without_a_sound_checkpoint_nothing_is_known(
    log_dirs: list[Path], text: str | None
) -> None:
    written(log_dirs[0], "0\n1\nprofiles 1 40\n" if text is None else text)
    policies = CleanedLogs(log_dirs)
    for each in OTHERS:
        policy = policies.of(each)
        assert isinstance(policy, NoPolicy)
        assert (is_compacted(policy), is_awaited(policy)) == (False, False)
    assert is_compacted(policies.of(CLEANED)) is (text is None)
