"""One child process: started with a log, awaited until it is ready, and surely ended."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

from services.local import as_user
from services.local.guard import orphan_guard
from services.local.leftovers import end_leftover, kill_tree, write_pid_file
from services.local.ports import HeldPorts, is_free

STOP_GRACE_S = 30.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 4_096
_PORT_ATTEMPTS = 5


class ProcessError(RuntimeError):
    """A child did not do what it was started for; the message has the end of its log."""


class ProcessDiedError(ProcessError):
    """It ended before it was ready."""


def start_on_free_ports(count: int, start: Callable[[Sequence[int]], None]) -> HeldPorts:
    """Call `start` with free ports, and again with others where somebody took one meanwhile. Keep
    what is answered for as long as a server may be started on them again.

    Raises:
        ProcessDiedError: as `start` does, for any other reason or too often.
    """
    for _ in range(_PORT_ATTEMPTS - 1):
        held = HeldPorts(count)
        try:
            start(held.ports)
            return held
        except ProcessDiedError:
            held.release()
            if all(is_free(port) for port in held.ports):
                raise
    held = HeldPorts(count)
    start(held.ports)
    return held


class ChildProcess:
    """A program that runs at most once at a time, as `<directory>/<name>.log`, `.out`, `.pid`.

    It is a session of its own, so that Ctrl-C at the terminal reaches it through us only, and it
    ends soon after this process, however that ends. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """`environment` replaces ours as a whole; `user` needs root."""
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log_path = directory / f"{name}.log"
        self.stdout_path = directory / f"{name}.out"
        self._pid_path = directory / f"{name}.pid"
        self._environment = environment
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs or ran last."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """How the last run ended, -N: by signal N; None: it runs."""
        return self._started().poll()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; whatever a killed run left under this name is ended first."""
        if self.is_running():
            raise ProcessError(f"{self.name} is running already, pid {self.pid}")
        end_leftover(self._pid_path)
        with self.log_path.open("wb") as log, self.stdout_path.open("wb") as stdout:
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
        """Ask `is_ready` until it says so.

        Raises:
            ProcessDiedError: the process ended first.
            ProcessError: the deadline passed; the process is killed.
        """
        deadline = time.monotonic() + deadline_ms / 1000
        while not is_ready():
            if not self.is_running():
                self._forget()
                died = f"{self.name} ended with {self.returncode} at start"
                raise ProcessDiedError(f"{died}{self._tail()}")
            if time.monotonic() > deadline:
                self.kill()
                late = f"{self.name} was not ready after {deadline_ms} ms"
                raise ProcessError(f"{late}{self._tail()}")
            Event().wait(_POLL_S)

    def stop(self, grace_s: float = STOP_GRACE_S, sign: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, wait, and kill it after the grace; not running is success."""
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
        """SIGKILL it and all that it started, and wait; not running is success."""
        if self.is_running():
            kill_tree(self.pid)
            self._started().wait()
        self._forget()

    def log_tail(self) -> str:
        """The last few KiB that it wrote to stderr."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def _command(self) -> list[str]:
        if self._user is None:
            return self.argv
        # Isolated, without site-packages: it starts in no time.
        return [sys.executable, "-IS", as_user.__file__, self._user, *self.argv]

    def _tail(self) -> str:
        return f"; the end of {self.log_path}:\n{self.log_tail()}"

    def _forget(self) -> None:
        if self._process is not None:
            orphan_guard().forget(self._process.pid)
            self._pid_path.unlink(missing_ok=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProcessError(f"{self.name} was never started")
        return self._process
