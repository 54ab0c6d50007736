"""Read tiered records as a micro-batch stream, bounded by what has finished without a gap."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from services.api.errors import InvalidRangeError, InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.lineage import Lineage
from spark_jobs.connections import Services
from spark_jobs.records.bounds import EARLIEST
from spark_jobs.records.options import RecordsOptions
from spark_jobs.records.reading import read_pieces
from spark_jobs.records.tier import (
    PartitionReach,
    ReadRange,
    TierReader,
    connected,
    named_partitions,
    plan_tasks,
    read_reach,
    require_range,
    starting_range,
)
from spark_jobs.worker_errors import one_line_errors

Offsets = dict[TopicIdPartition, int]
"""The next offset of each partition."""

JsonOffsets = dict[str, Any]
"""As Spark stores them: by topic and topic id, then by partition. In the same way under EPOCHS the
leader epoch of the last offset before each, and under FIRST where the stream began with partitions
that were new in the last batch."""

EPOCHS = "leader epochs"
FIRST = "first offsets"
_NO_TOPICS = {EPOCHS, FIRST}
"""No names of topics: they have no topic id."""


@one_line_errors
class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read each micro-batch from the segments that have its offsets.

    The same two offsets give the same rows: a batch ends where the finished segments reach without
    a gap, and with read_committed before the first transaction that the tier cannot decide. Two
    segments have the same records of the same leader epoch. After an unclean election, by which
    the log has other records, a batch fails.
    """

    def __init__(self, services: Services, options: RecordsOptions) -> None:
        self._services = services
        self._options = options
        self._last: Offsets | None = None

    def initialOffset(self) -> JsonOffsets:
        """Return where the options begin.

        Without a partition of which the tier has nothing, if they begin at the earliest offset.
        """
        options, first = self._options, Offsets()
        with connected(self._services) as tier:
            for tp in named_partitions(tier, options):
                begun = starting_range(tier, tp, options)
                if begun.found.reach.extents or options.starting.everywhere != EARLIEST:
                    first[tp] = begun.first
        return to_json(first)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        """Return the end of what can be read, at most as far as the limit allows."""
        begin = from_json(start)
        with connected(self._services) as tier:
            ranges = self._ranges(tier, begin)
        spans = {tp: (each.first, each.end) for tp, each in ranges.items()}
        if self._last is not None:
            last = self._last
            spans = {
                tp: (first, max(min(end, last.get(tp, first)), first))
                for tp, (first, end) in spans.items()
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = limited(spans, most)
        epochs = {tp: ranges[tp].lineage.epoch_for_offset(end - 1) for tp, end in ends.items()}
        known = {tp: epoch for tp, epoch in epochs.items() if epoch is not None}
        # What is read stays as it was read, until the check of the next batch.
        same = {tp: e for tp, e in epochs_of(start).items() if ends.get(tp) in (None, begin[tp])}
        new = {tp: each.first for tp, each in ranges.items() if tp not in begin}
        same_new = {tp: o for tp, o in first_of(start).items() if ends.get(tp) in (None, begin[tp])}
        return to_json({**begin, **ends}, {**known, **same}, {**new, **same_new})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Keep the present end as that of the query.

        Where the tier has nothing, the end is its log start: a query that has not read so far fails
        as one without an end does.
        """
        options = self._options
        with connected(self._services) as tier:
            named = named_partitions(tier, options)
            self._last = {tp: starting_range(tier, tp, options).end for tp in named}

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        begin, ends = from_json(start), from_json(end)
        before, after, begin = epochs_of(start), epochs_of(end), {**first_of(end), **begin}
        with connected(self._services) as tier:
            batches = (
                _Batch(tp, begin[tp], last, before.get(tp), after.get(tp))
                for tp, last in ends.items()
            )
            ranges = [self._range(tier, each) for each in batches if each.first < each.end]
            return [InputPartition(task) for task in plan_tasks(tier, self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self._services.connected_rsm() as rsm:
            yield from read_pieces(rsm, self._options, partition.value)

    def _range(self, tier: TierReader, batch: "_Batch") -> ReadRange:
        """Return one partition's part of a batch; it must be there as it was when it was planned.

        Raises:
            InvalidRangeError: some of its offsets are gone, or have other records since an unclean
                election, and failOnDataLoss is true.
        """
        first, end = batch.first, batch.end
        found = self._reach(tier, batch.topic_id_partition, first)
        if self._options.fail_on_data_loss:
            hint = "The option failOnDataLoss=false goes on without them"
            require_range(found, first, end, hint)
            _require_same_records(batch, found.lineage)
        return ReadRange(found, found.reach.first, end)

    def _ranges(
        self, tier: TierReader, begin: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, "_Range"]:
        """Return what can be read of each partition.

        A partition that is new begins at the tier's first offset; without any it is left out.
        """
        ranges = {}
        named = named_partitions(tier, self._options)
        if self._options.fail_on_data_loss:
            _require_present(begin, named, self._options)
        for tp in named:
            partition = self._reach(tier, tp, begin.get(tp))
            first = begin.get(tp, partition.reach.first)
            if tp in begin or partition.reach.extents:
                ranges[tp] = _Range(first, max(partition.end, first), partition.lineage)
        return ranges

    def _reach(self, tier: TierReader, tp: TopicIdPartition, begin: int | None) -> PartitionReach:
        """Read how far a partition reaches; without a gap behind what the stream has read."""
        is_committed = self._options.is_committed
        return read_reach(tier, tp, begin, is_committed, is_exact=begin is not None)


@dataclass(frozen=True, slots=True)
class _Range:
    """What can be read of a partition: offsets from `first` to `end`, exclusive."""

    first: int
    end: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class _Batch:
    """A partition's part of a micro-batch.

    Attributes:
        end: exclusive.
        epoch_before, last_epoch: of the last offset before the batch, and of the last one in it,
            when they were first read; None if they are not known.
    """

    topic_id_partition: TopicIdPartition
    first: int
    end: int
    epoch_before: int | None
    last_epoch: int | None


def _require_same_records(batch: _Batch, lineage: Lineage) -> None:
    """Raise InvalidRangeError if offsets that were read have another leader epoch now.

    What comes before an offset is the same if the epoch of the offset is.
    """
    tp = batch.topic_id_partition
    for end, epoch in ((batch.first, batch.epoch_before), (batch.end, batch.last_epoch)):
        now = lineage.epoch_for_offset(end - 1)
        if None not in (epoch, now) and epoch != now:
            raise InvalidRangeError(
                f"{tp.topic}-{tp.partition}: the stream has read offset {end - 1} of the leader "
                f"epoch {epoch}, and the log has it of the leader epoch {now} since an unclean "
                "election: records that were read were overruled. The option failOnDataLoss=false "
                "goes on with the log as it is now"
            )


def _require_present(
    begin: Iterable[TopicIdPartition],
    named: Collection[TopicIdPartition],
    options: RecordsOptions,
) -> None:
    """Raise InvalidRangeError if what the stream reads was removed, or its name has another id."""
    for tp in begin:
        ids = {each.topic_id for each in named if each.topic == tp.topic}
        if ids and tp.topic_id not in ids:
            raise InvalidRangeError(
                f"the stream has read the topic {tp.topic} with the id {uuid_to_text(tp.topic_id)},"
                " which is being deleted; the option failOnDataLoss=false goes on with the topic "
                "that has its name now"
            )
        if tp not in named and options.names(tp.topic, tp.partition):
            raise InvalidRangeError(
                f"{tp.topic}-{tp.partition}: the stream has read this partition, which was removed "
                "from the tier; the option failOnDataLoss=false continues without it"
            )


def limited(ranges: Mapping[TopicIdPartition, tuple[int, int]], most: int | None) -> Offsets:
    """Return ends up to which at most `most` offsets, shared evenly, are read; None for all."""
    total = sum(end - first for first, end in ranges.values())
    if most is None or total <= most:
        return {tp: end for tp, (_, end) in ranges.items()}
    return {
        tp: first + (max((end - first) * most // total, 1) if end > first else 0)
        for tp, (first, end) in ranges.items()
    }


def to_json(
    offsets: Mapping[TopicIdPartition, int],
    epochs: Mapping[TopicIdPartition, int] | None = None,
    first: Mapping[TopicIdPartition, int] | None = None,
) -> JsonOffsets:
    """Return what Spark stores: offsets, and leader epochs and first offsets if there are any."""
    made = _by_topic(offsets)
    if epochs:
        made[EPOCHS] = _by_topic(epochs)
    if first:
        made[FIRST] = _by_topic(first)
    return made


def _by_topic(numbers: Mapping[TopicIdPartition, int]) -> JsonOffsets:
    made: JsonOffsets = {}
    for tp, number in sorted(numbers.items()):
        made.setdefault(f"{tp.topic}:{uuid_to_text(tp.topic_id)}", {})[str(tp.partition)] = number
    return made


def epochs_of(stored: JsonOffsets) -> dict[TopicIdPartition, int]:
    """Return the leader epochs."""
    return from_json(stored.get(EPOCHS, {}))


def first_of(stored: JsonOffsets) -> Offsets:
    """Return where the stream began with partitions that were new in the batch that ends here."""
    return from_json(stored.get(FIRST, {}))


def from_json(stored: JsonOffsets) -> Offsets:
    """Return the offsets of a checkpoint.

    Raises:
        InvalidRequestError: it is damaged.
    """
    offsets: Offsets = {}
    try:
        for name in stored.keys() - _NO_TOPICS:
            topic, _, topic_id = name.rpartition(":")
            for number, offset in stored[name].items():
                tp = TopicIdPartition(uuid_from_text(topic_id, "topic id"), topic, int(number))
                offsets[tp] = index(offset)
    except (AttributeError, TypeError, ValueError, InvalidRequestError) as e:
        raise InvalidRequestError(
            f"the stream's checkpoint is damaged ({e}): restore it, or begin with a new one at "
            "startingOffsets"
        ) from e
    return offsets
