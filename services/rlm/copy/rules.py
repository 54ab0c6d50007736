"""Decide which segments to copy, and when.

The rules are pure; CopyRules applies them with the settings of the topic.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.topic_config import AS_LOCAL_RETENTION, UNLIMITED, TopicConfig, is_internal_topic
from services.api.validation import INT64_MAX
from services.common.fair_queue import QuotaLimit, TokenBucket
from services.rlm.cleanup_policies import Policies, is_awaited, is_compacted
from services.rlm.kafka_admin.cluster_view import NoPolicy
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.reason_log import ReasonLog
from services.rlm.tier import OffsetRanges, Tier
from services.rlm.topic_configs import TopicConfigs


def candidate_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """Return the rolled, stable segments to copy, earliest first.

    Source: RemoteLogManager.candidateLogSegments.
    """
    lagging = lagging_log_segments(log, covered)
    return [segment for segment in lagging if segment.end_offset < log.last_stable_offset]


def lagging_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """Return the rolled segments that are not in the tier, earliest first.

    These are all that reach the log's start (LocalLog.from_offset), also those below the tier's
    first segment: what was deleted from the tier lies below the log's start, which rises before.
    One of which the tier has tails alone is sent whole; so pass Tier.copied as `covered`.
    (Kafka copies only above the highest offset ever copied, also after tiering is enabled again.)
    """
    return [
        segment
        for segment in log.rolled
        if segment.end_offset >= log.log_start_offset and not _is_covered(segment, log, covered)
    ]


def lagging_segments(log: LocalLog, tier: Tier) -> list[LocalSegment]:
    """Return the rolled segments that are not in the tier, also those that are blocked."""
    if tier.known is None:
        return []
    if log.log_end_offset < tier.log_start_offset:  # It is not the log that was copied.
        return list(log.rolled)
    log = log.from_offset(tier.log_start_offset)
    return lagging_log_segments(log, tier.copied(log.lineage))


def in_tier(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """Return the rolled segments whose readable offsets are all in the tier."""
    return [segment for segment in log.rolled if _is_covered(segment, log, covered)]


def _is_covered(segment: LocalSegment, log: LocalLog, covered: OffsetRanges) -> bool:
    first = max(segment.base_offset, log.log_start_offset)
    return first <= segment.end_offset and covered.covers(first, segment.end_offset)


def deleted_before_copy(
    log: LocalLog, covered: OffsetRanges, log_start_offset: int
) -> list[tuple[int, int]]:
    """Return the ranges behind tiered offsets that DeleteRecords deleted at the broker."""
    removed = log.removed_before_offset
    if removed == log.segments[0].base_offset:
        return []  # Perhaps retention was deleting segments when the broker wrote that.
    ranges = OffsetRanges([*covered, (max(removed, log.segments[0].base_offset), INT64_MAX)])
    return [(first, last) for first, last in ranges.gaps() if log_start_offset <= first < removed]


def copied_through_offset(
    covered: OffsetRanges,
    missing: Sequence[LocalSegment],
    lost: Sequence[tuple[int, int]],
) -> int:
    """Return the last offset of the copied prefix; -1 if nothing is copied.

    The prefix ends before the first rolled segment that is missing in the tier, and before the
    first of the `lost` ranges, which exclude recorded gaps.
    """
    ends = [covered.last + 1]
    ends += [segment.base_offset for segment in missing[:1]]
    ends += [first for first, _ in lost[:1]]
    below = covered.last_below(min(ends))
    return -1 if below is None else below


EVERY_TOPIC = ("*",)

ReadsTimestamp = Callable[[LocalSegment], int | None]
"""Returns a segment's largest timestamp, ms; None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class CopyLagDefaults:
    """The copy lag of topics that do not set one.

    Source: log.remote.copy.lag.ms, log.remote.copy.lag.bytes.
    """

    ms: int = 0
    size_bytes: int = AS_LOCAL_RETENTION


@dataclass(frozen=True, slots=True)
class CopyLag:
    """The bounds at which a segment is due: either is enough; without both it never is.

    Attributes:
        ms: age of its newest record; None if there is no such bound.
        size_bytes: bytes of later segments, the active one included; None if there is no such
            bound.
    """

    ms: int | None = 0
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Return whether every segment is due at once."""
        return 0 in (self.ms, self.size_bytes)


AT_ONCE = CopyLag()


def effective_copy_lag(config: TopicConfig, defaults: CopyLagDefaults) -> CopyLag:
    """Return a topic's copy lag.

    A lag derived from an unlimited local retention never ends. A default is never longer than the
    local retention, after which the broker deletes the segment.
    """
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
    largest_timestamp_ms: ReadsTimestamp,
) -> list[LocalSegment]:
    """Return the candidates that are due, up to the first one that is not.

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
    """Return, by base offset, the size of all segments that follow each one."""
    behind: dict[int, int] = {}
    total_bytes = 0
    for segment in reversed(segments):
        behind[segment.base_offset] = total_bytes
        total_bytes += segment.size_bytes
    return behind


def _is_old(
    segment: LocalSegment, lag_ms: int | None, now_ms: int, largest_timestamp_ms: ReadsTimestamp
) -> bool:
    """Return whether the segment is old enough; timestamps in the future count as old."""
    if lag_ms is None:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    if timestamp_ms is None:
        return True
    age_ms = now_ms - timestamp_ms
    return age_ms < 0 or age_ms >= lag_ms


@dataclass(frozen=True, slots=True)
class CopyRule:
    """The rule by which a partition is copied.

    Attributes:
        disabled_by: why the partition is not copied; empty if it is. Reads and retention continue.
        compaction: the topic's cleanup.policy, if that is the reason; then retention deletes
            nothing either.
        is_awaited: the cluster has not returned the cleanup policy yet.
        may_have_holes: the cluster says that the topic is not compacted, so that a segment which
            ends before the next one begins was compacted earlier.
        local_retention_ms: the age at which the broker deletes a segment; None if unknown.
        tail_ms: the age at which a tail is copied (tails.py); None: never.
    """

    disabled_by: str = ""
    lag: CopyLag = AT_ONCE
    local_retention_ms: int | None = None
    compaction: str = ""
    is_awaited: bool = False
    may_have_holes: bool = False
    tail_ms: int | None = None

    @property
    def copies(self) -> bool:
        return not self.disabled_by

    @property
    def has_lag(self) -> bool:
        """Return whether what is not in the tier is a lag: copies, or will, or should."""
        return self.copies or self.is_awaited or bool(self.compaction)


@dataclass(frozen=True, slots=True)
class CopyRules:
    """The copy rules of all partitions of a process.

    Attributes:
        lag_defaults: None to copy at once and ignore all lags (`sediment ship`).
        now_ms: the clock of this host, by which a lag is measured.
        tiered_topics: patterns with * of the topics that are tiered without remote.storage.enable;
            those of one that begins with ! are not.
        cleanup_policies: None if the policies are not read.
    """

    topic_configs: TopicConfigs
    lag_defaults: CopyLagDefaults | None = field(default_factory=CopyLagDefaults)
    quota: TokenBucket = field(default_factory=lambda: QuotaLimit().bucket("copies"))
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    tiered_topics: Sequence[str] = EVERY_TOPIC
    reason_log: ReasonLog = field(default_factory=lambda: ReasonLog("topic %s is not copied: %s"))
    cleanup_policies: Policies | None = None

    def of(self, name: TopicIdPartition) -> CopyRule:
        """Return the rule of a partition now."""
        config = self._config(name)
        # Where RLM deletes, nothing is deleted before its copy.
        local_ms = -1 if config.is_trimmed_by_rlm else config.local_retention_ms
        rule = CopyRule(
            self._disabled_by(name, config),
            effective_copy_lag(config, self.lag_defaults) if self.lag_defaults else AT_ONCE,
            # Only a setting for the broker's own disk; retention.ms alone is the tier's.
            local_ms if local_ms >= 0 else None,
            tail_ms=config.tail_copy_ms if self.lag_defaults else None,
        )
        if rule.copies and self.cleanup_policies is not None:
            rule = _with_policy(rule, self.cleanup_policies.of(name))
        if not rule.is_awaited:
            self.reason_log.log(name, rule.disabled_by)
        return rule

    def _disabled_by(self, name: TopicIdPartition, config: TopicConfig) -> str:
        if is_internal_topic(name.topic):
            return "it is an internal topic of Kafka"
        if config.remote_log_copy_disable:
            return "remote.log.copy.disable=true"
        if config.remote_storage_enable is None and not _names(self.tiered_topics, name.topic):
            return "remote.storage.enable=true is not set"
        if config.remote_storage_enable is False:
            return "remote.storage.enable=false"
        return ""

    def eligible(
        self, rule: CopyRule, candidates: Sequence[LocalSegment], segments: Sequence[LocalSegment]
    ) -> list[LocalSegment]:
        """Return the candidates that are due."""
        return eligible_log_segments(
            candidates, segments, rule.lag, self.now_ms(), largest_timestamp_ms
        )

    def _config(self, name: TopicIdPartition) -> TopicConfig:
        try:
            return self.topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return TopicConfig()


def _names(patterns: Sequence[str], topic: str) -> bool:
    left_out = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(fnmatchcase(topic, pattern) for pattern in patterns) and not any(
        fnmatchcase(topic, pattern) for pattern in left_out
    )


def _with_policy(rule: CopyRule, policy: str | NoPolicy) -> CopyRule:
    if is_awaited(policy):
        return replace(
            rule,
            disabled_by="the cluster has not answered yet with its cleanup.policy",
            is_awaited=True,
        )
    if isinstance(policy, str) and is_compacted(policy):
        reason = f"it is compacted (cleanup.policy={policy})"
        return replace(rule, disabled_by=reason, compaction=policy)
    return replace(rule, may_have_holes=isinstance(policy, str))
