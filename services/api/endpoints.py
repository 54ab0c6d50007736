"""Define where the RLMs of a cluster are reached."""

from dataclasses import dataclass

from services.api.errors import InvalidRequestError
from services.api.validation import require_between

MAX_ENDPOINT_LEASE_MS = 60_000
MAX_ENDPOINT_LENGTH = 255


@dataclass(frozen=True, slots=True)
class RlmEndpoint:
    """Where the RLM beside a broker is reached.

    Attributes:
        cluster_id, directory_id, broker_id: of the broker's log directories (meta.properties).
        address: of gRPC, HOST:PORT.
        listener: for consumers of Kafka, HOST:PORT; None without one.
    """

    cluster_id: str
    directory_id: str
    broker_id: int
    address: str
    listener: str | None = None


def require_endpoint(endpoint: RlmEndpoint, lease_ms: int) -> None:
    """Raise InvalidRequestError unless the endpoint can be announced for so long."""
    require_between(endpoint.broker_id, "endpoint.broker_id", 0, 2**31 - 1)
    require_between(lease_ms, "lease_ms", 0, MAX_ENDPOINT_LEASE_MS)
    for name in ("cluster_id", "directory_id", "address", "listener"):
        text = getattr(endpoint, name)
        if text is None:
            continue
        if not 1 <= len(text) <= MAX_ENDPOINT_LENGTH or not text.isprintable():
            raise InvalidRequestError(
                f"endpoint.{name}: must be 1 to {MAX_ENDPOINT_LENGTH} printable characters"
            )
