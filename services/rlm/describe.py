"""Partitions as RLM sees them, page by page."""

import base64
import binascii
from collections.abc import Iterable, Sequence

from services.api.errors import InvalidRequestError, RemoteStorageError
from services.api.remote_log_manager import PartitionDescription, Problem, ProblemKind
from services.api.validation import require
from services.rlm.copying.candidates import candidate_log_segments, copied_through_offset
from services.rlm.kafka_log.errors import LogFileError, SegmentVanishedError
from services.rlm.local_log import LocalLog
from services.rlm.partition import Partition
from services.rlm.tier_view.tier import Tier

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
UNKNOWN_LEADER = -1

Key = tuple[str, int, str]


def describe(partition: Partition, broker_id: int) -> PartitionDescription:
    """One partition now. What cannot be reached is a problem in the description; the figures are
    then the last that were seen."""
    problems = list(partition.mended) + list(partition.problems)
    log, tier = None, partition.tier.last_seen
    try:
        log = partition.local.look() if partition.local else None
        tier = partition.tier.refresh()
    except LogFileError as e:
        problems.append(e.problem(held_segments=0))
    except (RemoteStorageError, SegmentVanishedError) as e:
        name = str(partition.topic_id_partition)
        problems.append(Problem(ProblemKind.STORE_UNAVAILABLE, name, str(e)))
    if log is None:
        return _only_remote(partition, tier, problems)
    known = {(p.kind, p.path) for p in problems}
    missing = log.lineage_problem
    if missing is not None and (missing.kind, missing.path) not in known:
        problems.append(missing)
    return _local(partition, log, tier, broker_id, problems)


def _local(
    partition: Partition, log: LocalLog, tier: Tier, broker_id: int, problems: Sequence[Problem]
) -> PartitionDescription:
    covered = tier.covered(log.lineage)
    # Without RLMM's own highest offset: what was expired from the tier shows as copied through.
    pending = candidate_log_segments(log, covered, covered.last)
    starts = [log.log_start_offset]
    if tier.start_offset is not None:
        starts.append(tier.start_offset)
    epoch = log.lineage.latest_epoch
    return PartitionDescription(
        topic_id_partition=partition.topic_id_partition,
        leader_id=broker_id,
        leader_epoch=-1 if epoch is None else epoch,
        log_start_offset=min(starts),
        local_log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        copied_through_offset=copied_through_offset(covered, pending),
        local_segments=len(log.segments),
        local_size_bytes=log.size_bytes,
        pending_segments=len(pending),
        pending_size_bytes=sum(segment.size_bytes for segment in pending),
        remote_segments=tier.segments,
        remote_size_bytes=tier.size_bytes,
        problems=tuple(problems),
    )


def _only_remote(
    partition: Partition, tier: Tier, problems: Sequence[Problem]
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
        copied_through_offset=end - 1,
        local_segments=0,
        local_size_bytes=0,
        pending_segments=0,
        pending_size_bytes=0,
        remote_segments=tier.segments,
        remote_size_bytes=tier.size_bytes,
        problems=tuple(problems),
    )


def page_of(
    partitions: Iterable[Partition], page_size: int, page_token: str
) -> tuple[list[Partition], str]:
    """The partitions of one page, by topic, number and topic id, and the token of the next page.

    Raises:
        InvalidRequestError: a negative size; a token of nobody's.
    """
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    after = _key_from(page_token) if page_token else ("", -1, "")
    waiting = sorted((p for p in partitions if _key(p) > after), key=_key)
    page = waiting[:size]
    return page, _token(_key(page[-1])) if len(waiting) > size else ""


def _key(partition: Partition) -> Key:
    name = partition.topic_id_partition
    return name.topic, name.partition, name.topic_id.hex


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode("/".join(map(str, key)).encode("ascii")).decode("ascii")


def _key_from(token: str) -> Key:
    try:
        topic, partition, topic_id = (
            base64.urlsafe_b64decode(token.encode("ascii")).decode("ascii").split("/")
        )
        return topic, int(partition), topic_id
    except (ValueError, binascii.Error) as e:
        raise InvalidRequestError("page_token: not one that this call gave") from e
