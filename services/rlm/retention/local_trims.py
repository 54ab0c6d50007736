"""Decide how far a broker's log may be trimmed, because the tier has what goes."""

from collections.abc import Callable
from dataclasses import dataclass

from services.api.topic_config import AS_RETENTION, UNLIMITED, TopicConfig
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.tier import OffsetRanges, Tier


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """How long records stay on a broker's disk; UNLIMITED: for ever.

    Source: log.local.retention.ms, log.local.retention.bytes.
    """

    ms: int = AS_RETENTION
    size_bytes: int = AS_RETENTION

    def of(self, config: TopicConfig) -> "LocalRetention":
        """Return what is in force for a topic: its own, else this one, else its retention."""
        ms, size_bytes = config.local_retention_ms, config.local_retention_bytes
        return LocalRetention(
            _effective(ms, self.ms, config.retention_ms),
            _effective(size_bytes, self.size_bytes, config.retention_bytes),
        )


def _effective(own: int, default: int, total: int) -> int:
    local = default if own == AS_RETENTION else own
    if local == AS_RETENTION:
        return total
    # A default may be longer than the topic's retention.
    return local if total == UNLIMITED else min(local, total) if local != UNLIMITED else total


def trim_offset(
    log: LocalLog,
    tier: Tier,
    retention: LocalRetention,
    now_ms: int,
    largest_timestamp_ms: Callable[[LocalSegment], int | None],
) -> int:
    """Return the offset below which records may be deleted here: the log's start if none may.

    It is the end of a rolled segment below the high watermark. Each offset below it is in a
    finished segment of the log's own leader epoch that is no tail, or was deleted from the tier by
    decision.

    Args:
        retention: in force for the topic.
        now_ms: by the clock of this host, which is the broker's.

    Source: UnifiedLog.deleteRetentionMsBreachedSegments, deleteRetentionSizeBreachedSegments.
    """
    start = log.log_start_offset
    if log.lineage_problem or log.high_watermark_problem or not tier.known:
        return start
    in_tier, excess_bytes = _in_tier(log, tier), log.size_bytes - retention.size_bytes
    for segment in log.rolled:
        first, last = max(segment.base_offset, start), segment.end_offset
        if last < first:
            excess_bytes -= segment.size_bytes  # The broker has yet to delete its files.
            continue
        is_too_much = retention.size_bytes != UNLIMITED and excess_bytes >= segment.size_bytes
        is_due = is_too_much or _is_old(segment, retention.ms, now_ms, largest_timestamp_ms)
        if not is_due or last >= log.high_watermark or not in_tier.covers(first, last):
            break
        excess_bytes -= segment.size_bytes
        start = last + 1
    return start


def _in_tier(log: LocalLog, tier: Tier) -> OffsetRanges:
    """Return the offsets that need not stay here.

    Those below the tier's log start are among them if the tier has the record there in the log's
    own leader epoch: then all that came before it was the same in both, too.
    """
    if log.log_end_offset < tier.log_start_offset:
        return OffsetRanges()
    covered, start = tier.copied(log.lineage), tier.log_start_offset
    if start and covered.covers(start, start):
        return OffsetRanges([(0, start - 1), *covered])
    return covered


def _is_old(
    segment: LocalSegment,
    retention_ms: int,
    now_ms: int,
    largest_timestamp_ms: Callable[[LocalSegment], int | None],
) -> bool:
    if retention_ms == UNLIMITED:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    return timestamp_ms is not None and now_ms - timestamp_ms > retention_ms
