"""Describe the partitions of RLM, page by page, and how far their copies are behind."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from services.api.errors import InvalidRequestError, RemoteStorageError
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
from services.api.validation import require
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.gaps import lost_problem
from services.rlm.copy.report import Range, deleted_at_broker
from services.rlm.copy.rules import candidate_log_segments, copied_through_offset
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition, log_end_problem
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError, SegmentVanishedError
from services.rlm.losses import lost_ranges
from services.rlm.partition import LED_BY_LOG, Partition
from services.rlm.problem_log import holds_back
from services.rlm.tier import OffsetRanges, Tier

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
MAX_LISTED_PROBLEMS = 20

MAX_PAGE_PROBLEMS = 2000
"""A problem takes some hundred bytes, so that a page stays well under 4 MiB."""

Key = tuple[str, int, str]


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
        problems, now = list(partition.copy.problems), list[Problem]()
        local, log, is_fresh = partition.role.local, None, False
        try:
            log = local.read() if local else None
            is_fresh = self._refresh(partition, problems)
            if local is not None and log is not None and is_fresh:
                problem = log_end_problem(local, log, partition.tier.cached.log_start_offset)
                now += [] if problem is None else [problem]
                now += _history_problem(local, log, partition.tier.cached)
        except LogFileError as e:
            problems.append(e.problem(held_segments=0))
        except SegmentVanishedError as e:
            problems.append(_unavailable(partition, e))
        tier = partition.tier.cached
        log = log.from_offset(tier.log_start_offset) if log else None
        covered = tier.covered(log.lineage if log else Lineage())
        lost = self._lost(partition, log, covered, refresh=is_fresh)
        known_gaps = self._known_gaps(partition, lost, refresh=is_fresh)
        lost = [offsets for offsets in lost if offsets not in known_gaps]
        if log is None or local is None:
            problems += partition.copy.rebuilt
            return _only_remote(partition, tier, _copied_through(tier, covered, [], lost), problems)
        if is_fresh:
            now += [lost_problem(partition, offsets) for offsets in lost]
        if log.lineage_problem is not None:
            now.append(log.lineage_problem)
        deleted = deleted_at_broker(
            log, tier.start_offset, tier.log_start_offset, str(local.found.path)
        )
        now += [] if deleted is None else [deleted]
        now += [lost_problem(partition, offsets, is_known=True) for offsets in known_gaps]
        known = {(p.kind, p.path, p.offset) for p in problems}
        problems += [p for p in now if (p.kind, p.path, p.offset) not in known]
        problems += partition.copy.rebuilt
        return _local(partition, log, tier, lost, self._broker_id, problems)

    def _lost(
        self, partition: Partition, log: LocalLog | None, covered: OffsetRanges, *, refresh: bool
    ) -> list[Range]:
        """Return the lost ranges; the last known ones if RLMM is not called or does not answer."""
        tier = partition.tier.cached
        if refresh:
            with suppress(RemoteStorageError):
                return lost_ranges(partition, log, covered, tier)
        return lost_ranges(partition, log, covered, tier, refresh=False)

    def _known_gaps(
        self, partition: Partition, lost: Sequence[Range], *, refresh: bool
    ) -> list[Range]:
        """Return the recorded lost ranges.

        These are the last known ones if RLMM is not called or does not answer.
        """
        gaps = partition.tier.gaps.cached
        if lost and refresh:
            with suppress(RemoteStorageError):
                gaps = partition.tier.gaps.refresh(partition.tier.cached)
        return [(first, last) for first, last in lost if is_recorded(gaps, first, last)]

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
    held = sum(problem.held_segments for problem in others)
    more = Problem(first.kind, first.path, f"and {len(others)} more", first.offset, held)
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
    covered = tier.covered(log.lineage)
    pending = candidate_log_segments(log, covered)
    starts = [log.log_start_offset]
    if tier.start_offset is not None:
        starts.append(tier.start_offset)
    leadership = partition.role.leadership or LED_BY_LOG
    epoch = leadership.epoch_of(log.lineage)
    return replace(
        _only_remote(partition, tier, _copied_through(tier, covered, pending, lost), problems),
        leader_id=broker_id if leadership.is_leader else UNKNOWN_LEADER,
        leader_epoch=-1 if epoch is None else epoch,
        log_start_offset=max(min(starts), tier.log_start_offset),
        local_log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        local_segments=len(log.segments),
        local_size_bytes=log.size_bytes,
        pending_segments=len(pending),
        pending_size_bytes=sum(segment.size_bytes for segment in pending),
    )


def _copied_through(
    tier: Tier,
    covered: OffsetRanges,
    pending: Sequence[LocalSegment],
    lost: Sequence[tuple[int, int]],
) -> int:
    """Return the last offset of the copied prefix; offsets that expired count as copied."""
    return max(copied_through_offset(covered, pending, lost), tier.log_start_offset - 1)


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
        pending_segments=0,
        pending_size_bytes=0,
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
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    after = _key_from(page_token) if page_token else ("", -1, "")
    waiting = sorted((p for p in partitions if _key(p) > after), key=_key)
    return waiting[:size], len(waiting) > size


def token_after(name: TopicIdPartition) -> str:
    """Return the token of the page that begins after this partition."""
    key = name.topic, name.partition, name.topic_id.hex
    return base64.urlsafe_b64encode("/".join(map(str, key)).encode("ascii")).decode("ascii")


def _key(partition: Partition) -> Key:
    name = partition.topic_id_partition
    return name.topic, name.partition, name.topic_id.hex


def _key_from(token: str) -> Key:
    try:
        topic, partition, topic_id = (
            base64.urlsafe_b64decode(token.encode("ascii")).decode("ascii").split("/")
        )
        return topic, int(partition), topic_id
    except (ValueError, binascii.Error) as e:
        raise InvalidRequestError(
            "page_token: invalid; use one that this call returned, or none for the first page"
        ) from e


def copy_lag_of(partitions: Sequence[Partition], broker_id: int, now_ms: int) -> CopyLag:
    """Sum up what the latest passes left uncopied."""
    uncopied = [partition.copy.uncopied for partition in partitions]
    waiting = [each for each in uncopied if each.segments]
    dated = [
        (each.oldest_timestamp_ms, each.local_retention_ms)
        for each in waiting
        if each.oldest_timestamp_ms is not None
    ]
    used = [(now_ms - at_ms) / kept_ms for at_ms, kept_ms in dated if kept_ms]
    return CopyLag(
        broker_id,
        len(partitions),
        len(waiting),
        sum(any(map(holds_back, partition.copy.problems)) for partition in partitions),
        sum(each.segments for each in waiting),
        sum(each.size_bytes for each in waiting),
        min((at_ms for at_ms, _ in dated), default=None),
        max(used, default=None),
        unchecked_partitions=sum(map(_is_unchecked, partitions)),
        lost_partitions=sum(bool(partition.copy.lost) for partition in partitions),
        earlier_histories=sum(map(_has_earlier_history, partitions)),
    )


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


def _history_problem(local: LocalPartition, log: LocalLog, tier: Tier) -> list[Problem]:
    found = _earlier_history(log, tier)
    if found is None:
        return []
    name = local.topic_id_partition
    reason = (
        f"the tier has offsets {found[0]} to {found[1]} of an earlier history: this log begins in "
        f"leader epoch {log.lineage.entries[0].leader_epoch}, on an empty disk, and readers do not "
        f"get them. Restore the log from a replica, or delete them by `sediment partitions "
        f"drop-history {name.topic} {name.partition}`"
    )
    return [Problem(ProblemKind.EARLIER_HISTORY, str(local.found.path), reason, found[0])]


def _is_unchecked(partition: Partition) -> bool:
    """Return whether the partition may have changed since its latest pass."""
    tier = partition.tier
    return tier.cached.known is None or (
        tier.polled_revision is not None and tier.polled_revision != (tier.cached.revision or 0)
    )
