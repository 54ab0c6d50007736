"""Find out the cleanup policies of topics, from the cluster or from the log directories."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.common.quantities import counted
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    NoPolicy,
    PolicyView,
    TopicView,
)
from services.rlm.kafka_log.checkpoints import CLEANER_OFFSETS, cleaner_offsets
from services.rlm.kafka_log.partition_dir import LogFileError
from services.rlm.scheduler import PassFailedError

MAX_AGE_S = 300.0
RETRY_AFTER_S = 10.0

UNUSED_AFTER_S = 3600.0
"""A policy that was not used for so long is dropped."""

_COMPACT = "compact"
_NOT_REQUESTED = NoPolicy("not requested yet")
_log = logging.getLogger(__name__)


def is_compacted(policy: str | NoPolicy) -> bool:
    """Return whether the topic is known to be compacted."""
    return isinstance(policy, str) and _COMPACT in [each.strip() for each in policy.split(",")]


def is_awaited(policy: str | NoPolicy) -> bool:
    """Return whether the policy is not known yet, but a later answer may have it."""
    return isinstance(policy, NoPolicy) and not policy.is_refused


class Policies(Protocol):
    """The cleanup policies of topics."""

    def of(self, name: TopicIdPartition) -> str | NoPolicy:
        """Return the cleanup.policy of the partition's topic, without waiting."""


class CleanedLogs:
    """Recognize compacted logs by what the log cleaner has written. Thread-safe.

    A log that the cleaner has begun to clean is named in its directory's checkpoint, and stays
    there when the topic's policy changes. For RLMs that have no cluster to ask.

    Source: LogCleanerManager.
    """

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._lock = threading.Lock()
        self._files = [cleaner_offsets(log_dir) for log_dir in log_dirs]

    def of(self, name: TopicIdPartition) -> str | NoPolicy:
        """Return a policy with compact for a log that was cleaned, "delete" for another one.

        Without a checkpoint, or with a damaged one, nothing is known.
        """
        log = name.topic, name.partition
        try:
            with self._lock:
                listed = [file.value() for file in self._files]
        except LogFileError as e:
            return NoPolicy(f"{e.path}: {e.reason}", is_refused=True)
        if any(log in offsets for offsets in listed if offsets is not None):
            return f"{_COMPACT}, as {CLEANER_OFFSETS} says"
        if None in listed:
            return NoPolicy(f"no {CLEANER_OFFSETS}", is_refused=True)
        return "delete"


@dataclass
class _Topic:
    """The cache entry of one topic.

    Attributes:
        policy: the last known; a refusal or a missing answer does not replace it.
    """

    name: str
    used_s: float
    requested_s: float | None = None
    policy: str | NoPolicy = _NOT_REQUESTED


@dataclass(eq=False)
class CleanupPolicies:
    """Cache the policies of the topics that are in use. Thread-safe.

    Policies are at most some minutes old; while the cluster does not answer, the last ones
    stay.

    Attributes:
        registered_id: the id of the cluster; answers of another cluster are refused.
        clock: monotonic seconds.
    """

    admin: ClusterAdmin
    registered_id: str
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _topics: dict[UUID, _Topic] = field(init=False, default_factory=dict)
    _has_logged_refused: bool = field(init=False, default=False)

    def of(self, name: TopicIdPartition) -> str | NoPolicy:
        """Return the cleanup.policy of the partition's topic, without waiting.

        The next `refresh` requests an unknown policy.
        """
        now_s = self.clock()
        with self._lock:
            topic = self._topics.setdefault(name.topic_id, _Topic(name.topic, now_s))
            topic.used_s = now_s
            return topic.policy

    def refresh(self) -> None:
        """Request the policies that are unknown or too old, if any.

        Raises:
            PassFailedError: if the cluster did not answer, or a policy is still unknown.
        """
        now_s = self.clock()
        due = self._due(now_s)
        if not due:
            return
        try:
            view = self.admin.cleanup_policies(set(due.values()))
        except ClusterUnreachableError as e:
            topics = counted(len(due), "topic")
            raise PassFailedError(f"cannot read cleanup.policy of {topics}: {e}") from e
        if view.cluster.cluster_id != self.registered_id:
            raise PassFailedError(
                f"RLM_BOOTSTRAP_SERVERS is of cluster {view.cluster.cluster_id}, RLM_LOG_DIRS of "
                f"cluster {self.registered_id}; correct one of them"
            )
        answers = {topic_id: _answer(view, topic_id, name) for topic_id, name in due.items()}
        self._log_refused(due, answers)
        unknown = self._store(answers, now_s)
        if unknown:
            raise PassFailedError(
                f"the copies of {counted(len(unknown), 'topic')} wait until cleanup.policy is "
                f"known; the first: {unknown[0]}"
            )

    def _due(self, now_s: float) -> dict[UUID, str]:
        with self._lock:
            return {key: each.name for key, each in self._topics.items() if _is_due(each, now_s)}

    def _store(self, answers: Mapping[UUID, str | NoPolicy], now_s: float) -> list[str]:
        """Store the answers; list the topics that are still unknown, with the reason."""
        unknown = []
        with self._lock:
            for topic_id, answer in answers.items():
                topic = self._topics[topic_id]
                topic.requested_s = now_s
                topic.policy = _merged(topic.policy, answer)
                if isinstance(topic.policy, NoPolicy) and not topic.policy.is_refused:
                    unknown.append(f"{topic.name}: {topic.policy.reason}")
            # Only after an answer: without one, the last policies stay in use.
            for topic_id, topic in list(self._topics.items()):
                if now_s - topic.used_s > UNUSED_AFTER_S:
                    del self._topics[topic_id]
        return unknown

    def _log_refused(
        self, names: Mapping[UUID, str], answers: Mapping[UUID, str | NoPolicy]
    ) -> None:
        refused = [
            names[topic_id]
            for topic_id, answer in answers.items()
            if isinstance(answer, NoPolicy) and answer.is_refused
        ]
        if refused and not self._has_logged_refused:
            self._has_logged_refused = True
            _log.warning(
                "not authorized to read the cleanup.policy of topic %s, and perhaps of others, so "
                "RLM tiers them as if they were not compacted; grant RLM's user DESCRIBE_CONFIGS "
                "on its topics, or make sure that no compacted topic has "
                "remote.storage.enable=true (logged once)",
                min(refused),
            )


def _is_due(topic: _Topic, now_s: float) -> bool:
    if topic.requested_s is None:
        return True
    max_age_s = RETRY_AFTER_S if is_awaited(topic.policy) else MAX_AGE_S
    return now_s - topic.requested_s >= max_age_s


def _merged(before: str | NoPolicy, answer: str | NoPolicy) -> str | NoPolicy:
    """Choose the policy after an answer: the new one, else the last one, else a refusal."""
    if isinstance(answer, str) or isinstance(before, str):
        return answer if isinstance(answer, str) else before
    return answer if answer.is_refused or not before.is_refused else before


def _answer(view: PolicyView, topic_id: UUID, name: str) -> str | NoPolicy:
    """Read a topic's policy; another topic may have its name by now."""
    topic = view.cluster.topics.get(name)
    if not isinstance(topic, TopicView):
        reason = "no answer" if topic is None else topic.value
        return NoPolicy(f"the cluster does not show the topic: {reason}")
    if topic.topic_id != topic_id:
        return NoPolicy("another topic has its name")
    return view.cleanup_policies.get(name, NoPolicy("no answer"))
