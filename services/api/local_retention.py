"""Define the change of who deletes a topic's local records: its brokers, or RLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from services.api.topic_config import (
    BROKER_RETENTION_BYTES,
    BROKER_RETENTION_MS,
    LOCAL_RETENTION_OWNER,
    LocalRetentionOwner,
)

OF_OWNER = (LOCAL_RETENTION_OWNER, BROKER_RETENTION_MS, BROKER_RETENTION_BYTES)
"""The settings of a topic that RLM's care consists of."""


@dataclass(frozen=True, slots=True)
class LocalRetentionChange:
    """The topic, and who is to delete its local records; see the proto."""

    topic_id: UUID
    topic: str
    owner: LocalRetentionOwner
    apply: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class GroupBehind:
    """A consumer group whose next record of a partition the brokers may soon not have."""

    group: str
    partition: int
    committed_offset: int
    coming_log_start_offset: int


@dataclass(frozen=True, slots=True)
class BrokerRetention:
    """The retention that a topic itself has at the brokers; see the proto."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    groups: tuple[GroupBehind, ...] = ()

    def as_entries(self) -> dict[str, str]:
        """Return the settings of a topic that RLM looks after, which remember this retention."""
        kept = (
            (BROKER_RETENTION_MS, self.retention_ms),
            (BROKER_RETENTION_BYTES, self.retention_bytes),
        )
        texts = {name: str(value) for name, value in kept if value is not None}
        return {LOCAL_RETENTION_OWNER: LocalRetentionOwner.RLM.value, **texts}
