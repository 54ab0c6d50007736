import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.data_directory import (
    DataDirectoryError,
    StackEndpoints,
    check_apart,
    locked,
    remove_state,
    running_stack,
    write_state,
)
from services.local.pid_files import write_pid_file
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
    rlm_consumers="",
    store="s3",
    s3_endpoint="127.0.0.1:10",
    s3_region="us-east-1",
    s3_bucket="sediment",
    s3_prefix="",
    locations_file="",
    deployment_id="",
    database_url="postgresql+psycopg://rlmm@127.0.0.1:11/sediment",
    credentials_file="data/credentials.json",
    data_directory="data",
    tls_ca="",
    tls_certificate="",
    tls_key="",
    pids={"rsm": 12},
)


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def everything_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def test_a_second_stack_on_a_directory_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(DataDirectoryError, match="another stack is running")
    with locked(tmp_path, fresh=False), refused, locked(tmp_path, fresh=True):
        pass


def test_a_directory_can_be_used_again_after_its_stack_ended(tmp_path: Path) -> None:
    with locked(tmp_path, fresh=False):
        pass
    with locked(tmp_path, fresh=False):
        assert tmp_path.exists()


def test_data_of_stacks_is_kept_or_removed_by_fresh(tmp_path: Path) -> None:
    kept = tmp_path / "postgres" / "data"
    with locked(tmp_path, fresh=False):
        kept.mkdir(parents=True)
    with locked(tmp_path, fresh=False):
        assert kept.exists()
    with locked(tmp_path, fresh=True):
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lock", "sediment-data"]


def test_foreign_files_in_the_data_directory_are_never_removed(tmp_path: Path) -> None:
    data_dir, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with locked(data_dir, fresh=False):
        pass
    (elsewhere / "data").mkdir(parents=True)
    (data_dir / "postgres").symlink_to(elsewhere)
    (data_dir / "mine").mkdir()
    (data_dir / "mine" / "server.pid").write_text("12\n")
    with locked(data_dir, fresh=True):
        assert (data_dir / "mine" / "server.pid").read_text() == "12\n"
        assert (elsewhere / "data").exists()
        assert not (data_dir / "postgres").is_symlink()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        ("thesis.txt",),
        ("lock", "postgres/data", "thesis.txt"),
        ("postgres/data", "services/main.py"),
    ],
)
def test_a_directory_of_others_is_left_as_it_is(
    tmp_path: Path, names: tuple[str, ...], fresh: bool
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = everything_below(tmp_path)
    refused = pytest.raises(DataDirectoryError, match="no data directory of Sediment's")
    with refused, locked(tmp_path, fresh):
        pass
    assert everything_below(tmp_path) == before


def test_lock_file_with_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("pid 12")
    refused = pytest.raises(DataDirectoryError, match="holds lock and is no data directory")
    with refused, locked(tmp_path, fresh=True):
        pass
    assert (tmp_path / "lock").read_text() == "pid 12"


def test_refusal_of_a_foreign_directory_names_a_few_of_its_files(tmp_path: Path) -> None:
    for name in ("lock", "a", "b", "c", "d", "e"):
        (tmp_path / name).touch()
    refused = pytest.raises(DataDirectoryError, match=f"{tmp_path} holds a, b, c and 2 more and")
    with refused, locked(tmp_path, fresh=False):
        pass


def test_a_directory_of_a_run_that_was_killed_before_its_mark_is_ours(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with locked(tmp_path, fresh=False):
        assert (tmp_path / "sediment-data").exists()


def test_a_data_directory_lies_apart_from_the_logs(tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    (tmp_path / "link").symlink_to(log_dir)
    for directory in (log_dir, log_dir / "data", tmp_path, tmp_path / "link" / "data"):
        with pytest.raises(
            DataDirectoryError, match=f"{directory}: the log directory {log_dir} is"
        ):
            check_apart(directory, [tmp_path.parent / "other", log_dir])
    check_apart(tmp_path / "log-data", [log_dir])


def test_process_left_by_a_killed_stack_is_ended(
    tmp_path: Path, leftover: subprocess.Popen[bytes]
) -> None:
    with locked(tmp_path, fresh=False):
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


def test_no_stack_is_found_if_none_ran_or_one_ended(tmp_path: Path) -> None:
    assert running_stack(tmp_path) is None
    write_state(tmp_path, ENDPOINTS)
    remove_state(tmp_path)
    assert running_stack(tmp_path) is None


@pytest.mark.parametrize(
    "stored", ["", "{", "[1]", '"text"', '{"rsm": "127.0.0.1:1"}', '{"of_later": ""}', "\udcff"]
)
def test_a_state_without_content_is_named(tmp_path: Path, stored: str) -> None:
    write_state(tmp_path, ENDPOINTS)
    state = tmp_path / "stack.json"
    state.write_text(stored, errors="surrogateescape")
    with pytest.raises(DataDirectoryError, match=f"{state} is damaged or of another release"):
        running_stack(tmp_path)
    (tmp_path / "stack.pid").unlink()
    assert running_stack(tmp_path) is None


def test_a_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DataDirectoryError, match=r"file/stack\.json cannot be read: Not a directory"
    ):
        running_stack(tmp_path / "file")
    (tmp_path / "stack.json").mkdir()
    with pytest.raises(DataDirectoryError, match=r"stack\.json cannot be read: Is a directory"):
        running_stack(tmp_path)


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """The state of a stack that is believed as it is."""
    directory = tmp_path / "sediment"
    directory.mkdir()
    write_state(directory, ENDPOINTS)
    assert running_stack(directory) == ENDPOINTS
    return directory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "stack.json", "stack.pid"])
def test_the_state_of_another_user_is_not_believed(forged: Path, name: str) -> None:
    path = forged / name
    os.chown(path, 4_000, 4_000)
    with pytest.raises(DataDirectoryError, match=f"{path} belongs to another user .uid 4000, "):
        running_stack(forged)


@pytest.mark.parametrize("name", [".", "stack.json", "stack.pid"])
def test_a_state_behind_a_symbolic_link_is_not_believed(forged: Path, name: str) -> None:
    path, real = forged / name, forged.parent / "real"
    path.rename(real)
    path.symlink_to(real)
    with pytest.raises(DataDirectoryError, match=f"{path} is a symbolic link"):
        running_stack(forged)


def test_a_state_that_is_a_fifo_blocks_no_command(forged: Path) -> None:
    (forged / "stack.json").unlink()
    os.mkfifo(forged / "stack.json")
    with pytest.raises(DataDirectoryError, match=r"stack\.json is damaged"):
        running_stack(forged)


def test_no_stack_runs_on_a_directory_or_lock_behind_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "gone"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(tmp_path / target)
        refused = pytest.raises(DataDirectoryError, match=f"{link} is a symbolic link")
        with refused, locked(link, fresh=False):
            pass
        assert not [*(tmp_path / "elsewhere").iterdir()]
    with locked(tmp_path / "data", fresh=False):
        pass
    other = tmp_path / "other"
    other.write_text("content")
    (tmp_path / "data" / "lock").unlink()
    (tmp_path / "data" / "lock").symlink_to(other)
    with pytest.raises(DataDirectoryError), locked(tmp_path / "data", fresh=False):
        pass
    assert other.read_text() == "content"


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_path_that_can_be_no_directory_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(DataDirectoryError, match=f"{tmp_path / below} cannot be used: ")
    with refused, locked(tmp_path / below, fresh=False):
        pass


def test_error_raised_inside_the_lock_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path, fresh=False):
        raise FileNotFoundError("a program")


def test_the_keys_in_the_state_are_for_its_user_only(tmp_path: Path) -> None:
    write_state(tmp_path, ENDPOINTS)
    assert (tmp_path / "stack.json").stat().st_mode & 0o077 == 0
