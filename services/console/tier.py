"""Hold the clients of the services that the console reads from."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import grpc

from services.api.remote_log_manager import RemoteLogManager
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.client_security import ClientSecurity, each_address
from services.common.threads import started_pool
from services.console.cache import RecentAnswers
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.probe import ServiceState, probe
from services.views.endpoints import Endpoint

_WORKERS = 16
_KEPT_FACTS = 4
"""Partitions of at most segment_life.MAX_EXPLAINED segments."""


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """HOST:PORT of the services, each one or several with commas between them; "" if unknown.

    RSM is only probed.
    """

    rlmm: str
    rlm: str = ""
    rsm: str = ""

    def pairs(self) -> list[tuple[str, str]]:
        """Return each service with each of its addresses, and one that has none with ""."""
        texts = (("rlmm", self.rlmm), ("rlm", self.rlm), ("rsm", self.rsm))
        return [(service, each) for service, text in texts for each in each_address(text)]


@dataclass(slots=True)
class Tier:
    """The services, as their contracts show them.

    Attributes:
        logs: the RLM at each address; each knows the partitions of its broker.
        workers: make several calls at once.
        recent: answers of the last seconds.
        facts: the same, of whole partitions: large.
    """

    metadata: RemoteLogMetadataManager
    logs: Mapping[str, RemoteLogManager]
    workers: ThreadPoolExecutor
    recent: RecentAnswers = field(default_factory=RecentAnswers)
    facts: RecentAnswers = field(default_factory=lambda: RecentAnswers(_KEPT_FACTS))
    channels: tuple[tuple[str, str, grpc.Channel | None], ...] = ()

    def probed(self) -> list[Endpoint]:
        """Probe every address of every service; one that does not answer is no error."""

        def endpoint(service: str, address: str, channel: grpc.Channel | None) -> Endpoint:
            state = ServiceState() if channel is None else probe(channel)
            return Endpoint(service, address, state)

        return list(self.workers.map(lambda each: endpoint(*each), self.channels))


@contextmanager
def connected_tier(
    addresses: ServiceAddresses, security_for: Callable[[str], ClientSecurity]
) -> Iterator[Tier]:
    """Open a channel to each service, and close them at the end.

    Raises:
        InvalidRequestError: a TLS file cannot be used, or plaintext to another machine was not
            chosen.
    """
    with ExitStack() as opened:
        # Ends after the channels: their end ends the calls that its threads wait for.
        workers = opened.enter_context(started_pool(_WORKERS, "console"))

        def channel_to(address: str) -> grpc.Channel:
            return opened.enter_context(open_channel(address, security_for(address)))

        channels = [
            (service, address, channel_to(address) if address else None)
            for service, address in addresses.pairs()
        ]
        metadata = RemoteLogMetadataManagerClient(channel_to(addresses.rlmm), addresses.rlmm)
        logs = {
            address: RemoteLogManagerClient(channel, address)
            for service, address, channel in channels
            if service == "rlm" and channel is not None
        }
        yield Tier(metadata, logs, workers, channels=tuple(channels))
