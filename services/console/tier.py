"""Provide the clients of the services that the console reads from, and its recent answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.client_security import ClientSecurity
from services.console.cache import RecentAnswers
from services.views.endpoints import ServiceAddresses, TierClients, connect_tier

_CACHED_FACTS = 4
"""Partitions of at most segment_life.MAX_EXPLAINED segments."""


@dataclass(slots=True)
class Tier:
    """The services, as their contracts show them.

    Attributes:
        recent: answers of the last seconds.
        facts: the same, of whole partitions: large.
    """

    metadata: RemoteLogMetadataManager
    clients: TierClients
    recent: RecentAnswers = field(default_factory=RecentAnswers)
    facts: RecentAnswers = field(default_factory=lambda: RecentAnswers(_CACHED_FACTS))


@contextmanager
def connected_tier(
    addresses: ServiceAddresses, security_for: Callable[[str], ClientSecurity]
) -> Iterator[Tier]:
    """Connect to the services, of which RLMM's address must be known, until the block ends.

    Raises as connect_tier.
    """
    with connect_tier(addresses, security_for) as clients:
        assert clients.metadata is not None
        yield Tier(clients.metadata, clients)
