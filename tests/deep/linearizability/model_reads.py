"""What a read is answered in a given state of the partition."""

from bisect import bisect_right
from uuid import UUID

from services.api.remote_log_metadata_manager import SegmentPage
from services.api.segments import RemoteLogSegmentMetadata
from tests.deep.linearizability.operations import (
    Answered,
    HighestOffset,
    Listed,
    ListSegments,
    LogSize,
    LookUp,
    NextWithTxnIndex,
    Read,
    Refused,
)
from tests.deep.linearizability.partition import (
    DELETE_FINISHED,
    FINISHED,
    LeaderEpoch,
    Partition,
    Stored,
)


def answered(partition: Partition, operation: Read) -> Answered | Listed | Refused:
    if not partition.is_known:
        return Refused("RemoteResourceNotFoundError")
    revision = partition.revision
    match operation:
        case LookUp(epoch, offset):
            return Answered(_segment_at(partition, epoch, offset), revision)
        case NextWithTxnIndex(epoch, offset):
            return Answered(_next_with_txn_index(partition, epoch, offset), revision)
        case HighestOffset(epoch):
            highest = partition.epochs.get(epoch, LeaderEpoch()).highest_offset
            return Answered(None if highest < 0 else highest, revision)
        case LogSize(epoch):
            segments = _listed(partition, ListSegments(epoch))
            return Answered(sum(max(s.segment_size_in_bytes, 0) for s in segments), revision)
        case ListSegments():
            return Listed(_page(partition, operation))


def _page(partition: Partition, query: ListSegments) -> SegmentPage:
    revision, log_start = partition.revision, partition.log_start_offset
    if query.if_revision_not == revision:
        return SegmentPage((), "", revision, not_modified=True, log_start_offset=log_start)
    segments = tuple(_listed(partition, query))
    return SegmentPage(segments, "", revision, log_start_offset=log_start)


def _listed(partition: Partition, query: ListSegments) -> list[RemoteLogSegmentMetadata]:
    live = [stored.metadata for stored in partition.segments.values()]
    found = [
        each
        for each in live
        if each.state is not DELETE_FINISHED
        and (query.leader_epoch is None or query.leader_epoch in _ranges(each))
        and (not query.states or each.state in query.states)
        and (query.min_offset is None or each.end_offset >= query.min_offset)
    ]
    return sorted(found, key=_by_start)


def _ranges(metadata: RemoteLogSegmentMetadata) -> dict[int, tuple[int, int]]:
    """By leader epoch the first and the last offset."""
    return {epoch: (start, end) for epoch, start, end in metadata.epoch_ranges()}


def _segment_at(
    partition: Partition, leader_epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    """Kafka's floor entry where it reaches the offset; otherwise whoever does."""
    referenced = partition.epochs.get(leader_epoch, LeaderEpoch()).referenced
    place = bisect_right([start for start, _ in referenced], offset)
    if place:
        floor = partition.segments[referenced[place - 1][1]].metadata
        if offset <= _ranges(floor)[leader_epoch][1]:
            return floor
    return _best_of_overlapping(partition, leader_epoch, offset)


def _best_of_overlapping(
    partition: Partition, leader_epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    """In the order of finishing, the later one, but for a lower broker leader epoch."""
    best: RemoteLogSegmentMetadata | None = None
    for stored in sorted(partition.segments.values(), key=_finish):
        each = stored.metadata
        first, last = _ranges(each).get(leader_epoch, (0, -1))
        if each.state is not FINISHED or not first <= offset <= last:
            continue
        if best is None or not _is_of_older_leader(each, best):
            best = each
    return best


def _finish(stored: Stored) -> int:
    return stored.finished_revision or 0


def _is_of_older_leader(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    own, others = one.broker_leader_epoch, other.broker_leader_epoch
    return own is not None and others is not None and own < others


def _next_with_txn_index(
    partition: Partition, leader_epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    highest = partition.epochs.get(leader_epoch, LeaderEpoch()).highest_offset
    found = [
        stored.metadata
        for stored in partition.segments.values()
        if stored.metadata.state is FINISHED
        and not stored.metadata.txn_idx_empty
        and leader_epoch in _ranges(stored.metadata)
        and stored.metadata.end_offset >= offset
        and stored.metadata.start_offset <= highest
    ]
    return min(found, key=_by_start, default=None)


def _by_start(metadata: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    return metadata.start_offset, metadata.remote_log_segment_id.id
