"""Know how a cluster cleans up its topics (cleanup.policy), as it answered last."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    NoPolicy,
    PolicyView,
    TopicView,
)
from services.rlm.scheduler import PassFailedError

MAX_AGE_S = 300.0


ASKED_AGAIN_AFTER_S = 10.0
"""What was not answered."""


FORGOTTEN_AFTER_S = 3600.0
"""Since somebody asked for it last."""


_COMPACT = "compact"


_NOT_YET = NoPolicy("not asked yet")


_log = logging.getLogger(__name__)


def is_compacted(policy: str | NoPolicy) -> bool:
    """Whether compaction is among what is done to the topic, as far as is known."""
    return isinstance(policy, str) and _COMPACT in [each.strip() for each in policy.split(",")]


def is_awaited(policy: str | NoPolicy) -> bool:
    """Whether it is not known yet, and will be told."""
    return isinstance(policy, NoPolicy) and not policy.is_refused


@dataclass
class _Topic:
    """
    Attributes:
        policy: the last that was told; what refuses to tell, or does not answer, takes none back.
    """

    name: str
    wanted_s: float
    asked_s: float | None = None
    policy: str | NoPolicy = _NOT_YET


class CleanupPolicies:
    """Of the topics that somebody asks for, as they were some minutes ago at most; where the
    cluster cannot be asked, as they were last. Thread-safe.

    Args:
        registered_id: of the cluster; what another one answers is not believed.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        registered_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._registered_id = registered_id
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[UUID, _Topic] = {}
        self._has_said_refused = False

    def of(self, name: TopicIdPartition) -> str | NoPolicy:
        """The cleanup.policy of the partition's topic. Never waits: what is not known is asked for
        by the next `ask`."""
        now_s = self._clock()
        with self._lock:
            topic = self._topics.setdefault(name.topic_id, _Topic(name.topic, now_s))
            topic.wanted_s = now_s
            return topic.policy

    def ask(self) -> None:
        """Ask the cluster, in one go, for what is new or too old; nothing, where nothing is.

        Raises:
            PassFailedError: the cluster did not answer, or not for all that is not known yet.
        """
        now_s = self._clock()
        due = self._due(now_s)
        if not due:
            return
        try:
            view = self._admin.cleanup_policies(set(due.values()))
        except ClusterUnreachableError as e:
            raise PassFailedError(f"the cluster does not tell cleanup policies: {e}") from e
        if view.cluster.cluster_id != self._registered_id:
            raise PassFailedError(
                f"RLM_BOOTSTRAP_SERVERS: cluster {view.cluster.cluster_id} answers; the log "
                f"directories are of cluster {self._registered_id}"
            )
        answers = {topic_id: _answer(view, topic_id, name) for topic_id, name in due.items()}
        self._tell_refused(due, answers)
        unknown = self._take(answers, now_s)
        if unknown:
            raise PassFailedError(
                f"{len(unknown)} topics are not copied before their cleanup.policy is known; the "
                f"first: {unknown[0]}"
            )

    def _due(self, now_s: float) -> dict[UUID, str]:
        with self._lock:
            return {key: each.name for key, each in self._topics.items() if _is_due(each, now_s)}

    def _take(self, answers: Mapping[UUID, str | NoPolicy], now_s: float) -> list[str]:
        """Those that are not known yet, each with why."""
        unknown = []
        with self._lock:
            for topic_id, answer in answers.items():
                topic = self._topics[topic_id]
                topic.asked_s = now_s
                topic.policy = _of_both(topic.policy, answer)
                if isinstance(topic.policy, NoPolicy) and not topic.policy.is_refused:
                    unknown.append(f"{topic.name}: {topic.policy.reason}")
            # Only here: where the cluster is away the last answers are all there is.
            for topic_id, topic in list(self._topics.items()):
                if now_s - topic.wanted_s > FORGOTTEN_AFTER_S:
                    del self._topics[topic_id]
        return unknown

    def _tell_refused(
        self, names: Mapping[UUID, str], answers: Mapping[UUID, str | NoPolicy]
    ) -> None:
        refused = [
            names[topic_id]
            for topic_id, answer in answers.items()
            if isinstance(answer, NoPolicy) and answer.is_refused
        ]
        if refused and not self._has_said_refused:
            self._has_said_refused = True
            _log.warning(
                "the brokers do not tell the cleanup.policy of topic %s, and perhaps of others: "
                "whether such a topic is compacted is not known, and it is tiered as if it were "
                "not; allow RLM's user DESCRIBE_CONFIGS of its topics, or see to it that no "
                "compacted one has remote.storage.enable=true (told once)",
                min(refused),
            )


def _is_due(topic: _Topic, now_s: float) -> bool:
    if topic.asked_s is None:
        return True
    max_age_s = ASKED_AGAIN_AFTER_S if is_awaited(topic.policy) else MAX_AGE_S
    return now_s - topic.asked_s >= max_age_s


def _of_both(before: str | NoPolicy, answer: str | NoPolicy) -> str | NoPolicy:
    """What holds after one more answer: a policy that is told, else the last that was told, else
    that it is refused."""
    if isinstance(answer, str) or isinstance(before, str):
        return answer if isinstance(answer, str) else before
    return answer if answer.is_refused or not before.is_refused else before


def _answer(view: PolicyView, topic_id: UUID, name: str) -> str | NoPolicy:
    """Under its name another topic may be there by now."""
    topic = view.cluster.topics.get(name)
    if not isinstance(topic, TopicView):
        told = "nothing" if topic is None else topic.value
        return NoPolicy(f"the topic is not seen: {told}")
    if topic.topic_id != topic_id:
        return NoPolicy("another topic has its name")
    return view.cleanup_policies.get(name, NoPolicy("no answer"))
