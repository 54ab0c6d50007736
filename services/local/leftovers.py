"""Pid files, by which a start finds and ends what an earlier, killed run left behind."""

import time
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil

# A pid comes back some day as another process, but not with the same time of creation; the two
# readings of that time may differ by a clock tick.
_SAME_CREATION_S = 1.0
_DEATH_TIMEOUT_S = 10.0
_POLL_S = 0.02


def write_pid_file(path: Path, pid: int) -> None:
    """Say which process this is; whoever reads the file sees all of it or none."""
    making = path.with_name(f"{path.name}.new")
    making.write_text(f"{pid} {psutil.Process(pid).create_time()}\n")
    making.rename(path)


def end_leftover(path: Path) -> None:
    """Kill the process that `path` names, and its children, if it still runs; remove `path`.

    A later process that got the same pid is left alone. Absent or torn files are no error.
    """
    leftover = _running_process(path)
    if leftover is not None:
        kill_tree(leftover.pid)
    path.unlink(missing_ok=True)


def names_running_process(path: Path) -> bool:
    """Whether the process that `path` was written for still runs."""
    return _running_process(path) is not None


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that it started, and wait until none of them runs.

    A child of ours is left for its `Popen` to reap.
    """
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + _DEATH_TIMEOUT_S
    while any(_runs(process) for process in family) and time.monotonic() < deadline:
        Event().wait(_POLL_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _running_process(path: Path) -> psutil.Process | None:
    try:
        pid, created = path.read_text().split()
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(created)) < _SAME_CREATION_S
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    return process if same else None
