"""Connect to the services of a tier, and describe how each of their addresses answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum

import grpc

from services.api.offset_queries import OffsetService
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.addresses import each_address
from services.common.client_security import ClientSecurity
from services.common.threads import started_pool
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.probe import ServiceState, probe

_WORKERS = 16


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """The targets of the services, and the address of each RLM with commas between them.

    "" if one is not known. RSM is only probed.
    """

    rsm: str = ""
    rlmm: str = ""
    rlm: str = ""

    def pairs(self) -> list[tuple[str, str]]:
        """Return each service with each of its addresses, and one that has none with ""."""
        targets = (("rsm", self.rsm), ("rlmm", self.rlmm), ("rlm", self.rlm))
        return [(service, each) for service, target in targets for each in each_address(target)]


class Severity(IntEnum):
    """How bad a fact is; its number is the exit code, but for UNKNOWN: it was not looked at."""

    UNKNOWN = -1
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
        if not self.address:
            return Severity.UNKNOWN
        is_sound = self.state.is_ready and not self.state.problem
        return Severity.OK if is_sound else Severity.CRITICAL

    @property
    def text(self) -> str:
        """Describe the address for people."""
        if not self.address:
            return f"not checked: pass --{self.service} HOST:PORT"
        if self.state.problem:
            return f"{self.address}: {self.state.problem}"
        if self.state.is_ready:
            return f"{self.address}: {self.state.version}, ready"
        why = f": {self.state.unready}" if self.state.unready else ""
        return f"{self.address}: {self.state.version}, not ready{why}"


@dataclass(frozen=True, slots=True)
class TierClients:
    """Clients of the services of a tier.

    Attributes:
        metadata: None if no address of RLMM is known.
        logs: the RLM at each address; each knows the partitions of its broker.
        channels: the channel to each address of each service; None if none is known.
        workers: make several calls at once.
    """

    metadata: RemoteLogMetadataManager | None
    logs: Mapping[str, OffsetService]
    channels: Sequence[tuple[str, str, grpc.Channel | None]]
    workers: ThreadPoolExecutor

    def probe(self) -> list[Endpoint]:
        """Probe every address of every service at once; one that does not answer is no error."""

        def endpoint(service: str, address: str, channel: grpc.Channel | None) -> Endpoint:
            return Endpoint(service, address, ServiceState() if channel is None else probe(channel))

        return list(self.workers.map(endpoint, *zip(*self.channels, strict=True)))


@contextmanager
def connect_tier(
    addresses: ServiceAddresses, security_for: Callable[[str], ClientSecurity]
) -> Iterator[TierClients]:
    """Open channels to the services, and close them at the end.

    Raises:
        InvalidRequestError: an address or a TLS file cannot be used, or plaintext to another
            machine was not chosen.
    """
    with ExitStack() as opened:
        # Ends after the channels: their end ends the calls that its threads wait for.
        workers = opened.enter_context(started_pool(_WORKERS, "tier"))

        def channel_to(address: str) -> grpc.Channel:
            return opened.enter_context(open_channel(address, security_for(address)))

        channels = [
            (service, address, channel_to(address) if address else None)
            for service, address in addresses.pairs()
        ]
        metadata = None
        if addresses.rlmm:
            metadata = RemoteLogMetadataManagerClient(channel_to(addresses.rlmm), addresses.rlmm)
        logs = {
            address: RemoteLogManagerClient(channel, address)
            for service, address, channel in channels
            if service == "rlm" and channel is not None
        }
        yield TierClients(metadata, logs, channels, workers)


def is_ready(endpoints: Sequence[Endpoint], service: str) -> bool:
    """Return whether an address of the service is ready."""
    return any(each.service == service and each.severity is Severity.OK for each in endpoints)


def severity_of(level: str) -> Severity:
    """Return how bad a Note of this level is; what is unknown is no fault."""
    return Severity[level] if level in Severity.__members__ else Severity.OK
