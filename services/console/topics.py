"""Gather topics and partitions with their sizes, lag and retention."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_manager import PartitionDescription, PartitionRole, all_descriptions
from services.api.remote_log_metadata_manager import MAX_PAGE_SIZE, PartitionSummary, all_partitions
from services.api.topic_config import StoredTopicConfig
from services.console.access import Viewer
from services.console.tier import Tier
from services.views.tier import problem_text

_ORDERS = {
    "name": lambda topic: topic.name,
    "tier": lambda topic: (-topic.totals.live_bytes, topic.name),
    "local": lambda topic: (-topic.local_bytes, topic.name),
    "lag": lambda topic: (-topic.lag_bytes, -topic.lag_segments, topic.name),
}
ORDERS = frozenset(_ORDERS)

Json = dict[str, Any]

LISTING_AGE_S = 1.0
CONFIG_AGE_S = 30.0
"""One call for each topic of a page, so that a page in view asks at every third refresh."""
MAX_ROWS = 500
"""The most rows of one answer."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the RLMs say of their partitions.

    Attributes:
        unread: why an RLM could not be asked, by its address.
    """

    partitions: dict[TopicIdPartition, PartitionDescription]
    unread: dict[str, str]


@dataclass(slots=True)
class TopicFigures:
    """The sums over the partitions of a topic."""

    topic_id: UUID
    name: str
    partitions: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    local_bytes: int = 0
    local_partitions: int = 0
    lag_bytes: int = 0
    lag_segments: int = 0
    problems: int = 0
    deleting: int = 0
    is_held: bool = False

    def add(self, summary: PartitionSummary, described: PartitionDescription | None) -> None:
        self.partitions += 1
        self.totals += summary.totals
        self.deleting += summary.delete_state is not None
        self.is_held |= summary.is_held
        if described is not None:
            self.local_partitions += 1
            self.local_bytes += described.local_size_bytes
            self.lag_bytes += described.pending_size_bytes
            self.lag_segments += described.pending_segments
            self.problems += len(described.problems)


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """Which topics to list: those whose name contains `search`, in one of ORDERS."""

    search: str = ""
    order: str = "tier"
    offset: int = 0
    limit: int = 100


def summaries(tier: Tier) -> Sequence[PartitionSummary]:
    """List all known partitions; at most once a second."""
    return tier.recent.get(
        "partitions",
        LISTING_AGE_S,
        lambda: list(all_partitions(tier.metadata, page_size=MAX_PAGE_SIZE)),
    )


def descriptions(tier: Tier) -> Described:
    """Ask every RLM for its partitions; at most once a second."""
    return tier.recent.get("descriptions", LISTING_AGE_S, lambda: _described(tier))


def _described(tier: Tier) -> Described:
    found: dict[TopicIdPartition, PartitionDescription] = {}
    unread: dict[str, str] = {}

    def of(address: str) -> Iterable[PartitionDescription]:
        try:
            return list(all_descriptions(tier.logs[address]))
        except RemoteStorageError as e:
            unread[address] = str(e)
            return []

    # Not on the tier's workers: those may all wait for this answer.
    with ThreadPoolExecutor(max(len(tier.logs), 1)) as pool:
        answers = list(pool.map(of, tier.logs))
    for description in chain.from_iterable(answers):
        name = description.topic_id_partition
        if name not in found or description.role is PartitionRole.LEADER:
            found[name] = description
    return Described(found, unread)


def config_of(tier: Tier, topic_id: UUID) -> StoredTopicConfig | None:
    """Return the settings of a topic; None if it was removed meanwhile."""

    def ask() -> StoredTopicConfig | None:
        try:
            return tier.metadata.topic_config(topic_id)
        except RemoteResourceNotFoundError:
            return None

    return tier.recent.get(("config", topic_id), CONFIG_AGE_S, ask)


def list_topics(tier: Tier, viewer: Viewer, query: TopicQuery) -> Json:
    """Return one page of the topics that the viewer may see, with the sums over all of them."""
    known, described = summaries(tier), descriptions(tier)
    topics: dict[UUID, TopicFigures] = {}
    for summary in known:
        name = summary.topic_id_partition
        topic = topics.setdefault(name.topic_id, TopicFigures(name.topic_id, name.topic))
        topic.add(summary, described.partitions.get(name))
    seen = [
        topic
        for topic in topics.values()
        if query.search in topic.name and viewer.may(_LISTING, topic.name)
    ]
    seen.sort(key=_ORDERS[query.order])
    page = seen[query.offset : query.offset + query.limit]
    configs = tier.workers.map(lambda topic: config_of(tier, topic.topic_id), page)
    return {
        "topics": [_as_json(topic, config) for topic, config in zip(page, configs, strict=True)],
        "offset": query.offset,
        "total": len(seen),
        "sums": {
            "partitions": sum(topic.partitions for topic in seen),
            "segments": sum(topic.totals.live_segments for topic in seen),
            "tier_bytes": sum(topic.totals.live_bytes for topic in seen),
            "local_bytes": sum(topic.local_bytes for topic in seen),
            "lag_bytes": sum(topic.lag_bytes for topic in seen),
        },
        "has_rlm": bool(tier.logs),
        "unread": described.unread,
    }


_LISTING = "RemoteLogMetadataManager/ListPartitions"


def _as_json(topic: TopicFigures, config: StoredTopicConfig | None) -> Json:
    return {
        "topic": topic.name,
        "topic_id": uuid_to_text(topic.topic_id),
        "partitions": topic.partitions,
        "segments": topic.totals.live_segments,
        "tier_bytes": topic.totals.live_bytes,
        "local_bytes": topic.local_bytes if topic.local_partitions else None,
        "lag_bytes": topic.lag_bytes if topic.local_partitions else None,
        "lag_segments": topic.lag_segments if topic.local_partitions else None,
        "problems": topic.problems,
        "deleting_partitions": topic.deleting,
        "is_held": topic.is_held,
        "settings": None if config is None else dict(config.entries),
    }


def list_partitions(
    tier: Tier, viewer: Viewer, topic: str, topic_id: UUID, *, offset: int = 0, limit: int = 100
) -> Json:
    """Return one page of the partitions of a topic.

    Raises:
        PermissionDeniedError: the viewer may not see the topic.
        RemoteResourceNotFoundError: there is no such topic.
    """
    viewer.require(_LISTING, topic)
    known = [s for s in summaries(tier) if s.topic_id_partition.topic_id == topic_id]
    known = [s for s in known if s.topic_id_partition.topic == topic]
    if not known:
        raise RemoteResourceNotFoundError(
            f"the tier has no topic {topic} with the id {uuid_to_text(topic_id)}; it may have been "
            "removed meanwhile"
        )
    described = descriptions(tier)
    config = config_of(tier, topic_id)
    return {
        "topic": topic,
        "topic_id": uuid_to_text(topic_id),
        "settings": None if config is None else dict(config.entries),
        "partitions": [
            _partition_as_json(s, described.partitions.get(s.topic_id_partition))
            for s in known[offset : offset + limit]
        ],
        "offset": offset,
        "total": len(known),
        "has_rlm": bool(tier.logs),
        "unread": described.unread,
    }


def _partition_as_json(summary: PartitionSummary, described: PartitionDescription | None) -> Json:
    totals = summary.totals
    return {
        "partition": summary.topic_id_partition.partition,
        "segments": totals.live_segments,
        "tier_bytes": totals.live_bytes,
        "delete_state": None if summary.delete_state is None else summary.delete_state.value,
        "local": None if described is None else local_as_json(described),
    }


def local_as_json(described: PartitionDescription) -> Json:
    """Describe the local log of a partition."""
    return {
        "broker_id": described.leader_id,
        "role": None if described.role is None else described.role.value,
        "log_start_offset": described.log_start_offset,
        "local_log_start_offset": described.local_log_start_offset,
        "log_end_offset": described.log_end_offset,
        "copied_through_offset": described.copied_through_offset,
        "bytes": described.local_size_bytes,
        "lag_bytes": described.pending_size_bytes,
        "lag_segments": described.pending_segments,
        "problems": [problem_text(problem) for problem in described.problems],
    }
