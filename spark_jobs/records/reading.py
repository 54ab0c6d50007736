"""Read pieces of segments on an executor: bytes, batches, records, Arrow."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.common.retry import RETRIABLE_ERRORS
from services.records.batches import Batch, BatchError, Claims, StreamWindow, verified, walk_batches
from services.records.columns import RecordsBuilder
from services.records.decode import UnreadableRecordsError, records_of
from services.records.index_files import AbortedTxn, OffsetIndex, first_offset_since
from services.rpc.client.direct import DirectReader
from spark_jobs.records.options import RecordsOptions
from spark_jobs.records.plan import Extent, Piece, pieces_of

_BEHIND_BYTES = 64 * 1024


Chunks = Iterator[bytes | memoryview]
Fetch = Callable[[RemoteLogSegmentMetadata, int, int], Chunks]
"""Read a range of a log, the positions of its first and last byte given."""


def read_pieces(
    rsm: RemoteStorageManager, options: RecordsOptions, pieces: Sequence[Piece]
) -> Iterator[pa.RecordBatch]:
    """Read the records of a task, with one batch of Kafka's and one of Arrow's in memory.

    Args:
        rsm: retries its calls.

    Raises:
        CorruptSegmentError: a batch is damaged, or cannot be decoded within the limit; names the
            segment and the offsets.
    """
    if not options.direct_reads:
        yield from _read_pieces(rsm, rsm.fetch_log_segment, options, pieces)
        return
    with closing(DirectReader(rsm)) as direct:
        yield from _read_pieces(rsm, direct.fetch_log_segment, options, pieces)


def _read_pieces(
    rsm: RemoteStorageManager, fetch: Fetch, options: RecordsOptions, pieces: Sequence[Piece]
) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        segment = piece.extent.segment
        made = RecordsBuilder(segment.topic_id_partition, options.max_batch_bytes)
        try:
            for batch in _batches(rsm, fetch, options, piece):
                made.add(batch, piece.extent.first, piece.extent.last)
                if made.is_full:
                    yield _chosen(made.rows(), options)
                    made = RecordsBuilder(segment.topic_id_partition, options.max_batch_bytes)
            if not made.is_empty:
                yield _chosen(made.rows(), options)
        except UnreadableRecordsError as e:
            raise CorruptSegmentError(
                f"{_name(segment)}: {e}. Its CRC is valid, so a producer sent it like this; if you "
                "trust it, raise the option maxBatchBytes"
            ) from e
        except BatchError as e:
            topic = segment.topic_id_partition.topic
            raise CorruptSegmentError(
                f"{_name(segment)}: {e} of the copied log; `sediment scrub --topic {topic}` "
                "verifies the topic's segments and names damaged objects"
            ) from e
        except RemoteResourceNotFoundError as e:
            raise RemoteResourceNotFoundError(
                f"{_name(segment)}: {e}. Retention may have deleted it since the read began; read "
                "again from the present log start"
            ) from e


def _chosen(rows: pa.RecordBatch, options: RecordsOptions) -> pa.RecordBatch:
    return rows if options.include_headers else rows.drop_columns(["headers"])


def offset_since(
    rsm: RemoteStorageManager, options: RecordsOptions, extents: Iterable[Extent], time_ms: int
) -> int | None:
    """Return the first offset whose record is of this time or later; None if there is none.

    Args:
        rsm: retries its calls.

    Source: Kafka's UnifiedLog.fetchOffsetByTimestamp.
    """
    for extent in extents:
        segment = extent.segment
        if 0 <= segment.max_timestamp_ms < time_ms:
            continue
        times = b"".join(rsm.fetch_index(segment, IndexType.TIMESTAMP))
        since = first_offset_since(times, segment.start_offset, segment.end_offset, time_ms)
        rest = replace(extent, first=max(extent.first, since))
        if rest.first > rest.last:
            continue
        [piece] = pieces_of(rest, (), _offset_index(rsm, segment), INT64_MAX)
        with closing(_batches(rsm, rsm.fetch_log_segment, options, piece, time_ms)) as batches:
            for batch in batches:
                for record in records_of(batch, options.max_batch_bytes, piecewise=True):
                    if rest.first <= record.offset <= rest.last and record.timestamp_ms >= time_ms:
                        return record.offset
    return None


def _batches(
    rsm: RemoteStorageManager,
    fetch: Fetch,
    options: RecordsOptions,
    piece: Piece,
    since_ms: int | None = None,
) -> Generator[Batch]:
    """Read the verified batches of a piece that have records to be read, of a time or later."""
    extent, segment = piece.extent, piece.extent.segment
    aborted: dict[int, list[AbortedTxn]] = {}
    for txn in piece.aborted:
        aborted.setdefault(txn.producer_id, []).append(txn)
    start = _start_position(rsm, piece)
    size = segment.segment_size_in_bytes
    window = StreamWindow(
        _resumed(fetch, segment), size, piece.end_position - start + _BEHIND_BYTES
    )
    with closing(window):
        base, claims = segment.start_offset, Claims.of(segment)
        for batch in walk_batches(window, start, size, base, verify=False, claims=claims):
            if batch.position >= piece.end_position or batch.base_offset > extent.last:
                return
            if batch.position < piece.start_position or batch.last_offset < extent.first:
                continue
            is_older = since_ms is not None and batch.max_timestamp_ms < since_ms
            if batch.is_control or is_older or _is_aborted(batch, aborted):
                continue
            if batch.size_bytes > options.max_batch_bytes:
                raise UnreadableRecordsError(
                    batch, f"has more than the limit of {options.max_batch_bytes} bytes"
                )
            yield verified(window, batch)


def _start_position(rsm: RemoteStorageManager, piece: Piece) -> int:
    """Return the position of a batch at or before the beginning of the piece."""
    if piece.start_position == 0:
        return 0
    return _offset_index(rsm, piece.extent.segment).position_before(piece.start_position)


def _offset_index(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
    data = b"".join(rsm.fetch_index(segment, IndexType.OFFSET))
    try:
        return OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
    except ValueError as e:
        raise CorruptSegmentError(f"{_name(segment)}: OFFSET index: {e}") from e


def _is_aborted(batch: Batch, aborted: dict[int, list[AbortedTxn]]) -> bool:
    """Return whether a batch is of an aborted transaction, both ends of which are inclusive."""
    return batch.is_transactional and any(
        txn.first_offset <= batch.base_offset <= txn.last_offset
        for txn in aborted.get(batch.producer_id, ())
    )


def _resumed(fetch: Fetch, segment: RemoteLogSegmentMetadata) -> Callable[[int, int], Chunks]:
    """Return how to open a range of a log; a stream that breaks off is resumed behind its bytes."""

    def open_range(start: int, end: int) -> Chunks:
        at = start
        while at <= end:
            resumed_at = at
            try:
                for chunk in fetch(segment, at, end):
                    at += len(chunk)
                    yield chunk
                return
            except RETRIABLE_ERRORS:
                if at == resumed_at:  # `fetch` has retried for long
                    raise

    return open_range


def _name(segment: RemoteLogSegmentMetadata) -> str:
    name = segment.remote_log_segment_id
    return f"{name}, offsets {segment.start_offset} to {segment.end_offset}"
