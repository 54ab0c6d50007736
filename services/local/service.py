"""One of the three services as a process."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.local.environments import listen_settings, own_environment
from services.local.ports import LOOPBACK, HeldPorts
from services.local.process import ChildProcess, ProcessError, start_on_free_ports

_START_TIMEOUT_MS = 60_000
_COMMAND_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Announcement:
    """The line of JSON that a service prints once it is ready; addresses are HOST:PORT."""

    service: str
    address: str
    health: str
    metrics: str


class ServiceProcess:
    """`python -m services.<name>`, on loopback ports that stay the same over restarts.

    Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, str],
        directory: Path,
        command: Sequence[str] | None = None,
    ) -> None:
        """`name` is rsm, rlmm or rlm; `command` replaces what runs."""
        self._name = name
        self._settings = settings
        self._directory = directory
        self._command = command or [sys.executable, "-m", f"services.{name}"]
        self._ports: Sequence[int] = ()
        self._held_ports: HeldPorts | None = None
        self._process: ChildProcess | None = None
        self._announcement: Announcement | None = None

    @property
    def process(self) -> ChildProcess:
        if self._process is None:
            raise ProcessError(f"{self._name} was never started")
        return self._process

    @property
    def announcement(self) -> Announcement:
        """What it said when it was last ready."""
        if self._announcement is None:
            raise ProcessError(f"{self._name} was never ready")
        return self._announcement

    @property
    def address(self) -> str:
        """Where its gRPC is."""
        return self.announcement.address

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start and wait until it says that it is ready; `settings` hold for this start only.

        Raises:
            ProcessError: it ended, or was not ready in time; with the end of its log.
        """
        extra = settings or {}
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._ports:
            self._start_on(self._ports, extra)
        else:
            self._held_ports = start_on_free_ports(3, lambda ports: self._start_on(ports, extra))

    def stop(self) -> None:
        """SIGTERM: it ends what is under way first."""
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def _start_on(self, ports: Sequence[int], extra: Mapping[str, str]) -> None:
        self._ports = ports
        listening = listen_settings(self._name, ports, LOOPBACK)
        environment = own_environment({**self._settings, **listening, **extra})
        self._process = ChildProcess(self._name, self._command, self._directory, environment)
        self._process.start()
        self._process.wait_until_ready(self._is_announced, _START_TIMEOUT_MS)

    def _is_announced(self) -> bool:
        line, end, _ = self.process.stdout_path.read_text().partition("\n")
        if not end:
            return False
        self._announcement = Announcement(**json.loads(line))
        return True


def run_to_end(command: Sequence[str], settings: Mapping[str, str]) -> str:
    """Run a command of the project that does its work and ends; answer what it wrote to stdout.

    Raises:
        ProcessError: it failed; with what it wrote to stderr.
    """
    done = subprocess.run(
        command,
        env=own_environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
        start_new_session=True,  # a Ctrl-C at the terminal is for us
    )
    if done.returncode != 0:
        what = " ".join(command[1:])
        raise ProcessError(f"{what} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout
