"""When a topic counts as deleted. Pure.

Deletion is never inferred from absence: a topic that cannot be seen (ACLs, a broker that starts,
metadata that is stale, another cluster behind the same address) is not a deleted one. Only a topic
that was in this cluster can be confirmed as deleted: this process has seen it alive there, or RLMM
knows it as one of the cluster's (recalled_topics.py). RLMM may serve several clusters, and each of
them does not know the topics of the others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, TopicView

MIN_POLLS = 5
"""So many answers at least, however short the time is to be: one long pause of this process between
two of them is not an hour of answers."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by its id, which never comes back, and the name that it keeps for its life."""

    topic_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """The cluster has answered without a break, since then, that the topic is not there."""

    since_s: float
    polls: int


Watched = Mapping[TopicName, Doubt | None]
"""Topics that were in the cluster; None: nothing says that they are not so now."""


def watched_after(
    watched: Watched,
    here: Collection[TopicName],
    view: ClusterView | None,
    registered_cluster_id: str,
    now_s: float,
) -> dict[TopicName, Doubt | None]:
    """What is to be watched after one more poll.

    Args:
        here: the topics whose logs lie in the log directories. The broker gives up the log of a
            deleted topic, so that one that lies here is alive, whatever is answered.
        view: None: the poll failed.
        now_s: seconds that only grow.
    """
    if view is None or view.cluster_id != registered_cluster_id:
        return dict.fromkeys(watched)
    after: dict[TopicName, Doubt | None] = {}
    for topic in {*watched, *here}:
        answer = view.topics.get(topic.name, NoTopic.FAILED)
        if isinstance(answer, TopicView) and answer.topic_id == topic.topic_id:
            if topic in here:
                after[topic] = None  # else another broker's to watch
        elif topic in watched:
            is_gone = answer is NoTopic.UNKNOWN or isinstance(answer, TopicView)
            doubts = is_gone and topic not in here
            after[topic] = _once_more(watched[topic], now_s) if doubts else None
    return after


def confirmed(watched: Watched, confirm_s: float, now_s: float) -> list[TopicName]:
    """The topics that are deleted: the answers were as many, and over as long, as they must."""
    return sorted(
        topic
        for topic, doubt in watched.items()
        if doubt is not None and doubt.polls >= MIN_POLLS and now_s - doubt.since_s >= confirm_s
    )


def _once_more(doubt: Doubt | None, now_s: float) -> Doubt:
    return Doubt(now_s, 1) if doubt is None else Doubt(doubt.since_s, doubt.polls + 1)
