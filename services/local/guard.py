"""A process that outlives ours by a moment, to end our children however we end.

It reads lines "+PID" and "-PID" from us. When its input ends it stops every pid that is still on
its list. This works wherever there are pipes, and unlike Linux' parent-death signal it does not
depend on which of our threads started the child.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from threading import Event, Lock

GRACE_S = 2.0
_POLL_S = 0.05
_making = Lock()


class OrphanGuard:
    """Our end of the pipe; one per process, see `orphan_guard`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # whoever reads our output need not wait for the guard
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for us, not for the guard
        )
        atexit.register(self._close)

    def watch(self, pid: int) -> None:
        """End `pid` when this process ends, unless `forget` came first."""
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # A stack works without its guard; pid files catch what is then left behind.
        with self._lock, suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _close(self) -> None:
        self._process.communicate()


def orphan_guard() -> OrphanGuard:
    """The one guard of this process, made when first asked for; thread-safe."""
    with _making:
        return _make_guard()


@cache
def _make_guard() -> OrphanGuard:
    return OrphanGuard()


def _guard(lines: Iterable[str]) -> None:
    watched: set[int] = set()
    for line in lines:
        change, pid = line[0], int(line[1:])
        if change == "+":
            watched.add(pid)
        else:
            watched.discard(pid)
    _end(watched)


def _end(pids: set[int]) -> None:
    deadline = time.monotonic() + GRACE_S
    alive = {pid for pid in pids if _signal(pid, signal.SIGTERM)}
    while alive and time.monotonic() < deadline:
        Event().wait(_POLL_S)
        alive = {pid for pid in alive if _signal(pid, 0)}
    for pid in alive:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    """Send it; whether there was such a process (0 only asks)."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    _guard(sys.stdin)
