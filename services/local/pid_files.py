"""Write the pid files of processes, and end processes that an earlier run left."""

import time
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil

# Another process may reuse a pid, but not with the same creation time; two readings of that time
# may differ by a clock tick.
_SAME_CREATION_S = 1.0
_DEATH_TIMEOUT_S = 10.0
_POLL_S = 0.02


def write_pid_file(path: Path, pid: int) -> None:
    """Write a process's pid, its creation time and the directory's number, atomically."""
    making = path.with_name(f"{path.name}.new")
    created = psutil.Process(pid).create_time()
    making.write_text(f"{pid} {created} {path.parent.stat().st_ino}\n")
    making.rename(path)


def end_leftover(path: Path) -> None:
    """Kill the process that `path` names, and its children, if it still runs; remove `path`.

    A later process with the same pid is not killed, nor one that runs in the directory of which
    this one is a copy. A missing or damaged file is no error.
    """
    with suppress(OSError):
        stored = path.read_bytes()
        is_copied = stored.split()[2:] not in ([], [str(path.parent.stat().st_ino).encode()])
        leftover = None if is_copied else process_of(stored)
        if leftover is not None:
            kill_tree(leftover.pid)
    path.unlink(missing_ok=True)


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants with SIGKILL, and wait until none of them runs.

    A child of this process stays for its `Popen` to reap.
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


def process_of(stored: bytes) -> psutil.Process | None:
    """Return the process that the content of a pid file names, if it still runs."""
    try:
        pid, created, *_ = stored.decode().split()
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(created)) < _SAME_CREATION_S
    except (ValueError, psutil.NoSuchProcess):
        return None
    return process if same else None
