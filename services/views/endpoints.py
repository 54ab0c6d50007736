"""Describe a service's address and how it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from services.rpc.client.probe import ServiceState


class Severity(IntEnum):
    """How bad a fact is; its number is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a service, and its state; no address: it was not given."""

    service: str
    address: str
    state: ServiceState

    @property
    def severity(self) -> Severity:
        is_sound = not self.address or (self.state.is_ready and not self.state.problem)
        return Severity.OK if is_sound else Severity.CRITICAL

    @property
    def text(self) -> str:
        """Describe the address for people."""
        if not self.address:
            return f"not asked: pass --{self.service} HOST:PORT"
        if self.state.problem:
            return f"{self.address}: {self.state.problem}"
        if self.state.is_ready:
            return f"{self.address}: {self.state.version}, ready"
        why = f": {self.state.unready}" if self.state.unready else ""
        return f"{self.address}: {self.state.version}, not ready{why}"


def is_ready(endpoints: Sequence[Endpoint], service: str) -> bool:
    """Return whether an address of the service is ready."""
    return any(
        each.service == service and each.address and each.severity is Severity.OK
        for each in endpoints
    )


def severity_of(level: str) -> Severity:
    """Return how bad a Note of this level is; what is unknown is no fault."""
    return Severity[level] if level in Severity.__members__ else Severity.OK
