"""Decide when a topic that was polled, or that RLMM knows, counts as deleted."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from services.api.ids import uuid_to_text
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, TopicView

MAX_RECALLED_TOPICS = 10_000
"""The most topics to recall: twenty requests in one poll. Topics that exist are requested once."""

MIN_POLLS = 5
"""The least number of answers besides the least time: two answers an hour apart do not count as an
hour of answers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The id of a topic, which is never reused, and its name, which never changes."""

    topic_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """The time and number of polls in a row in which the cluster answered that a topic is gone."""

    since_s: float
    polls: int


Watched = Mapping[TopicName, Doubt | None]
"""Topics that were in the cluster; None if the topic was not gone in the last answer."""


def watched_after(
    watched: Watched,
    local: Collection[TopicName],
    view: ClusterView | None,
    registered_cluster_id: str,
    now_s: float,
) -> dict[TopicName, Doubt | None]:
    """List the topics to watch after a poll.

    Args:
        local: the topics whose logs are in the log directories. The broker removes the log of a
            deleted topic, so these exist, whatever the answer is. Without log directories: the
            topics that the cluster has by this view.
        view: None if the poll failed.
        now_s: monotonic seconds.
    """
    if view is None or view.cluster_id != registered_cluster_id:
        return dict.fromkeys(watched)
    after: dict[TopicName, Doubt | None] = {}
    for topic in {*watched, *local}:
        if view.topic(topic.topic_id, topic.name):
            if topic in local:
                after[topic] = None  # Otherwise another broker's RLM watches it.
        elif topic in watched:
            answer = _answer(topic, view)
            is_gone = answer is NoTopic.UNKNOWN or isinstance(answer, TopicView)
            doubts = is_gone and topic not in local
            after[topic] = _confirmed_again(watched[topic], now_s) if doubts else None
    return after


def confirmed(watched: Watched, confirm_s: float, now_s: float) -> list[TopicName]:
    """List the topics that were answered as gone often enough and for long enough."""
    return sorted(
        topic
        for topic, doubt in watched.items()
        if doubt is not None and doubt.polls >= MIN_POLLS and now_s - doubt.since_s >= confirm_s
    )


def _confirmed_again(doubt: Doubt | None, now_s: float) -> Doubt:
    return Doubt(now_s, 1) if doubt is None else Doubt(doubt.since_s, doubt.polls + 1)


@dataclass(eq=False)
class RecalledTopics:
    """Find topics of a cluster that RLMM knows and the cluster no longer has. Not thread-safe.

    Attributes:
        max_topics: to cache and to request.
        every_polls: read the topics again after so many polls; None to read them once.
    """

    rlmm: RemoteLogMetadataManager
    cluster_id: str
    max_topics: int = MAX_RECALLED_TOPICS
    every_polls: int | None = None
    _polls_until_read: int | None = field(init=False, default=0)
    """None: never again."""
    _known_since_ms: dict[TopicName, int] = field(init=False, default_factory=dict)
    _settled: set[TopicName] = field(init=False, default_factory=set)
    """Topics that were read before and have had their answer."""
    _oldest_existing_ms: int | None = field(init=False, default=None)

    @property
    def names(self) -> set[str]:
        """Return the names of the topics to request that have no answer yet."""
        return {topic.name for topic in self._known_since_ms}

    def read(self) -> None:
        """Read the topics from RLMM if it is time to; call it once per poll."""
        if self._polls_until_read:
            self._polls_until_read -= 1
        elif self._polls_until_read == 0:
            found = self._read()
            self._settled &= found.keys()
            self._known_since_ms = {
                topic: since_ms for topic, since_ms in found.items() if topic not in self._settled
            }
            self._polls_until_read = self.every_polls

    def existing(self, view: ClusterView) -> set[TopicName]:
        """List the topics without an answer so far that the cluster has by this view."""
        return {topic for topic in self._known_since_ms if view.topic(topic.topic_id, topic.name)}

    def missing(self, view: ClusterView) -> set[TopicName]:
        """List the topics to watch from this view on.

        The cluster had these topics and no longer returns them. Each is listed once. If a topic
        exists, another broker's RLM watches it.

        Args:
            view: of this cluster.
        """
        known = self._known_since_ms
        existing = self.existing(view)
        self._settled |= existing
        for since_ms in [known.pop(topic) for topic in existing]:
            self._record_existing(since_ms)
        oldest = self._oldest_existing_ms
        found = {t for t, since_ms in known.items() if oldest is not None and since_ms >= oldest}
        self._settled |= found
        for topic in found:
            del known[topic]
        # A topic without an answer may exist, and be older than the rest.
        if not any(_answer(topic, view) is NoTopic.FAILED for topic in known):
            self._drop_older()
        return found

    def _record_existing(self, since_ms: int) -> None:
        oldest = self._oldest_existing_ms
        self._oldest_existing_ms = since_ms if oldest is None else min(oldest, since_ms)

    def _drop_older(self) -> None:
        if self._known_since_ms:
            first = min(self._known_since_ms)
            _log.warning(
                "RLMM knows %d topics of cluster %s that do not exist and are older than all that "
                "do, the first: %s:%s; the cluster may have been formatted again under its id, so "
                "they are kept: run `sediment topics delete` for those that were deleted",
                len(self._known_since_ms),
                self.cluster_id,
                uuid_to_text(first.topic_id),
                first.name,
            )
        self._settled |= self._known_since_ms.keys()
        self._known_since_ms = {}

    def _read(self) -> dict[TopicName, int]:
        found: dict[TopicName, int] = {}
        for summary in all_partitions(
            self.rlmm, cluster_id=self.cluster_id, page_size=MAX_PAGE_SIZE
        ):
            if summary.delete_state is not None:
                continue
            name, since_ms = summary.topic_id_partition, summary.known_since_ms
            topic = TopicName(name.topic_id, name.topic)
            if topic not in found and len(found) == self.max_topics:
                _log.warning(
                    "RLMM knows more than %d topics of cluster %s: deletions of the others are "
                    "noticed only if this RLM has had their logs",
                    self.max_topics,
                    self.cluster_id,
                )
                break
            found[topic] = min(since_ms, found.get(topic, since_ms))
        return found


def _answer(topic: TopicName, view: ClusterView) -> TopicView | NoTopic:
    return view.topics.get(topic.name, NoTopic.FAILED)
