"""Describe the partitions of RLM, page by page, and how far their copies are behind."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import is_recorded
from services.api.remote_log_manager import (
    UNKNOWN_LEADER,
    CopyLag,
    PartitionDescription,
    Problem,
    ProblemKind,
)
from services.api.validation import page_limit, seal, unseal
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.gaps import lost_problem
from services.rlm.copy.report import Range, deleted_at_broker
from services.rlm.copy.rules import copied_through_offset, lagging_log_segments
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition, log_end_problem
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError, SegmentVanishedError
from services.rlm.losses import lost_ranges
from services.rlm.partition import LED_BY_LOG, Partition
from services.rlm.problem_log import blocks_copying
from services.rlm.tier import OffsetRanges, Tier

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
MAX_LISTED_PROBLEMS = 20

MAX_PAGE_PROBLEMS = 2000
"""A problem takes some hundred bytes, so that a page stays well under 4 MiB."""

Key = tuple[str, int, str]
_TOKENS = "DescribePartitions"


class PageDescriber:
    """Describe the partitions of one page.

    After RLMM was unreachable once, it is not called again for the page, because each request would
    wait for its whole deadline.

    Attributes:
        unavailable: why RLMM is not called any more; None if it answers.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.unavailable: RemoteStorageError | None = None

    def page(self, partitions: Sequence[Partition]) -> tuple[list[PartitionDescription], int]:
        """Return the descriptions that fit a message, at least one, and their partition count.

        Partitions that only the tier has are left out while RLMM is down, but they are counted.
        """
        found: list[PartitionDescription] = []
        problems = done = 0
        for partition in partitions:
            done += 1
            description = self._describe(partition)
            if partition.role.local is None and self.unavailable is not None:
                continue
            found.append(description)
            problems += len(description.problems)
            if problems >= MAX_PAGE_PROBLEMS:
                break
        return found, done

    def _describe(self, partition: Partition) -> PartitionDescription:
        """Describe one partition now.

        If a service is unreachable, the description has a problem and the last known figures.
        """
        problems, current = list(partition.copy.problems), list[Problem | None]()
        local, log, is_fresh = partition.role.local, None, False
        try:
            log = local.read() if local else None
            is_fresh = self._refresh(partition, problems)
            if local is not None and log is not None and is_fresh:
                tier = partition.tier.cached
                current.append(log_end_problem(local, log, tier.log_start_offset))
                current.append(_history_problem(local, log, tier))
        except LogFileError as e:
            problems.append(e.problem(blocked_segments=0))
        except SegmentVanishedError as e:
            problems.append(_unavailable(partition, e))
        tier = partition.tier.cached
        log = log.from_offset(tier.log_start_offset) if log else None
        covered = tier.covered(log.lineage if log else Lineage())
        lost, known_gaps = self._losses(partition, log, covered, refresh=is_fresh)
        if log is None or local is None:
            problems += partition.copy.rebuilt
            copied = tier.copied(log.lineage if log else Lineage())
            return _only_remote(partition, tier, _copied_through(tier, copied, [], lost), problems)
        if is_fresh:
            current += [lost_problem(partition, offsets) for offsets in lost]
        path = str(local.folder.path)
        current.append(log.lineage_problem)
        current.append(partition.trim.broker_retention)
        current.append(deleted_at_broker(partition, log, tier, path))
        current += [lost_problem(partition, offsets, is_known=True) for offsets in known_gaps]
        known = {(p.kind, p.path, p.offset) for p in problems}
        problems += [p for p in current if p and (p.kind, p.path, p.offset) not in known]
        problems += partition.copy.rebuilt
        return _local(partition, log, tier, lost, self._broker_id, problems)

    def _losses(
        self, partition: Partition, log: LocalLog | None, covered: OffsetRanges, *, refresh: bool
    ) -> tuple[list[Range], list[Range]]:
        """Return the lost ranges that are not recorded, and those that are.

        They are the last known ones if RLMM is not called or does not answer.
        """
        tier, gaps = partition.tier.cached, partition.tier.gaps.cached
        lost = lost_ranges(partition, log, covered, tier, refresh=False)
        if refresh:
            with suppress(RemoteStorageError):
                lost = lost_ranges(partition, log, covered, tier)
                gaps = partition.tier.gaps.refresh(tier) if lost else gaps
        known = [(first, last) for first, last in lost if is_recorded(gaps, first, last)]
        return [offsets for offsets in lost if offsets not in known], known

    def _refresh(self, partition: Partition, problems: list[Problem]) -> bool:
        try:
            if self.unavailable is None:
                partition.tier.refresh()
                return True
        except RETRIABLE_ERRORS as e:
            self.unavailable = e
        except RemoteStorageError as e:
            problems.append(_unavailable(partition, e))
            return False
        problems.append(_unavailable(partition, self.unavailable))
        return False


def _unavailable(partition: Partition, error: Exception | None) -> Problem:
    name = str(partition.topic_id_partition)
    return Problem(ProblemKind.STORE_UNAVAILABLE, name, str(error))


def at_most(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the first twenty problems, and one that counts the others."""
    listed, others = problems[:MAX_LISTED_PROBLEMS], problems[MAX_LISTED_PROBLEMS:]
    if not others:
        return tuple(listed)
    first = others[0]
    blocked = sum(problem.blocked_segments for problem in others)
    more = Problem(first.kind, first.path, f"and {len(others)} more", first.offset, blocked)
    return (*listed, more)


def _local(
    partition: Partition,
    log: LocalLog,
    tier: Tier,
    lost: Sequence[tuple[int, int]],
    broker_id: int,
    problems: Sequence[Problem],
) -> PartitionDescription:
    log = partition.role.as_settled(log)
    copied = tier.copied(log.lineage)
    missing = lagging_log_segments(log, copied)
    lagging = partition.count_lag(log, tier)
    starts = [log.log_start_offset]
    if tier.start_offset is not None:
        starts.append(tier.start_offset)
    leadership = partition.role.leadership or LED_BY_LOG
    epoch = leadership.epoch_of(log.lineage)
    return replace(
        _only_remote(partition, tier, _copied_through(tier, copied, missing, lost), problems),
        leader_id=broker_id if leadership.is_leader else UNKNOWN_LEADER,
        leader_epoch=-1 if epoch is None else epoch,
        log_start_offset=max(min(starts), tier.log_start_offset),
        local_log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        local_segments=len(log.segments),
        local_size_bytes=log.size_bytes,
        lag_segments=len(lagging),
        lag_bytes=sum(segment.size_bytes for segment in lagging),
    )


def _copied_through(
    tier: Tier,
    copied: OffsetRanges,
    missing: Sequence[LocalSegment],
    lost: Sequence[tuple[int, int]],
) -> int:
    """Return the last offset of the copied prefix; offsets that expired count as copied."""
    return max(copied_through_offset(copied, missing, lost), tier.log_start_offset - 1)


def _only_remote(
    partition: Partition, tier: Tier, copied_through: int, problems: Sequence[Problem]
) -> PartitionDescription:
    end = tier.end_offset
    newest = tier.newest
    epoch = newest.segment_leader_epochs[-1].leader_epoch if newest else -1
    return PartitionDescription(
        topic_id_partition=partition.topic_id_partition,
        leader_id=UNKNOWN_LEADER,
        leader_epoch=epoch,
        log_start_offset=end if tier.start_offset is None else tier.start_offset,
        local_log_start_offset=end,
        last_stable_offset=end,
        log_end_offset=end,
        copied_through_offset=copied_through,
        local_segments=0,
        local_size_bytes=0,
        lag_segments=0,
        lag_bytes=0,
        remote_segments=tier.segments,
        remote_size_bytes=tier.size_bytes,
        problems=at_most(problems),
        role=None if partition.role.leadership is None else partition.role.leadership.role,
    )


def page_of(
    partitions: Iterable[Partition], page_size: int, page_token: str
) -> tuple[list[Partition], bool]:
    """Return the partitions of one page, by topic, number and topic id, and whether others follow.

    Raises:
        InvalidRequestError: if the size is negative, or the token is invalid.
    """
    size = page_limit(page_size, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    after = _key_from(page_token) if page_token else ("", -1, "")
    waiting = sorted((p for p in partitions if _key(p) > after), key=_key)
    return waiting[:size], len(waiting) > size


def token_after(name: TopicIdPartition) -> str:
    """Return the token of the page that begins after this partition."""
    key = name.topic, name.partition, name.topic_id.hex
    return seal(_TOKENS, "/".join(map(str, key)).encode("ascii"))


def _key(partition: Partition) -> Key:
    name = partition.topic_id_partition
    return name.topic, name.partition, name.topic_id.hex


def _key_from(token: str) -> Key:
    topic, partition, topic_id = unseal(_TOKENS, token).decode("ascii").split("/")
    return topic, int(partition), topic_id


def copy_lag_of(partitions: Sequence[Partition], broker_id: int, now_ms: int) -> CopyLag:
    """Sum up the lag as it was last counted, by passes and descriptions."""
    lags = [partition.copy.lag for partition in partitions]
    lagging = [each for each in lags if each.segments]
    dated = [
        (each.oldest_timestamp_ms, each.local_retention_ms)
        for each in lagging
        if each.oldest_timestamp_ms is not None
    ]
    used = [(now_ms - at_ms) / limit_ms for at_ms, limit_ms in dated if limit_ms]
    return CopyLag(
        broker_id,
        len(partitions),
        len(lagging),
        sum(any(map(blocks_copying, partition.copy.problems)) for partition in partitions),
        sum(each.segments for each in lagging),
        sum(each.size_bytes for each in lagging),
        min((at_ms for at_ms, _ in dated), default=None),
        max(used, default=None),
        unchecked_partitions=sum(not partition.is_counted for partition in partitions),
        lost_partitions=sum(bool(partition.copy.lost) for partition in partitions),
        earlier_histories=sum(map(_has_earlier_history, partitions)),
        broker_retention_set=sum(each.trim.broker_retention is not None for each in partitions),
        deleted_at_broker=sum(map(_was_deleted_at_broker, partitions)),
    )


def _was_deleted_at_broker(partition: Partition) -> bool:
    local = partition.role.local
    log = None if local is None else local.cached
    return log is not None and deleted_at_broker(partition, log, partition.tier.cached) is not None


def _has_earlier_history(partition: Partition) -> bool:
    local = partition.role.local
    log = None if local is None else local.cached
    return log is not None and _earlier_history(log, partition.tier.cached) is not None


def _earlier_history(log: LocalLog, tier: Tier) -> Range | None:
    """Return the offsets of the tier that the log has in later leader epochs; None if none.

    The broker began the log again, on an empty disk: readers do not get what the tier has of it.
    """
    if not log.lineage.entries or log.log_end_offset < tier.log_start_offset:
        return None  # Unknown, or not served: LOG_END_BELOW_LOG_START.
    first = log.lineage.entries[0]
    start = max(first.start_offset, tier.log_start_offset)
    found = [
        (max(begin, start), last)
        for epoch, ranges in tier.ranges.items()
        if epoch < first.leader_epoch
        for begin, last in ranges
        if last >= start
    ]
    return (min(found)[0], max(last for _, last in found)) if found else None


def _history_problem(local: LocalPartition, log: LocalLog, tier: Tier) -> Problem | None:
    found = _earlier_history(log, tier)
    if found is None:
        return None
    name = local.topic_id_partition
    reason = (
        f"the tier has offsets {found[0]} to {found[1]} of an earlier history: this log begins in "
        f"leader epoch {log.lineage.entries[0].leader_epoch}, on an empty disk, and readers do not "
        f"get them. Restore the log from a replica, or delete them by `sediment partitions "
        f"drop-history {name.topic}-{name.partition}`"
    )
    return Problem(ProblemKind.EARLIER_HISTORY, str(local.folder.path), reason, found[0])
