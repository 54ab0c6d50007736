"""Gather topics and partitions with their sizes, lag and retention."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_manager import PartitionDescription, PartitionRole, all_descriptions
from services.api.remote_log_metadata_manager import MAX_PAGE_SIZE, PartitionSummary, all_partitions
from services.api.topic_config import StoredTopicConfig
from services.console.access import Viewer
from services.console.tier import Tier
from services.views.documents import fields_as_json
from services.views.tier import problem_text
from services.views.topics import TopicFigures, sum_topics

_ORDERS = {
    "problems": lambda topic: (-topic.problems, -topic.totals.live_bytes, topic.name),
    "name": lambda topic: topic.name,
    "tier": lambda topic: (-topic.totals.live_bytes, topic.name),
    "local": lambda topic: (-topic.local_bytes, topic.name),
    "lag": lambda topic: (-topic.lag_bytes, -topic.lag_segments, topic.name),
}
ORDERS = frozenset(_ORDERS)

Json = dict[str, Any]

LISTING_AGE_S = 1.0
CONFIG_AGE_S = 30.0
"""One call for each topic of a page, so that a page in view reads at every third refresh."""
MAX_ROWS = 500
"""The most rows of one answer."""


@dataclass(frozen=True, slots=True)
class Described:
    """The partitions as the RLMs describe them.

    Attributes:
        unread: why an RLM could not be read, by its address.
    """

    partitions: dict[TopicIdPartition, PartitionDescription]
    unread: dict[str, str]


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """Which topics to list: those whose name contains `search`, in one of ORDERS."""

    search: str = ""
    order: str = "problems"
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
    """Read the partitions of every RLM; at most once a second."""
    return tier.recent.get("descriptions", LISTING_AGE_S, lambda: _described(tier))


def _described(tier: Tier) -> Described:
    partitions: dict[TopicIdPartition, PartitionDescription] = {}
    unread: dict[str, str] = {}

    def of(address: str) -> Iterable[PartitionDescription]:
        try:
            return list(all_descriptions(tier.clients.logs[address]))
        except RemoteStorageError as e:
            unread[address] = str(e)
            return []

    # Not on the tier's workers: those may all wait for this answer.
    with ThreadPoolExecutor(max(len(tier.clients.logs), 1)) as pool:
        answers = list(pool.map(of, tier.clients.logs))
    for description in chain.from_iterable(answers):
        name = description.topic_id_partition
        if name not in partitions or description.role is PartitionRole.LEADER:
            partitions[name] = description
    return Described(partitions, unread)


def config_of(tier: Tier, topic_id: UUID) -> StoredTopicConfig | None:
    """Return the settings of a topic; None if it was removed meanwhile."""

    def read() -> StoredTopicConfig | None:
        with suppress(RemoteResourceNotFoundError):
            return tier.metadata.topic_config(topic_id)
        return None

    return tier.recent.get(("config", topic_id), CONFIG_AGE_S, read)


def list_topics(tier: Tier, viewer: Viewer, query: TopicQuery) -> Json:
    """Return one page of the topics that the viewer may see, with the sums over all of them."""
    known, described = summaries(tier), descriptions(tier)
    names = [each.topic_id_partition for each in known]
    local = [described.partitions[name] for name in names if name in described.partitions]
    visible = [
        topic
        for topic in sum_topics(known, local).values()
        if query.search in topic.name and viewer.may(_LISTING, topic.name)
    ]
    visible.sort(key=_ORDERS[query.order])
    page = visible[query.offset : query.offset + query.limit]
    configs = tier.clients.workers.map(lambda topic: config_of(tier, topic.topic_id), page)
    return {
        "topics": [_as_json(topic, config) for topic, config in zip(page, configs, strict=True)],
        "offset": query.offset,
        "total": len(visible),
        "sums": {
            "partitions": sum(len(topic.partitions) for topic in visible),
            "segments": sum(topic.totals.live_segments for topic in visible),
            "tier_bytes": sum(topic.totals.live_bytes for topic in visible),
            "local_bytes": sum(topic.local_bytes for topic in visible),
            "lag_bytes": sum(topic.lag_bytes for topic in visible),
        },
        "has_rlm": bool(tier.clients.logs),
        "unread": described.unread,
    }


_LISTING = "RemoteLogMetadataManager/ListPartitions"


def _as_json(topic: TopicFigures, config: StoredTopicConfig | None) -> Json:
    return {
        **topic.as_json(),
        "partitions": len(topic.partitions),
        "segments": topic.totals.live_segments,
        "tier_bytes": topic.totals.live_bytes,
        "local_bytes": topic.local_bytes if topic.local_partitions else None,
        "lag_bytes": topic.lag_bytes if topic.local_partitions else None,
        "lag_segments": topic.lag_segments if topic.local_partitions else None,
        "problems": topic.problems,
        "deleting_partitions": topic.deleting,
        "is_on_hold": topic.is_on_hold,
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
    known.sort(key=lambda summary: _problems_first(summary, described))
    config = config_of(tier, topic_id)
    return {
        "topic": topic,
        "topic_id": uuid_to_text(topic_id),
        "settings": None if config is None else dict(config.entries),
        "partitions": [
            _partition_as_json(each, described.partitions.get(each.topic_id_partition))
            for each in known[offset : offset + limit]
        ],
        "offset": offset,
        "total": len(known),
        "has_rlm": bool(tier.clients.logs),
        "unread": described.unread,
    }


def _problems_first(summary: PartitionSummary, described: Described) -> tuple[int, int]:
    name = summary.topic_id_partition
    local = described.partitions.get(name)
    return (0 if local is None else -len(local.problems)), name.partition


def _partition_as_json(summary: PartitionSummary, described: PartitionDescription | None) -> Json:
    totals = summary.totals
    return {
        "partition": summary.topic_id_partition.partition,
        "segments": totals.live_segments,
        "tier_bytes": totals.live_bytes,
        **fields_as_json(summary, "delete_state"),
        "local": None if described is None else local_as_json(described),
    }


def local_as_json(described: PartitionDescription) -> Json:
    """Describe the local log of a partition."""
    offsets = ("local_log_start_offset", "log_end_offset", "copied_through_offset")
    return {
        "broker_id": described.leader_id,
        **fields_as_json(described, "role", "log_start_offset", *offsets),
        "bytes": described.local_size_bytes,
        "lag_bytes": described.lag_bytes,
        "lag_segments": described.lag_segments,
        "problems": [problem_text(problem) for problem in described.problems],
    }
