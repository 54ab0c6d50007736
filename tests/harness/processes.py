"""Run services as processes that tests kill; a thin layer over services.local."""

from contextlib import suppress

import psutil

from services.local.process import ProcessError
from services.local.stack import ServiceProcess
from tests.harness.eventually import eventually


def start_with_failpoint(service: ServiceProcess, name: str, nth: int = 1) -> None:
    """Start a service that kills itself when it passes the failpoint for the n-th time."""
    service.start({"SEDIMENT_FAILPOINT": f"{name}:{nth}"})


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
