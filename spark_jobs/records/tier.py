"""Read on the driver what the tier has of a partition: lineage, reach, aborted transactions."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

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
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.records.index_files import (
    AbortedTxn,
    OffsetIndex,
    open_transactions,
    parse_aborted_txns,
)
from spark_jobs.connections import Services
from spark_jobs.records.bounds import LATEST
from spark_jobs.records.options import SMALLEST_SPLIT_BYTES, RecordsOptions
from spark_jobs.records.plan import (
    Extent,
    Piece,
    Reach,
    cut,
    pieces_of,
    reach_of,
    tasks_of,
)
from spark_jobs.records.reading import offset_since
from spark_jobs.source_options import bad_option

_THREADS = 8
_READ_WHAT_IS_THERE = "The option failOnDataLoss=false reads what is there"
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
        reach: of the finished segments, from the requested offset.
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


def named_partitions(tier: TierReader, options: RecordsOptions) -> list[TopicIdPartition]:
    """Find the partitions that the options name.

    A name of a topic that was deleted and created again means the one that is not being deleted.

    Raises:
        InvalidRequestError: RLMM does not know a topic or partition, or a name has several ids;
            names the option.
    """
    of_topic: dict[str, list[PartitionSummary]] = {topic: [] for topic in options.topics}
    for topic in options.topics or ("",):
        for summary in all_partitions(tier.rlmm, topic=topic):
            tp = summary.topic_id_partition
            has_id = not options.topic_ids or tp.topic_id in options.topic_ids
            if has_id and (options.pattern is None or options.names(tp.topic, tp.partition)):
                of_topic.setdefault(tp.topic, []).append(summary)
    named = [tp for topic, found in of_topic.items() for tp in _of_one_id(topic, found)]
    for topic, numbers in (options.partitions or {}).items():
        missing = sorted(numbers - {tp.partition for tp in named if tp.topic == topic})
        if missing:
            raise bad_option("assign", f"the tier has no partition {topic}-{missing[0]}")
    chosen = (tp for tp in named if options.names(tp.topic, tp.partition))
    return sorted(chosen, key=lambda tp: (tp.topic, tp.topic_id, tp.partition))


def _of_one_id(topic: str, summaries: Sequence[PartitionSummary]) -> list[TopicIdPartition]:
    """Return the partitions of the one topic that a name means."""
    tps = [each.topic_id_partition for each in summaries]
    ids = {tp.topic_id for tp in tps}
    if not ids:
        raise bad_option(
            "subscribe", f"RLMM knows no topic {topic}; `sediment topics list` lists them"
        )
    if len(ids) > 1:
        present = {
            each.topic_id_partition.topic_id for each in summaries if each.delete_state is None
        }
        if len(present) != 1:
            shown = ", ".join(sorted(map(uuid_to_text, ids)))
            raise bad_option(
                "subscribe", f"several topics have the name {topic}; give one as topicId: {shown}"
            )
        ids = present
    return [tp for tp in tps if tp.topic_id in ids]


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


@dataclass(frozen=True, slots=True, eq=False)
class ReadRange:
    """The offsets that are read of a partition, from `first` to `end`, exclusive."""

    found: PartitionReach
    first: int
    end: int


def starting_range(tier: TierReader, tp: TopicIdPartition, options: RecordsOptions) -> ReadRange:
    """Return what is read of a partition from where the options begin to the end of the tier.

    Raises:
        InvalidRequestError: the options do not state where it begins, or no record is as late.
        InvalidRangeError: that offset is gone, and failOnDataLoss is true.
    """
    bound = options.starting
    number = bound.of(tp)
    offset = None if bound.is_time or number < 0 else number
    is_exact = offset is not None and options.fail_on_data_loss
    found = read_reach(tier, tp, offset, options.is_committed, is_exact=is_exact)
    first = found.reach.first
    if is_exact:
        require_range(found, number, number, _READ_WHAT_IS_THERE)
    elif bound.is_time:
        since = offset_since(tier.rsm, options, found.reach.extents, number)
        if since is None and not options.may_match_nothing:
            raise bad_option(
                bound.option,
                f"{tp.topic}-{tp.partition} has no record of {number} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end",
            )
        first = found.end if since is None else min(since, found.end)
    elif number == LATEST:
        first = found.end
    return ReadRange(found, first, found.end)


def whole_range(tier: TierReader, tp: TopicIdPartition, options: RecordsOptions) -> ReadRange:
    """Return what is read of a partition from where the options begin to where they end.

    Raises:
        InvalidRequestError, InvalidRangeError: as starting_range.
    """
    begun = starting_range(tier, tp, options)
    found, bound = begun.found, options.ending
    end = bound.of(tp)
    if bound.is_time:
        until = offset_since(tier.rsm, options, found.reach.extents, end)
        end = found.end if until is None else until
    elif end == LATEST:
        end = found.end
    elif options.fail_on_data_loss and end > begun.first:
        require_range(found, begun.first, end, _READ_WHAT_IS_THERE)
    return replace(begun, end=max(min(end, found.end), begun.first))


def require_range(reached: PartitionReach, first: int, end: int, hint: str) -> None:
    """Raise InvalidRangeError if some offsets from `first` to `end`, exclusive, are not there."""
    if reached.reach.first <= first and reached.end >= end:
        return
    tp = reached.topic_id_partition
    raise InvalidRangeError(
        f"{tp.topic}-{tp.partition}: offsets {first} to {end - 1} were to be read, the "
        f"tier has {reached.reach.first} to {reached.end - 1}; retention or `sediment topics "
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
    tier: TierReader, options: RecordsOptions, ranges: Iterable[ReadRange]
) -> Iterator[list[Piece]]:
    """Plan the tasks that read these offsets, at least about as many as `minPartitions`."""
    extents = {each: [*cut(each.found.reach.extents, each.first, each.end)] for each in ranges}
    size_bytes = sum(
        max(extent.segment.segment_size_in_bytes, 0) for of in extents.values() for extent in of
    )
    share_bytes = max(size_bytes // options.min_partitions, SMALLEST_SPLIT_BYTES)
    split_bytes = min(options.split_bytes, share_bytes)
    for each, of in extents.items():
        aborted = _aborted(tier, each) if options.is_committed else []
        pieces = (
            piece
            for extent in of
            for piece in pieces_of(
                extent,
                aborted,
                None if extent.is_whole else tier.offset_index(extent.segment),
                split_bytes,
            )
        )
        yield from tasks_of(pieces, split_bytes)


def _aborted(tier: TierReader, of: ReadRange) -> list[AbortedTxn]:
    """Read the aborted transactions with records in a range of offsets.

    A transaction is in the index of the segment with its end, perhaps far behind its records: the
    search goes on until an entry shows that all that began before `end` have ended.

    Source: TransactionIndex.collectAbortedTxns.
    """
    first, end = of.first, of.end
    behind = (each for each in of.found.reach.extents if each.last >= first)
    indexed = [each for each in behind if not each.segment.txn_idx_empty]
    aborted = set[AbortedTxn]()
    with ThreadPoolExecutor(_THREADS) as pool:
        for at in range(0, len(indexed), _THREADS):
            aborted.update(*pool.map(partial(_aborted_in, tier), indexed[at : at + _THREADS]))
            if any(txn.last_stable_offset >= end for txn in aborted):
                break
    return sorted(txn for txn in aborted if txn.last_offset >= first and txn.first_offset < end)


def _aborted_in(tier: TierReader, extent: Extent) -> list[AbortedTxn]:
    """Read the aborted transactions that end in an extent."""
    segment = extent.segment
    try:
        data = tier.index(segment, IndexType.TRANSACTION)
    except RemoteResourceNotFoundError:
        return []  # no transaction was aborted in it
    with _damage_named(segment, IndexType.TRANSACTION):
        aborted = parse_aborted_txns(data)
    return [txn for txn in aborted if extent.first <= txn.last_offset <= extent.last]


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
