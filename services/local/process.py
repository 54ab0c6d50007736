"""Start child processes on free ports, and end them however this process ends."""

import atexit
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from services.common.retry import replan
from services.local import as_user
from services.local.pid_files import end_leftover, kill_tree, write_pid_file

LOOPBACK = "127.0.0.1"

TWIN_DISTANCE = 10_000
"""SeaweedFS serves gRPC at each of its HTTP ports plus this."""

# Port and twin stay below 32,768, because Linux gives higher ports to outgoing connections: one of
# those could take a port between our check and the server's bind.
CANDIDATES = range(10_000, 22_768)


PORT_FILE = "ports"
"""Where a server's directory keeps the ports of its last start."""

ErrorT = TypeVar("ErrorT", bound=Exception)
_NAMES_ERROR = re.compile(r"ERROR|FATAL|PANIC|[Ee]rror:|cannot start")
_LONGEST_LINE = 400

GRACE_S = 2.0
_GUARD_POLL_S = 0.05


class ReservedPorts:
    """Reserve free ports, each with its gRPC twin, so that a stopped server keeps its ports.

    The ports are reserved until `release`, or until this object is garbage.

    Args:
        preferred: ports to try before all others, also if they were used a moment ago.

    Raises:
        RuntimeError: fewer than `count` candidates are free.
    """

    def __init__(
        self, count: int, candidates: Sequence[int] = CANDIDATES, preferred: Sequence[int] = ()
    ) -> None:
        sockets = ExitStack()
        self._release = weakref.finalize(self, sockets.close)
        self.ports: list[int] = []
        choices = [*preferred, *random.sample(candidates, len(candidates))]
        for number, port in enumerate(choices):
            if len(self.ports) == count:
                return
            is_preferred = number < len(preferred)
            twins = (port, port + TWIN_DISTANCE)
            if port not in self.ports and all(
                _reserve(sockets, p, reuse=is_preferred) for p in twins
            ):
                self.ports.append(port)
        if len(self.ports) < count:
            self.release()
            raise RuntimeError(
                f"fewer than {count} loopback ports are free from {candidates[0]} on"
            )

    def release(self) -> None:
        self._release()


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now and it is not reserved."""
    with ExitStack() as sockets:
        return _reserve(sockets, port)


def _reserve(sockets: ExitStack, port: int, *, reuse: bool = False) -> bool:
    bound = socket.socket()
    try:
        # Without SO_REUSEADDR this also refuses a port with connections in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        return False
    # From here on, a server that sets it too, as all do, can listen beside this socket.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sockets.enter_context(bound)
    return True


_making = Lock()


class OrphanGuard:
    """Control the process that ends our children when this process dies; see `orphan_guard`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # readers of our output must not wait for the guard
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for us, not for the guard
        )
        atexit.register(self._close)

    def watch(self, pid: int) -> None:
        """End `pid` when this process ends, unless `forget` is called first."""
        self._send(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._send(f"-{pid}\n")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # A stack works without its guard; pid files then name the remaining processes.
        with self._lock, suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _close(self) -> None:
        self._process.communicate()


def orphan_guard() -> OrphanGuard:
    """Return the one guard of this process, started at the first call; thread-safe."""
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
        Event().wait(_GUARD_POLL_S)
        alive = {pid for pid in alive if _signal(pid, 0)}
    for pid in alive:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    """Send a signal (0 only checks); return whether the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    _guard(sys.stdin)


STOP_GRACE_S = 30.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 4_096


def last_error(text: str) -> str:
    """Return the last line that names an error, else the last line, cut to a readable length."""
    lines = [line.strip() for line in text.split("\n") if line.strip()] or ["it printed nothing"]
    found = next((line for line in reversed(lines) if _NAMES_ERROR.search(line)), lines[-1])
    return found[:_LONGEST_LINE]


class ProcessError(RuntimeError):
    """A child process failed; the message has the last error of its log."""


class ProcessDiedError(ProcessError):
    """A child process ended before it was ready."""


class _PortTakenError(ProcessDiedError):
    """Another process took one of its ports meanwhile."""


def start_on_free_ports(
    count: int, start: Callable[[Sequence[int]], None], port_file: Path | None = None
) -> ReservedPorts:
    """Call `start` with free ports, and with others if another process took one meanwhile.

    Store the returned object as long as a server may be started on the ports again.

    Args:
        port_file: has the ports of the last start, which are used again if they are free.

    Raises:
        ProcessDiedError: `start` failed for another reason, or too often.
    """

    def started(reserved: ReservedPorts) -> ReservedPorts:
        try:
            start(reserved.ports)
        except ProcessDiedError as e:
            reserved.release()
            if all(is_free(port) for port in reserved.ports):
                raise
            raise _PortTakenError(str(e)) from e
        return reserved

    last = iter([_ports_in(port_file)] if port_file else [])
    reserved = replan(
        started, lambda: ReservedPorts(count, preferred=next(last, [])), stale=_PortTakenError
    )
    if port_file:
        port_file.write_text(" ".join(map(str, reserved.ports)))
    return reserved


def _ports_in(path: Path) -> list[int]:
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words if word.isdecimal() and int(word) in CANDIDATES]


def _open_private(path: Path) -> BinaryIO:
    """Open a file for writing that only its user can read, also if others could read it before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


class ChildProcess:
    """Run a program, one at a time, with `<directory>/<name>.log`, `.out` and `.pid`.

    Only this user can read log and output; `<name>.log.1` is the log of the run before. The program
    has its own session, so that a Ctrl-C at the terminal does not reach it directly, and ends soon
    after this process, however this process ends. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        uid: int | None = None,
    ) -> None:
        """Describe the program; `environment` replaces ours as a whole, `uid` needs root."""
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log_path = directory / f"{name}.log"
        self.stdout_path = directory / f"{name}.out"
        self._pid_path = directory / f"{name}.pid"
        self._environment = environment
        self._uid = uid
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the present or last process."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """Return the exit code of the last run, -N for signal N; None while it runs."""
        return self._started().poll()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the program, after ending the remains of a killed run with this name."""
        if self.is_running():
            raise ProcessError(f"{self.name} is running already, pid {self.pid}")
        end_leftover(self._pid_path)
        with suppress(FileNotFoundError):
            self.log_path.rename(f"{self.log_path}.1")
        with _open_private(self.log_path) as log, _open_private(self.stdout_path) as stdout:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env=self._environment,
                cwd=self.log_path.parent,
                start_new_session=True,
            )
        orphan_guard().watch(self.pid)
        write_pid_file(self._pid_path, self.pid)

    def wait_until_ready(self, is_ready: Callable[[], bool], deadline_ms: int) -> None:
        """Poll `is_ready` until it is true.

        Raises:
            ProcessDiedError: the process ended first.
            ProcessError: the deadline passed; the process is killed.
        """
        deadline = time.monotonic() + deadline_ms / 1000
        while not is_ready():
            if not self.is_running():
                self._forget()
                what = f"exited with {self.returncode} while starting"
                raise self.failed(ProcessDiedError, what)
            if time.monotonic() > deadline:
                self.kill()
                raise self.failed(ProcessError, f"was not ready after {deadline_ms} ms")
            Event().wait(_POLL_S)

    def stop(self, grace_s: float = STOP_GRACE_S, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop the program and kill it after `grace_s`; no error if it does not run."""
        if self.is_running():
            process = self._started()
            process.send_signal(sign)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                kill_tree(process.pid)
                process.wait()
        self._forget()

    def kill(self) -> None:
        """Kill the program and its descendants and wait; no error if it does not run."""
        if self.is_running():
            kill_tree(self.pid)
            self._started().wait()
        self._forget()

    def failed(self, kind: type[ErrorT], what: str) -> ErrorT:
        """Return an error with the log's last error; the log's end is a note, for tracebacks."""
        tail = self.log_tail()
        error = kind(f"{self.name} {what}: {last_error(tail)}; its log is {self.log_path}")
        error.add_note(tail)
        return error

    def log_tail(self) -> str:
        """Return the last few KiB of the program's stderr."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def _command(self) -> list[str]:
        if self._uid is None:
            return self.argv
        # Isolated and without site-packages, so that it starts fast.
        return [sys.executable, "-IS", as_user.__file__, str(self._uid), *self.argv]

    def _forget(self) -> None:
        if self._process is not None:
            orphan_guard().forget(self._process.pid)
            self._pid_path.unlink(missing_ok=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProcessError(f"{self.name} was never started")
        return self._process


class ServerProcess(ABC):
    """Run a server as a child process on loopback ports that stay the same over restarts.

    A subclass describes the program. As a context manager it starts on entry and stops on exit.
    Not thread-safe.
    """

    _START_TIMEOUT_MS = 60_000

    def __init__(self, ports: int = 1, port_file: Path | None = None) -> None:
        """Describe a server.

        Args:
            ports: how many it listens on.
            port_file: see start_on_free_ports.
        """
        self._port_count = ports
        self._port_file = port_file
        self._ports: Sequence[int] = ()
        self._reserved_ports: ReservedPorts | None = None
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        """Return the process of the latest start.

        Raises:
            ProcessError: there was none.
        """
        if self._process is None:
            raise ProcessError(f"{type(self).__name__} was never started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    def start(self) -> None:
        """Start the server and wait until it is ready.

        Raises:
            ProcessError: the server did not start; the message has the last error of its log.
        """
        if self._ports:
            self._start_on(self._ports)
        else:
            self._reserved_ports = start_on_free_ports(
                self._port_count, self._start_on, self._port_file
            )

    def stop(self) -> None:
        """Stop the server in order."""
        self.process.stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL; no error if it does not run."""
        self.process.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_on(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._process = self._program()
        self._process.start()
        self._process.wait_until_ready(self._is_ready, self._START_TIMEOUT_MS)

    @abstractmethod
    def _program(self) -> ChildProcess:
        """Describe the program that listens on `_ports`."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the started server serves."""
