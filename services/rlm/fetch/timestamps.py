"""Find the first record at or after a time, in segments of the tier and of the log."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from services.api.calls import current_call
from services.api.lineage import SegmentLineage
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import INT64_MAX
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.records.batches import Batch, BatchError
from services.records.decode import UnreadableRecordsError, records_of
from services.records.index_files import first_offset_since
from services.records.runs import BatchRun
from services.rlm.fetch.errors import DamagedLogError, ReadTimeoutError
from services.rlm.fetch.index_cache import damaged_segment_error, unreadable_batch_error
from services.rlm.fetch.partition_view import PartitionView
from services.rlm.fetch.segment_reader import local_runs
from services.rlm.fetch.tier_calls import TierWait
from services.rlm.kafka_log.indexes import last_indexed_ms, offset_before
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_READ_BYTES = 256 * 1024
"""About how much is read from an entry of the time index to the record: entries are 4 KiB apart."""

_RECORDS_AT_ONCE = 10_000
"""So many are read between two checks whether the caller still waits."""


@dataclass(frozen=True, slots=True)
class TimedRecord:
    """The offset, time and leader epoch of a record."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def first_in_tier(
    view: PartitionView,
    rlmm: RemoteLogMetadataManager,
    time_ms: int,
    from_offset: int,
) -> TimedRecord | None:
    """Find the first record at or after `time_ms` in segments that begin before the local log.

    Unlike in Kafka the search continues after a segment whose times match but whose offsets do not.

    Source: RemoteLogManager.findOffsetByTimestamp.

    Raises:
        ReadTimeoutError: if the time of the view is over.
        RemoteStorageError: if the tier cannot be read, or a segment is damaged.
    """
    local_start = INT64_MAX if view.log is None else view.log.log_start_offset
    if from_offset >= local_start:
        return None
    lineage = view.lineage()
    if not lineage.entries:
        return None
    valid = SegmentLineage(lineage, view.bounds().log_end_offset)
    name = view.partition.topic_id_partition
    segments = all_segments(rlmm, name, states=[_FINISHED], min_offset=from_offset)
    for segment in _in_slots(view, segments):
        if view.calls.wait.left_s <= 0:
            raise ReadTimeoutError(f"{name}: no record of time {time_ms} or later was found yet")
        if segment.start_offset >= local_start:
            return None
        if segment.max_timestamp_ms >= time_ms and valid.contains(segment):
            record = _in_segment(view, segment, time_ms, from_offset)
            if record is not None:
                return record
    return None


def _in_slots(
    view: PartitionView, segments: Iterator[RemoteLogSegmentMetadata]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the segments; a page of them is read within a slot for remote reads."""
    while True:
        with view.calls.slot():
            segment = next(segments, None)
        if segment is None:
            return
        yield segment


def _in_segment(
    view: PartitionView, segment: RemoteLogSegmentMetadata, time_ms: int, from_offset: int
) -> TimedRecord | None:
    with view.calls.slot():
        times = view.calls.call(lambda: view.remote.indexes.index(segment, IndexType.TIMESTAMP))
        since = first_offset_since(times, segment.start_offset, segment.end_offset, time_ms)
        first = max(since, from_offset)
        view.calls.call(lambda: view.remote.load_index(segment, first))
        runs = view.remote.runs(segment, first, _every_batch, _READ_BYTES, wait=view.calls.wait)
        try:
            with closing(runs):
                return _first_of(_batches(runs), time_ms, from_offset, view.calls.wait)
        except BatchError as e:
            raise unreadable_batch_error(segment, e) from e
        except UnreadableRecordsError as e:
            raise damaged_segment_error(segment, f"{e} of the copied log") from e


def first_in_log(
    log: LocalLog, time_ms: int, from_offset: int, wait: TierWait
) -> TimedRecord | None:
    """Find the first record at or after `time_ms` in the local log.

    Source: UnifiedLog.searchOffsetInLocalLog.

    Raises:
        DamagedLogError: if a batch is damaged, or cannot be decoded.
        LogFileError, SegmentVanishedError: if a segment cannot be read.
    """
    for segment in log.segments:
        if segment.is_rolled and segment.end_offset < from_offset:
            continue
        largest_ms = last_indexed_ms(segment) if segment.is_rolled else None
        if largest_ms is not None and largest_ms < time_ms:
            continue
        first = max(offset_before(segment, time_ms), from_offset)
        record = _first_of(_local(log, segment, first), time_ms, from_offset, wait)
        if record is not None:
            return record
    return None


def record_of_greatest_time(log: LocalLog, wait: TierWait) -> TimedRecord | None:
    """Find the first local record with the greatest time; None if no record has a time.

    Source: UnifiedLog.fetchOffsetByTimestamp, MAX_TIMESTAMP.

    Raises:
        DamagedLogError, LogFileError, SegmentVanishedError: as first_in_log.
    """
    largest_ms = {segment: _largest_ms(log, segment) for segment in log.segments}
    newest = max(log.segments, key=largest_ms.__getitem__)
    if largest_ms[newest] < 0:
        return None
    batches = _local(log, newest, offset_before(newest, largest_ms[newest]))
    return _first_of(batches, largest_ms[newest], 0, wait)


def _largest_ms(log: LocalLog, segment: LocalSegment) -> int:
    indexed_ms = last_indexed_ms(segment) if segment.is_rolled else None
    if indexed_ms is not None:
        return indexed_ms
    # Before the last entry of the index nothing has a greater time than that entry.
    first = offset_before(segment, INT64_MAX)
    return max((b.max_timestamp_ms for b in _local(log, segment, first)), default=-1)


def _local(log: LocalLog, segment: LocalSegment, offset: int) -> Iterator[Batch]:
    try:
        yield from _batches(local_runs(segment, offset, log.log_end_offset, _every_batch))
    except BatchError as e:
        if e.kind is ProblemKind.LIMIT_EXCEEDED:
            raise LogFileError(e.kind, segment.log_path, str(e), e.offset) from e
        raise DamagedLogError(f"{segment.log_path}: {e}") from e


def _batches(runs: Iterable[BatchRun]) -> Iterator[Batch]:
    for run in runs:
        yield from run.batches()


def _every_batch(_: int) -> bool:
    return True


def _first_of(
    batches: Iterable[Batch], time_ms: int, from_offset: int, wait: TierWait
) -> TimedRecord | None:
    """Find the first record; control records count, as in Kafka."""
    for batch in batches:
        if batch.max_timestamp_ms < time_ms:
            continue
        records = enumerate(records_of(batch, DEFAULT_LIMIT_BYTES, piecewise=True))
        for number, each in records:
            if each.timestamp_ms >= time_ms and each.offset >= from_offset:
                return TimedRecord(each.timestamp_ms, each.offset, batch.leader_epoch)
            if number % _RECORDS_AT_ONCE == 0:
                _require_time(wait, batch)
    return None


def _require_time(wait: TierWait, batch: Batch) -> None:
    if wait.left_s <= 0 or not current_call().is_active():
        raise ReadTimeoutError(f"no record was found yet in the batch at {batch.base_offset}")
