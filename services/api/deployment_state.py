"""Define what a deployment knows and its buckets do not, as `sediment db maintain` keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from services.api.holds import Hold


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a rebuild needs of a topic besides its segments.

    Attributes:
        settings, settings_revision: see services.api.topic_config.StoredTopicConfig.
        log_starts: the log start offset of each partition that has one above 0.
        holds: those of the topic and its partitions that lasted when that was read.
        marked: the partitions that are being deleted, and the revision of each when that was read.
    """

    topic_id: UUID
    topic: str
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_revision: int = 0
    log_starts: Mapping[int, int] = field(default_factory=dict)
    marked: Mapping[int, int] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """What one database knows at one moment.

    Attributes:
        deployment_id: the database's.
        changes: how many changes the database has seen: greater later, lower in a database that was
            restored.
        purged: removed topics of which the database has a tombstone alone.
        holds: those of all topics, without that of a rebuild.
    """

    deployment_id: UUID
    changes: int
    topics: tuple[TopicState, ...]
    purged: frozenset[UUID] = frozenset()
    holds: tuple[Hold, ...] = ()
