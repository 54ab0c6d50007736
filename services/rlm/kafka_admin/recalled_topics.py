"""Topics that RLMM knows of the cluster, among them those that were deleted while this process was
away: read once, and sorted by what the cluster answers.

An id does not make two clusters one: where all brokers were formatted anew under the same id, the
cluster knows none of the topics from before, and what the tier has may be all that is left of them.
So a topic that is not there is believed to have been in *this* cluster only where one that is there
has been known to RLMM for as long: that one's id was made by the cluster as it is now.
"""

import logging

from services.api.ids import uuid_to_text
from services.api.partition_queries import PartitionQueries, all_partitions
from services.api.segment_queries import MAX_PAGE_SIZE
from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, TopicView
from services.rlm.kafka_admin.confirmed_deletions import TopicName

MAX_RECALLED_TOPICS = 10_000
"""Twenty requests of one poll. Most are there, and are not asked for again."""
_log = logging.getLogger(__name__)


class RecalledTopics:
    """What RLMM knows of one cluster and is not being deleted. Not thread-safe.

    Args:
        most: topics that are kept in memory and asked for.
    """

    def __init__(
        self, rlmm: PartitionQueries, cluster_id: str, most: int = MAX_RECALLED_TOPICS
    ) -> None:
        self._rlmm = rlmm
        self._cluster_id = cluster_id
        self._most = most
        self._is_read = False
        self._known_since_ms: dict[TopicName, int] = {}
        self._oldest_alive_ms: int | None = None

    @property
    def names(self) -> set[str]:
        """What is to be asked for: not sorted yet."""
        return {topic.name for topic in self._known_since_ms}

    def read(self) -> None:
        """Ask RLMM, unless it has answered before.

        Raises:
            RemoteStorageError: it did not answer with all of them.
        """
        if not self._is_read:
            self._known_since_ms = self._read()
            self._is_read = True

    def missing(self, view: ClusterView) -> set[TopicName]:
        """Those that are to be watched from this view on: the cluster had them, and does not answer
        with them. Each is told once; one that is there is another broker's to watch, or is seen.

        Args:
            view: of this cluster.
        """
        known = self._known_since_ms
        alive = [topic for topic in known if _is_there(topic, view)]
        for since_ms in [known.pop(topic) for topic in alive]:
            self._note_alive(since_ms)
        oldest = self._oldest_alive_ms
        found = {t for t, since_ms in known.items() if oldest is not None and since_ms >= oldest}
        for topic in found:
            del known[topic]
        # What was not answered for may yet be there, and older than the rest.
        if not any(_answer(topic, view) is NoTopic.FAILED for topic in known):
            self._forget_the_rest()
        return found

    def _note_alive(self, since_ms: int) -> None:
        oldest = self._oldest_alive_ms
        self._oldest_alive_ms = since_ms if oldest is None else min(oldest, since_ms)

    def _forget_the_rest(self) -> None:
        if self._known_since_ms:
            first = min(self._known_since_ms)
            _log.warning(
                "RLMM knows of %d topics of cluster %s that are not there, from before it knew of "
                "any that is, the first: %s:%s; the cluster may have been formatted anew under its "
                "id, so they are kept: `sediment topics delete` where they were deleted",
                len(self._known_since_ms),
                self._cluster_id,
                uuid_to_text(first.topic_id),
                first.name,
            )
        self._known_since_ms = {}

    def _read(self) -> dict[TopicName, int]:
        found: dict[TopicName, int] = {}
        for summary in all_partitions(
            self._rlmm, cluster_id=self._cluster_id, page_size=MAX_PAGE_SIZE
        ):
            # A release of RLMM that knows of no clusters answers with all there is.
            if summary.cluster_id != self._cluster_id or summary.delete_state is not None:
                continue
            name, since_ms = summary.topic_id_partition, summary.known_since_ms
            topic = TopicName(name.topic_id, name.topic)
            if topic not in found and len(found) == self._most:
                _log.warning(
                    "RLMM knows of more than %d topics of cluster %s: of the others only those are "
                    "found deleted whose logs this RLM sees",
                    self._most,
                    self._cluster_id,
                )
                break
            found[topic] = min(since_ms, found.get(topic, since_ms))
        return found


def _is_there(topic: TopicName, view: ClusterView) -> bool:
    answer = _answer(topic, view)
    return isinstance(answer, TopicView) and answer.topic_id == topic.topic_id


def _answer(topic: TopicName, view: ClusterView) -> TopicView | NoTopic:
    return view.topics.get(topic.name, NoTopic.FAILED)
