"""What becomes of children whose parent was killed."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.local.pid_files import end_leftover, process_of, write_pid_file
from tests.harness.eventually import eventually
from tests.harness.processes import runs

PARENT = """
import signal, sys
from pathlib import Path
from services.local.process import ChildProcess

source = {source!r}
child = ChildProcess("child", [sys.executable, "-c", source], Path(sys.argv[1]))
child.start()
child.wait_until_ready(lambda: "ready" in child.log_tail(), 10_000)
print(child.pid, flush=True)
signal.pause()
"""
WAITS = "import sys, signal; sys.stderr.write('ready'); sys.stderr.flush(); signal.pause()"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS


@pytest.mark.parametrize("source", [WAITS, IGNORES_SIGTERM], ids=["waits", "ignores SIGTERM"])
def test_a_child_ends_soon_after_its_parent_is_killed(tmp_path: Path, source: str) -> None:
    command = [sys.executable, "-c", PARENT.format(source=source), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
    eventually(lambda: not runs(child), deadline_ms=10_000)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_leftover_named_by_a_pid_file_is_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    pid_file = tmp_path / "child.pid"
    write_pid_file(pid_file, process.pid)
    assert process_of(pid_file.read_bytes()) is not None
    end_leftover(pid_file)
    assert (runs(process.pid), pid_file.exists()) == (False, False)


def test_another_process_that_got_the_pid_of_a_leftover_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    pid_file = tmp_path / "child.pid"
    created = psutil.Process(process.pid).create_time()
    pid_file.write_text(f"{process.pid} {created - 3_600}")
    end_leftover(pid_file)
    assert runs(process.pid)


def test_the_process_of_the_original_of_a_copied_directory_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    original, copy, moved = (tmp_path / name for name in ("original", "copy", "moved"))
    original.mkdir()
    write_pid_file(original / "child.pid", process.pid)
    shutil.copytree(original, copy)
    end_leftover(copy / "child.pid")
    assert runs(process.pid)
    original.rename(moved)
    end_leftover(moved / "child.pid")
    assert not runs(process.pid)


@pytest.mark.parametrize("content", ["", "12", "twelve 3.5"])
def test_a_torn_pid_file_names_nothing(tmp_path: Path, content: str) -> None:
    pid_file = tmp_path / "child.pid"
    pid_file.write_text(content)
    end_leftover(pid_file)
    assert not pid_file.exists()
