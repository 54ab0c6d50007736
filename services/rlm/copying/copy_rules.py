"""What the settings of its topic say of a partition's copies."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.topic_config import TopicConfig, is_internal_topic
from services.rlm.copying.copy_lag import (
    AT_ONCE,
    CopyLag,
    CopyLagDefaults,
    effective_copy_lag,
    eligible_log_segments,
)
from services.rlm.copying.copy_quota import CopyQuota
from services.rlm.kafka_admin.cleanup_policies import CleanupPolicies, is_awaited, is_compacted
from services.rlm.kafka_admin.cluster_view import NoPolicy
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.kafka_log.timestamps import largest_timestamp_ms
from services.rlm.topic_configs import TopicConfigs

_MAX_SAID = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyRule:
    """Of one partition, now.

    Attributes:
        held_back_by: why nothing of it is copied; empty: it is. Reads and retention go on.
        compaction: the topic's cleanup.policy, where that is what holds it back; retention deletes
            nothing either.
        is_awaited: it is held back for no longer than until the cluster has told more.
        local_retention_ms: after which the broker deletes a segment; None: it is not known.
    """

    held_back_by: str = ""
    lag: CopyLag = AT_ONCE
    local_retention_ms: int | None = None
    compaction: str = ""
    is_awaited: bool = False

    @property
    def copies(self) -> bool:
        return not self.held_back_by


class HeldBackTopics:
    """Says of each topic once why nothing of it is copied. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: LRUCache[UUID, str] = LRUCache(_MAX_SAID)

    def note(self, name: TopicIdPartition, rule: CopyRule) -> None:
        if rule.is_awaited:
            return
        with self._lock:
            if self._said.get(name.topic_id, "") == rule.held_back_by:
                return
            self._said[name.topic_id] = rule.held_back_by
        if rule.held_back_by:
            _log.info("topic %s: nothing is copied: %s", name.topic, rule.held_back_by)


@dataclass(frozen=True, slots=True)
class CopyRules:
    """Of all partitions of a process.

    Attributes:
        lag_defaults: None: nothing waits, whatever is set (who copies on request copies now).
        now_ms: the clock of this host, by which a lag is counted.
        tiered_by_default: whether a topic is tiered whose remote.storage.enable is not set. Where
            somebody named it, it is; and a log directory does not tell, so there all topics are.
        cleanup_policies: None: nobody tells them.
    """

    topic_configs: TopicConfigs
    lag_defaults: CopyLagDefaults | None = field(default_factory=CopyLagDefaults)
    quota: CopyQuota = field(default_factory=CopyQuota)
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    tiered_by_default: bool = True
    held_back: HeldBackTopics = field(default_factory=HeldBackTopics)
    cleanup_policies: CleanupPolicies | None = None

    def of(self, name: TopicIdPartition) -> CopyRule:
        """
        Raises:
            RemoteStorageError: what is set is not known now.
        """
        config = self._config(name)
        local_ms = config.local_retention_ms
        rule = CopyRule(
            self._held_back_by(name, config),
            effective_copy_lag(config, self.lag_defaults) if self.lag_defaults else AT_ONCE,
            # Only what was said of the broker's own disk: what holds for the whole is the tier's.
            local_ms if local_ms >= 0 else None,
        )
        if rule.copies and self.cleanup_policies is not None:
            rule = _with_policy(rule, self.cleanup_policies.of(name))
        self.held_back.note(name, rule)
        return rule

    def _held_back_by(self, name: TopicIdPartition, config: TopicConfig) -> str:
        if is_internal_topic(name.topic):
            return "it is one of Kafka's own"
        if config.remote_log_copy_disable:
            return "remote.log.copy.disable=true"
        if config.remote_storage_enable is None and not self.tiered_by_default:
            return "remote.storage.enable=true is not set"
        if config.remote_storage_enable is False:
            return "remote.storage.enable=false"
        return ""

    def eligible(
        self, rule: CopyRule, candidates: Sequence[LocalSegment], segments: Sequence[LocalSegment]
    ) -> list[LocalSegment]:
        """The candidates that need not wait any more."""
        return eligible_log_segments(
            candidates, segments, rule.lag, self.now_ms(), largest_timestamp_ms
        )

    def _config(self, name: TopicIdPartition) -> TopicConfig:
        try:
            return self.topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return TopicConfig()


def _with_policy(rule: CopyRule, policy: str | NoPolicy) -> CopyRule:
    if is_awaited(policy):
        return replace(rule, held_back_by="its cleanup.policy is not known yet", is_awaited=True)
    if isinstance(policy, str) and is_compacted(policy):
        reason = f"it is compacted (cleanup.policy={policy})"
        return replace(rule, held_back_by=reason, compaction=policy)
    return rule
