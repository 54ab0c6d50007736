"""Read on the driver what the tier has of a partition: lineage, reach, aborted transactions."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from services.api.errors import (
    CorruptSegmentError,
    InvalidRangeError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import Lineage, parse_checkpoint
from services.api.partitions import PartitionState
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.records.index_files import (
    AbortedTxn,
    OffsetIndex,
    first_offset_since,
    open_transactions,
    parse_aborted_txns,
)
from spark_jobs.connections import Services
from spark_jobs.records.options import RecordsOptions
from spark_jobs.records.plan import (
    Extent,
    Piece,
    Reach,
    cut,
    pieces_of,
    reach_of,
    tasks_of,
)
from spark_jobs.source_options import bad_option

_THREADS = 8
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True)
class TierReader:
    """RLMM and RSM."""

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        """Read an index file whole.

        Raises:
            RemoteResourceNotFoundError: the segment, or its transaction index, is not in the store.
        """
        return b"".join(self.rsm.fetch_index(segment, kind))

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        data = self.index(segment, IndexType.OFFSET)
        with _damage_named(segment, IndexType.OFFSET):
            return OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)


@contextmanager
def connected(services: Services) -> Iterator[TierReader]:
    with services.connected_rlmm() as rlmm, services.connected_rsm() as rsm:
        yield TierReader(rlmm, rsm)


@dataclass(frozen=True, slots=True)
class PartitionReach:
    """What can be read of a partition.

    Attributes:
        reach: of the finished segments, from the offset that was asked for.
        end: exclusive; with read_committed before the first transaction that the tier cannot
            decide, because its end is not in the tier yet.
        state: RLMM's.
        lineage: the leader epochs by which the segments were chosen; empty without a segment.
    """

    topic_id_partition: TopicIdPartition
    reach: Reach
    end: int
    state: PartitionState
    lineage: Lineage


def wanted_partitions(tier: TierReader, options: RecordsOptions) -> list[TopicIdPartition]:
    """Find the partitions that the options name.

    A name of a topic that was deleted and created again means the one that is not being deleted.

    Raises:
        InvalidRequestError: RLMM does not know a topic or partition, or a name has several ids;
            names the option.
    """
    found: dict[TopicIdPartition, None] = {}
    deleted: set[TopicIdPartition] = set()
    for topic in options.topics or ("",):
        for summary in all_partitions(tier.rlmm, topic=topic):
            tp = summary.topic_id_partition
            if not options.topic_ids or tp.topic_id in options.topic_ids:
                found[tp] = None
                if summary.delete_state is not None:
                    deleted.add(tp)
        named = [tp for tp in found if not topic or tp.topic == topic]
        ids = _ids_of(topic, named, deleted)
        for tp in named:
            if tp.topic_id not in ids:
                del found[tp]
    kept = [tp for tp in found if not options.partitions or tp.partition in options.partitions]
    missing = sorted(set(options.partitions) - {tp.partition for tp in kept})
    if missing:
        raise bad_option("partition", f"the tier has no partition {missing[0]} of these topics")
    return sorted(kept, key=lambda tp: (tp.topic, tp.topic_id, tp.partition))


def _ids_of(
    topic: str, named: Sequence[TopicIdPartition], deleted: Collection[TopicIdPartition]
) -> set[UUID]:
    """Return the ids that a name means; "": all of them."""
    ids = {tp.topic_id for tp in named}
    if not ids:
        option, name = ("topic", topic) if topic else ("topicId", "with this id")
        raise bad_option(option, f"RLMM knows no topic {name}; `sediment topics list` lists them")
    if not topic or len(ids) == 1:
        return ids
    kept = {tp.topic_id for tp in named if tp not in deleted}
    if len(kept) != 1:
        shown = ", ".join(sorted(map(uuid_to_text, ids)))
        raise bad_option(
            "topic", f"several topics have the name {topic}; give one as topicId: {shown}"
        )
    return kept


def read_reach(
    tier: TierReader,
    tp: TopicIdPartition,
    from_offset: int | None,
    is_committed: bool,
    *,
    is_exact: bool = False,
) -> PartitionReach:
    """Read how far a partition can be read from an offset on; None for the tier's first.

    Args:
        is_exact: False: begin at the first offset from there on that a segment has.
    """
    state = tier.rlmm.partition_state(tp).value
    start = max(from_offset or 0, state.log_start_offset)
    segments = list(all_segments(tier.rlmm, tp, states=[_FINISHED], min_offset=start))
    if not segments:
        return PartitionReach(tp, Reach((), start, start), start, state, Lineage())
    lineage = _lineage(tier, segments, state)
    reach = reach_of(segments, lineage, state.gaps, start, is_exact=is_exact)
    end = _stable_end(tier, reach) if is_committed and reach.extents else reach.end
    return PartitionReach(tp, reach, max(min(end, reach.end), reach.first), state, lineage)


def require_range(found: PartitionReach, first: int, end: int, hint: str) -> None:
    """Raise InvalidRangeError if some offsets from `first` to `end`, exclusive, are not there."""
    if found.reach.first <= first and found.end >= end:
        return
    tp = found.topic_id_partition
    raise InvalidRangeError(
        f"{tp.topic}-{tp.partition}: offsets {first} to {end - 1} were to be read, the "
        f"tier has {found.reach.first} to {found.end - 1}; retention or `sediment topics "
        f"delete` may have deleted the others. {hint}"
    )


def _lineage(
    tier: TierReader, segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState
) -> Lineage:
    """Return the leader epochs that the log had when the newest segment was copied, or later.

    A report of an earlier leader than that of the newest segment does not overrule it.
    """
    newest = max(segments, key=lambda s: (s.segment_leader_epochs[-1].leader_epoch, s.end_offset))
    data = tier.index(newest, IndexType.LEADER_EPOCH)
    with _damage_named(newest, IndexType.LEADER_EPOCH):
        lineage = parse_checkpoint(data.decode("ascii"))
    ours, reported = lineage.latest_epoch, state.lineage.latest_epoch
    if reported is None or (ours is not None and ours > reported):
        return lineage
    return lineage.merged_with_report(state.lineage)


def _stable_end(tier: TierReader, reach: Reach) -> int:
    """Return the first offset of a transaction that is open at the end of the reach, or its end.

    A segment that is not read to its end has the open transactions of another leader's log.
    """
    whole = [extent for extent in reach.extents if extent.last == extent.segment.end_offset]
    if not whole:
        return reach.first
    last = whole[-1].segment
    data = tier.index(last, IndexType.PRODUCER_SNAPSHOT)
    with _damage_named(last, IndexType.PRODUCER_SNAPSHOT):
        return min(open_transactions(data).values(), default=last.end_offset + 1)


def plan_tasks(
    tier: TierReader, options: RecordsOptions, of: PartitionReach, first: int, end: int
) -> list[list[Piece]]:
    """Plan the tasks that read a partition from `first` to `end`, exclusive."""
    aborted = _aborted(tier, of.reach.extents, first, end) if options.is_committed else []
    extents = list(_since(tier, options, cut(of.reach.extents, first, end)))
    pieces = (
        piece
        for extent in extents
        for piece in pieces_of(
            extent,
            aborted,
            None if extent.is_whole else tier.offset_index(extent.segment),
            options.split_bytes,
        )
    )
    return tasks_of(pieces, options.split_bytes)


def _since(
    tier: TierReader, options: RecordsOptions, extents: Iterable[Extent]
) -> Iterator[Extent]:
    """Leave out extents that are older than `fromTime`, and the beginning of the first other."""
    is_first = options.from_time_ms is not None
    for extent in extents:
        segment, since = extent.segment, options.from_time_ms
        if since is not None and 0 <= segment.max_timestamp_ms < since:
            continue
        if is_first and since is not None:
            is_first = False
            times = tier.index(segment, IndexType.TIMESTAMP)
            first = max(
                extent.first,
                first_offset_since(times, segment.start_offset, segment.end_offset, since),
            )
            if first > extent.last:
                continue
            yield replace(extent, first=first)
        else:
            yield extent


def _aborted(tier: TierReader, extents: Sequence[Extent], first: int, end: int) -> list[AbortedTxn]:
    """Read the aborted transactions with records from `first` to `end`, exclusive.

    A transaction is in the index of the segment with its end, perhaps far behind its records: the
    search goes on until an entry shows that all that began before `end` have ended.

    Source: TransactionIndex.collectAbortedTxns.
    """
    wanted = [e for e in extents if e.last >= first and not e.segment.txn_idx_empty]
    found = set[AbortedTxn]()
    with ThreadPoolExecutor(_THREADS) as pool:
        for at in range(0, len(wanted), _THREADS):
            found.update(*pool.map(partial(_aborted_in, tier), wanted[at : at + _THREADS]))
            if any(txn.last_stable_offset >= end for txn in found):
                break
    return sorted(txn for txn in found if txn.last_offset >= first and txn.first_offset < end)


def _aborted_in(tier: TierReader, extent: Extent) -> list[AbortedTxn]:
    """Read the aborted transactions that end in an extent."""
    segment = extent.segment
    try:
        data = tier.index(segment, IndexType.TRANSACTION)
    except RemoteResourceNotFoundError:
        return []  # no transaction was aborted in it
    with _damage_named(segment, IndexType.TRANSACTION):
        found = parse_aborted_txns(data)
    return [txn for txn in found if extent.first <= txn.last_offset <= extent.last]


@contextmanager
def _damage_named(segment: RemoteLogSegmentMetadata, kind: IndexType) -> Iterator[None]:
    """Name the segment of an index that cannot be parsed."""
    try:
        yield
    except RemoteStorageError as e:
        if not isinstance(e, InvalidRequestError):
            raise
        raise _damaged(segment, kind, e) from e
    except ValueError as e:
        raise _damaged(segment, kind, e) from e


def _damaged(
    segment: RemoteLogSegmentMetadata, kind: IndexType, error: Exception
) -> CorruptSegmentError:
    name = segment.remote_log_segment_id
    return CorruptSegmentError(
        f"{name}: {kind.value} index: {error}; `sediment scrub --topic "
        f"{name.topic_id_partition.topic}` names damaged objects"
    )
