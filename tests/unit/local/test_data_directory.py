import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.data_directory import DataDirectoryError, locked
from services.local.leftovers import write_pid_file
from services.local.state import StackEndpoints, remove_state, running_stack, write_state
from tests.harness.processes import runs

ENDPOINTS = StackEndpoints(
    rsm="127.0.0.1:1",
    rsm_health="127.0.0.1:2",
    rsm_metrics="127.0.0.1:3",
    rlmm="127.0.0.1:4",
    rlmm_health="127.0.0.1:5",
    rlmm_metrics="127.0.0.1:6",
    rlm="127.0.0.1:7",
    rlm_health="127.0.0.1:8",
    rlm_metrics="127.0.0.1:9",
    s3_endpoint="127.0.0.1:10",
    s3_region="us-east-1",
    s3_access_key="key",
    s3_secret_key="secret",
    s3_bucket="sediment",
    s3_prefix="",
    database_url="postgresql+psycopg://postgres:password@127.0.0.1:11/sediment",
    data_directory="data",
    pids={"rsm": 12},
)


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_second_stack_on_a_directory_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(DataDirectoryError, match="another stack is running")
    with locked(tmp_path, fresh=False), refused, locked(tmp_path, fresh=True):
        pass


def test_a_directory_can_be_used_again_after_its_stack_ended(tmp_path: Path) -> None:
    with locked(tmp_path, fresh=False):
        pass
    with locked(tmp_path, fresh=False):
        assert tmp_path.exists()


def test_what_a_directory_holds_is_kept_or_removed_as_asked(tmp_path: Path) -> None:
    kept = tmp_path / "postgres" / "data"
    kept.mkdir(parents=True)
    with locked(tmp_path, fresh=False):
        assert kept.exists()
    with locked(tmp_path, fresh=True):
        assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_stack_left_running_is_ended(
    tmp_path: Path, leftover: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "s3").mkdir()
    write_pid_file(tmp_path / "s3" / "weed.pid", leftover.pid)
    with locked(tmp_path, fresh=False):
        assert not runs(leftover.pid)


def test_a_running_stack_is_found_by_its_state(tmp_path: Path) -> None:
    write_state(tmp_path, ENDPOINTS)
    assert running_stack(tmp_path) == ENDPOINTS


def test_the_state_of_a_stack_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    write_state(tmp_path, ENDPOINTS)
    (tmp_path / "stack.pid").write_text(f"{os.getpid()} 0.0")
    assert running_stack(tmp_path) is None


def test_no_stack_is_found_where_none_ran_or_one_ended(tmp_path: Path) -> None:
    assert running_stack(tmp_path) is None
    write_state(tmp_path, ENDPOINTS)
    remove_state(tmp_path)
    assert running_stack(tmp_path) is None


def test_the_keys_in_the_state_are_for_its_user_only(tmp_path: Path) -> None:
    write_state(tmp_path, ENDPOINTS)
    assert (tmp_path / "stack.json").stat().st_mode & 0o077 == 0
