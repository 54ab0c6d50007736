"""Decide which segments are to leave the local log, and which may: pure rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from services.api.lineage import Lineage
from services.api.topic_config import UNLIMITED, TopicConfig
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.tier_state import OffsetRanges

TellsTimestamp = Callable[[LocalSegment], int | None]
"""A segment's largest timestamp, ms; None: it cannot be read."""


class LocalDeletionReason(Enum):
    """The values are for people."""

    LOG_START_OFFSET = "below the log start offset"
    SIZE = "local.retention.bytes breached"
    TIME = "local.retention.ms breached"


@dataclass(frozen=True, slots=True)
class LocalDeletion:
    segment: LocalSegment
    reason: LocalDeletionReason


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """How long a partition's local log is kept; UNLIMITED: as long as its disk.

    Where copying is disabled these are retention.ms and retention.bytes (KIP-950): TopicConfig
    allows no others then.
    """

    ms: int = UNLIMITED
    size_bytes: int = UNLIMITED


def local_limits(config: TopicConfig) -> LocalLimits:
    return LocalLimits(config.effective_local_retention_ms, config.effective_local_retention_bytes)


def due_local_deletions(
    segments: Sequence[LocalSegment],
    log_start_offset: int,
    limits: LocalLimits,
    now_ms: int,
    largest_timestamp_ms: TellsTimestamp,
) -> list[LocalDeletion]:
    """The rolled segments that the rules let go, from the oldest on up to the first that stays:
    all below the log start; so many that what is left is still local.retention.bytes or more; those
    whose newest record is older than local.retention.ms.

    Args:
        segments: all of the local log, the active one last.
        log_start_offset: nothing below it is read any more, here or in the tier.
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    has_size = limits.size_bytes != UNLIMITED
    excess_bytes = total_bytes - limits.size_bytes if has_size else -1
    due: list[LocalDeletion] = []
    for segment in segments:
        if not segment.is_rolled:
            break
        if segment.end_offset < log_start_offset:
            reason = LocalDeletionReason.LOG_START_OFFSET
        elif excess_bytes >= segment.size_bytes:
            reason = LocalDeletionReason.SIZE
        elif _is_old(segment, limits.ms, now_ms, largest_timestamp_ms):
            reason = LocalDeletionReason.TIME
        else:
            break
        excess_bytes -= segment.size_bytes
        due.append(LocalDeletion(segment, reason))
    return due


def _is_old(
    segment: LocalSegment, ms: int, now_ms: int, largest_timestamp_ms: TellsTimestamp
) -> bool:
    """Records of the future are young, as in Kafka; so is what cannot be read."""
    if ms == UNLIMITED:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    return timestamp_ms is not None and now_ms - timestamp_ms > ms


@dataclass(frozen=True, slots=True)
class Copied:
    """What of a local log is in the tier.

    An offset counts only where the tier has it in the very leader epoch in which it was written
    here, and where the partition's lineage in RLMM has it in that epoch, too: another leader's
    records at the same offsets are other records.

    Attributes:
        ranges: of each leader epoch, the offsets in finished segments.
        tier_lineage: the partition's, as RLMM has it.
        local_lineage: the log's own.
    """

    ranges: Mapping[int, OffsetRanges]
    tier_lineage: Lineage
    local_lineage: Lineage

    def epoch_ranges(
        self, segment: LocalSegment, log_start_offset: int
    ) -> list[tuple[int, int, int]]:
        """(leader epoch, first offset, last offset), both inclusive, of a rolled segment from the
        log start on. Empty: no epoch is known for all of it, or the lineages do not agree on it."""
        first, following = max(segment.base_offset, log_start_offset), segment.end_offset + 1
        epochs = self.local_lineage.between(first, following)
        if not epochs or epochs[0].start_offset != first:
            return []
        if self.tier_lineage.between(first, following) != epochs:
            return []
        ends = [epoch.start_offset - 1 for epoch in epochs[1:]] + [segment.end_offset]
        return [
            (epoch.leader_epoch, epoch.start_offset, end)
            for epoch, end in zip(epochs, ends, strict=True)
        ]

    def has(self, segment: LocalSegment, log_start_offset: int) -> bool:
        """Whether all of a rolled segment, from the log start on, is in finished segments."""
        ranges = self.epoch_ranges(segment, log_start_offset)
        return bool(ranges) and all(
            epoch in self.ranges and self.ranges[epoch].covers(first, last)
            for epoch, first, last in ranges
        )


def allowed_local_deletions(
    due: Sequence[LocalDeletion], copied: Copied, log_start_offset: int
) -> list[LocalDeletion]:
    """Those of what is due that may go, up to the first one that may not: below the log start, or
    in the tier."""
    allowed: list[LocalDeletion] = []
    for deletion in due:
        is_below = deletion.reason is LocalDeletionReason.LOG_START_OFFSET
        if not is_below and not copied.has(deletion.segment, log_start_offset):
            break
        allowed.append(deletion)
    return allowed
