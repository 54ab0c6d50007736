"""Run services as processes that tests kill, and the command `sediment` beside them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil

from services.common.client_security import PLAINTEXT
from services.local.process import ProcessError
from services.local.stack import ServiceProcess, rlmm_settings
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.harness.eventually import PATIENT, eventually
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_manager


def start_with_failpoint(
    service: ServiceProcess, name: str, nth: int = 1, signal: str = "KILL"
) -> None:
    """Start a service that kills or stops itself when it passes the failpoint for the n-th time."""
    service.start({"SEDIMENT_FAILPOINT": f"{name}:{nth}:{signal}"})


def run_until_killed(
    service: ServiceProcess, name: str, nth: int = 1, deadline_ms: int = 60_000
) -> None:
    """Run until the failpoint, which may come before the service reports that it is ready."""
    with suppress(ProcessError):
        start_with_failpoint(service, name, nth)
    wait_until_dead(service, deadline_ms)


def wait_until_dead(service: ServiceProcess, deadline_ms: int = 60_000) -> None:
    """Wait until the service has ended by itself, as at a failpoint.

    Raises:
        AssertionError: it still runs at the deadline.
    """
    eventually(lambda: not service.process.is_running(), deadline_ms)


def kill_and_restart(service: ServiceProcess) -> None:
    """Kill with SIGKILL, then start without failpoints on the same ports."""
    service.kill()
    service.start()


def runs(pid: int) -> bool:
    """Return whether a process runs; an ended process does not, even if it is still a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class RlmmProcess:
    """The address of an RLMM, and a client of it.

    Attributes:
        variables: of the environment of commands, beside the address.
    """

    address: str
    client: RemoteLogMetadataManagerClient
    variables: Mapping[str, str] = field(default_factory=dict)

    def beside(self, **variables: str) -> Self:
        """Return this RLMM with variables for commands, as the addresses of other services."""
        return replace(self, variables={**self.variables, **variables})

    def sediment(self, *arguments: object) -> Completed:
        """Run a command against this RLMM, to its end."""
        environment = {**self.variables, "SEDIMENT_RLMM": self.address}
        return sediment(*arguments, environment=environment)

    def answers(self, *arguments: object) -> list[dict[str, Any]]:
        """Run a command that must succeed; return its JSON output, document by document."""
        done = self.sediment(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refusal(self, *arguments: object) -> str:
        """Run a command that must refuse its arguments; return its one line of error."""
        done = self.sediment(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (line,) = done.stderr.splitlines()
        return line


@contextmanager
def running_rlmm(database_url: str, directory: Path) -> Iterator[RlmmProcess]:
    """Run RLMM over a migrated database and stop it at the end."""
    service = ServiceProcess("rlmm", rlmm_settings(database_url), directory)
    service.start()
    try:
        with open_channel(service.address, PLAINTEXT) as channel:
            client = RemoteLogMetadataManagerClient(channel, service.address)
            yield RlmmProcess(service.address, client)
    finally:
        service.kill()


@contextmanager
def serving_rlmm(database_url: str) -> Iterator[RlmmProcess]:
    """Serve RLMM over real gRPC in this process, which starts in no time."""
    engine = create_database_engine(database_url, PATIENT)

    with served_manager(SqlRemoteLogMetadataManager(engine)) as (channel, address):
        yield RlmmProcess(address, RemoteLogMetadataManagerClient(channel, address))
    engine.dispose()
