"""Find the partitions that a consumer may read, by topic name or id."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from cachetools import TTLCache

from services.api.offset_queries import OffsetService
from services.rlm.partition import ServedPartition

KNOWN_TOPICS = 10_000
KNOWN_FOR_S = 30.0
LISTED_AT_MOST_EVERY_S = 1.0
"""How often a connection may list all topics for ids that it does not know."""

_UNKNOWN = ""
"""As a name: no topic has the id. Consumers have ids from Metadata, which finds new ones."""


class ConsumedLog(OffsetService, Protocol):
    """What consumers need of RLM."""

    def served_partitions(self, topic: str = "") -> list[ServedPartition]:
        """Return the partitions of a topic, or all, that are here or in the tier.

        Those that are marked for deletion are left out. Without RLMM, only those that are here.
        """


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions, by number."""

    id: UUID
    name: str
    partitions: tuple[ServedPartition, ...]


class Catalog:
    """Find the topics of one connection's requests. Not thread-safe."""

    def __init__(self, rlm: ConsumedLog) -> None:
        self._rlm = rlm
        self._ids: TTLCache[str, UUID] = TTLCache(KNOWN_TOPICS, KNOWN_FOR_S)
        self._names: TTLCache[UUID, str] = TTLCache(KNOWN_TOPICS, KNOWN_FOR_S)
        self._lists_again_s = 0.0

    def all_topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return self._topics(self._rlm.served_partitions())

    def by_name(self, name: str) -> Topic | None:
        """Find the topic of a name; None if there is none, or several that are not led here."""
        topics = self._topics(self._rlm.served_partitions(name)) if name else []
        return next((topic for topic in topics if topic.name == name), None)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Find the topic of an id, which may share its name with a deleted one."""
        name = self.name_of(topic_id)
        served = self._rlm.served_partitions(name) if name else []
        own = [each for each in served if each.topic_id_partition.topic_id == topic_id]
        return _topic(own) if own else None

    def id_of(self, name: str) -> UUID | None:
        """Return the id of a topic's name, which may be half a minute old."""
        if name not in self._ids:
            self.by_name(name)
        return self._ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic's id."""
        if topic_id not in self._names:
            if time.monotonic() < self._lists_again_s:
                return None
            # Anyone can invent ids, and they are looked up before the policy is checked.
            self._lists_again_s = time.monotonic() + LISTED_AT_MOST_EVERY_S
            for each in self._rlm.served_partitions():
                tp = each.topic_id_partition
                self._names[tp.topic_id] = tp.topic
            self._names.setdefault(topic_id, _UNKNOWN)
        return self._names.get(topic_id) or None

    def discard(self, name: str) -> None:
        """Discard the id of a topic, which turned out to be unknown."""
        self._ids.pop(name, None)

    def _topics(self, served: Iterable[ServedPartition]) -> list[Topic]:
        by_name: dict[str, dict[UUID, list[ServedPartition]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for each in served:
            tp = each.topic_id_partition
            by_name[tp.topic][tp.topic_id].append(each)
            self._names[tp.topic_id] = tp.topic
        chosen = [_present(candidates) for _, candidates in sorted(by_name.items())]
        topics = [_topic(partitions) for partitions in chosen if partitions is not None]
        self._ids.update((topic.name, topic.id) for topic in topics)
        return topics


def _present(candidates: dict[UUID, list[ServedPartition]]) -> list[ServedPartition] | None:
    """Choose the topic of a name: the only one, or the only one with a role here."""
    if len(candidates) > 1:
        candidates = {k: v for k, v in candidates.items() if any(each.has_role for each in v)}
    return next(iter(candidates.values())) if len(candidates) == 1 else None


def _topic(partitions: list[ServedPartition]) -> Topic:
    first = partitions[0].topic_id_partition
    ordered = sorted(partitions, key=lambda each: each.topic_id_partition.partition)
    return Topic(first.topic_id, first.topic, tuple(ordered))
