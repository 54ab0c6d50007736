"""Decide which segments are to be copied, and when: pure rules and the settings of the topic."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.topic_config import AS_LOCAL_RETENTION, UNLIMITED, TopicConfig, is_internal_topic
from services.api.validation import INT64_MAX
from services.common.fair_queue import TokenBucket
from services.rlm.cleanup_policies import CleanupPolicies, is_awaited, is_compacted
from services.rlm.kafka_admin.cluster_view import NoPolicy
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.tier_state import OffsetRanges
from services.rlm.topic_configs import TopicConfigs


def candidate_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments to copy, earliest first, all of them stable.

    Source: RemoteLogManager.candidateLogSegments.
    """
    uncopied = uncopied_log_segments(log, covered)
    return [segment for segment in uncopied if segment.end_offset < log.last_stable_offset]


def uncopied_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments that the tier is to get, now or later, earliest first: all that reach the
    log's start (LocalLog.from_offset) and are not in it, also below what it begins with.

    What was deleted from the tier for good lies below the log's start, which rises before anything
    is deleted; below the tier's first segment lies also what a removal that was cut off has marked,
    and what the leader before never had. (Kafka goes on above the highest offset that was ever
    copied: where tiering was disabled and is enabled again it never copies what it had copied
    before.)
    """
    return [
        segment
        for segment in log.rolled
        if segment.end_offset >= log.log_start_offset and not _is_covered(segment, log, covered)
    ]


def in_tier(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments whose readable offsets are all in the tier."""
    return [segment for segment in log.rolled if _is_covered(segment, log, covered)]


def _is_covered(segment: LocalSegment, log: LocalLog, covered: OffsetRanges) -> bool:
    first = max(segment.base_offset, log.log_start_offset)
    return first <= segment.end_offset and covered.covers(first, segment.end_offset)


def lost_before_copy(
    log: LocalLog | None,
    covered: OffsetRanges,
    deleted_before_offset: int,
    emptied_before_offset: int = 0,
) -> list[tuple[int, int]]:
    """The ranges, both ends inclusive, that the broker deleted before they were copied: behind
    something that is or was in the tier, in it themselves no more than here. What is missing
    before the first that ever was there is none: the log may have begun there.

    What is missing below `deleted_before_offset` was deleted from the tier (Tier.
    deleted_before_offset), and below the log start that the broker wrote down on request
    (DeleteRecords). A request for all of a segment and no more leaves no such trace; it counts as
    lost.

    Args:
        emptied_before_offset: what lay below was in the tier, though nothing of it may be left
            (RaisedLogStart); 0: that is not known of anything.
    """
    there = list(covered)
    if emptied_before_offset > 0:
        there.append((0, emptied_before_offset - 1))
    if log is not None and there:
        there.append((log.segments[0].base_offset, INT64_MAX))
        deleted_before_offset = max(deleted_before_offset, log.removed_before_offset)
    gaps = OffsetRanges(there).gaps()
    return [
        (max(first, deleted_before_offset), last)
        for first, last in gaps
        if last >= deleted_before_offset
    ]


def copied_through_offset(
    covered: OffsetRanges,
    candidates: Sequence[LocalSegment],
    lost: Sequence[tuple[int, int]],
) -> int:
    """The last offset of the copied prefix, before the first segment that is to be copied and
    before the first of the lost ranges that are given; -1: none.

    Args:
        lost: those that stop it: a recorded gap is passed.
    """
    ends = [covered.last + 1]
    ends += [segment.base_offset for segment in candidates[:1]]
    ends += [first for first, _ in lost[:1]]
    below = covered.last_below(min(ends))
    return -1 if below is None else below


TellsTimestamp = Callable[[LocalSegment], int | None]
"""A segment's largest timestamp, ms; None: it cannot be read."""


@dataclass(frozen=True, slots=True)
class CopyLagDefaults:
    """What holds for topics that do not say; as in the topic's own settings.

    Source: log.remote.copy.lag.ms, log.remote.copy.lag.bytes.
    """

    ms: int = 0
    size_bytes: int = AS_LOCAL_RETENTION


@dataclass(frozen=True, slots=True)
class CopyLag:
    """Either of the two is enough for a segment to be copied; with neither nothing is.

    Attributes:
        ms: the newest record is so old; None: however old it is.
        size_bytes: so much lies behind the segment, the active one included; None: however much.
    """

    ms: int | None = 0
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """All is copied at once."""
        return 0 in (self.ms, self.size_bytes)


AT_ONCE = CopyLag()


def effective_copy_lag(config: TopicConfig, defaults: CopyLagDefaults) -> CopyLag:
    """A topic's lag. One derived from a local retention without limit never lets anything pass;
    a default is no longer than the local retention, behind which the broker deletes the segment."""
    return CopyLag(
        _effective(config.remote_copy_lag_ms, defaults.ms, config.effective_local_retention_ms),
        _effective(
            config.remote_copy_lag_bytes,
            defaults.size_bytes,
            config.effective_local_retention_bytes,
        ),
    )


def _effective(lag: int | None, default: int, local_retention: int) -> int | None:
    lag = default if lag is None else lag
    if local_retention == UNLIMITED:
        return None if lag == AS_LOCAL_RETENTION else lag
    return local_retention if lag == AS_LOCAL_RETENTION else min(lag, local_retention)


def eligible_log_segments(
    candidates: Sequence[LocalSegment],
    segments: Sequence[LocalSegment],
    lag: CopyLag,
    now_ms: int,
    largest_timestamp_ms: TellsTimestamp,
) -> list[LocalSegment]:
    """The candidates that are due, up to the first one that is not.

    Args:
        candidates: earliest first.
        segments: all of the log, the active one included.
        now_ms: by the clock of this host, which is the broker's.

    Source: RemoteLogManager.RLMCopyTask.candidateLogSegments.
    """
    if lag.is_none:
        return list(candidates)
    behind_bytes = _bytes_behind(segments)
    eligible: list[LocalSegment] = []
    for segment in candidates:
        has_enough_behind = (
            lag.size_bytes is not None and behind_bytes[segment.base_offset] >= lag.size_bytes
        )
        if not has_enough_behind and not _is_old(segment, lag.ms, now_ms, largest_timestamp_ms):
            break
        eligible.append(segment)
    return eligible


def _bytes_behind(segments: Sequence[LocalSegment]) -> dict[int, int]:
    """Of each segment, by its base offset, the size of all that follow it."""
    behind: dict[int, int] = {}
    total_bytes = 0
    for segment in reversed(segments):
        behind[segment.base_offset] = total_bytes
        total_bytes += segment.size_bytes
    return behind


def _is_old(
    segment: LocalSegment, lag_ms: int | None, now_ms: int, largest_timestamp_ms: TellsTimestamp
) -> bool:
    """Records of the future are as good as old: nobody knows when they will be."""
    if lag_ms is None:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    if timestamp_ms is None:
        return True
    age_ms = now_ms - timestamp_ms
    return age_ms < 0 or age_ms >= lag_ms


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
class CopyQuotaLimit:
    """How many bytes a second all copies of a process read together (KIP-956).

    Attributes:
        max_bytes_per_second: INT64_MAX: no limit.
        windows, window_s: the unused rate of so many windows may be made up for at once.
    """

    max_bytes_per_second: int = INT64_MAX
    windows: int = 11
    window_s: int = 1

    def bucket(self, clock: Callable[[], float] = time.monotonic) -> TokenBucket:
        rate = self.max_bytes_per_second
        return TokenBucket(rate, rate * self.windows * self.window_s, name="copies", now=clock)


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
    quota: TokenBucket = field(default_factory=lambda: CopyQuotaLimit().bucket())
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
