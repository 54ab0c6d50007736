"""Test what becomes of the files of a sweep that was killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.sweeps.scratch import scratch_directory
from spark_jobs.sweeps.sweep_error import EXIT_FAILED, SweepError
from tests.harness.small_limits import small_disk

KILLED = """
import os, signal
from spark_jobs.sweeps.scratch import scratch_directory
with scratch_directory() as directory:
    (directory / "plan").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_next_sweep_removes_what_a_killed_one_has_left(temporary: Path) -> None:
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    [left] = temporary.iterdir()
    assert (left / "plan").is_dir()
    with scratch_directory() as own:
        assert list(temporary.iterdir()) == [own]
    assert list(temporary.iterdir()) == []


def test_the_files_of_a_running_sweep_stay(temporary: Path) -> None:
    with scratch_directory() as running, scratch_directory() as other:
        assert running.is_dir()
        assert other != running


def test_a_directory_that_cannot_be_made_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        disk.make_read_only()
        monkeypatch.setattr("tempfile.tempdir", str(disk.path))
        with pytest.raises(SweepError) as caught, scratch_directory():
            pass
    assert caught.value.exit_code == EXIT_FAILED
    assert re.fullmatch(r"TMPDIR: \S+: Read-only file system; .+", str(caught.value))


def test_other_directories_stay(temporary: Path) -> None:
    foreign = temporary / "sediment-sweep-without-a-lock"
    foreign.mkdir()
    with scratch_directory():
        assert foreign.is_dir()
