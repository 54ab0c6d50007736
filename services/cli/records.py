"""Read and decode the records of a partition, each batch within a limit of memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import Any

from crc32c import crc32c
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords
from kafka.record.util import decode_varint

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
    RecordSource,
    RemoteLogManager,
)
from services.cli.output import EXIT_FAILED, CommandError
from services.common.inflate import (
    DEFAULT_LIMIT_BYTES,
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    inflate,
)
from services.records.batches import HEADER_BYTES, Batch, BatchError, walk_batches
from services.records.committed import CommittedReader

FETCH_BYTES = 1024 * 1024

MAX_RECORD_HEADERS = 10_000
"""Most headers of a record. Records are decoded one by one, so this bounds the memory of a batch.

An empty header has 2 bytes in a batch and takes 80 when it is decoded, and more when it is printed.
"""


class TooManyHeadersError(Exception):
    """The error if a record has more than MAX_RECORD_HEADERS."""


class UnreadableBatchError(Exception):
    """The error if a batch cannot be decoded; the batches after it can."""


def raise_unreadable(error: UnreadableBatchError) -> None:
    """End the read at a batch that cannot be decoded."""
    raise CommandError(str(error), EXIT_FAILED) from error


def decoded(
    manager: RemoteLogManager,
    tp: TopicIdPartition,
    offset: int,
    batch_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    unreadable: Callable[[UnreadableBatchError], None] = raise_unreadable,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Iterator[tuple[Any, RecordSource | None]]:
    """Read the records from `offset` to the end of the log, each with its source.

    With READ_COMMITTED records of aborted transactions are left out.

    Args:
        batch_limit_bytes: most bytes that the records of one batch may have, decompressed.
        unreadable: called with each batch that cannot be decoded; the read continues after it.

    Raises:
        CommandError: a fetch failed; names the offset.
    """
    while True:
        answer = _fetch_once(manager, tp, offset, isolation)
        if not answer.runs:
            return
        reader = CommittedReader()
        reader.add(answer.aborted)
        for source, data in answer.runs:
            for batch in _batches(tp, data):
                if reader.skips(batch):
                    offset = max(offset, batch.last_offset + 1)
                    continue
                try:
                    for record in _records_of(batch, batch_limit_bytes):
                        if record.offset >= offset:
                            yield record, source
                except _UNREADABLE as e:
                    unreadable(_unreadable(tp, batch, batch_limit_bytes, e))
                offset = max(offset, batch.last_offset + 1)
        if offset >= answer.end_offset:
            return


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer to one fetch.

    Attributes:
        runs: whole batches, by their source.
        end_offset: the offset after the last one that the reader may get.
    """

    runs: list[tuple[RecordSource | None, bytes]]
    aborted: list[AbortedTransaction]
    end_offset: int


def _fetch_once(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int, isolation: IsolationLevel
) -> _Answer:
    wanted = (FetchPartition(tp, offset, FETCH_BYTES),)
    request = FetchRequest(wanted, FETCH_BYTES, isolation)
    parts = list(manager.fetch(request))
    for part in parts:
        if part.error is not FetchError.NONE:
            reason = f"{tp.topic}-{tp.partition} at offset {offset}: {part.error.value}"
            raise CommandError(f"{reason}: {part.error_message}", EXIT_FAILED)
    filled = [part for part in parts if part.record_batches]
    runs = [
        (source, b"".join(part.record_batches for part in run))
        for source, run in groupby(filled, key=attrgetter("source"))
    ]
    aborted = [transaction for part in parts for transaction in part.aborted_transactions]
    committed = isolation is IsolationLevel.READ_COMMITTED
    ends = (part.last_stable_offset if committed else part.high_watermark for part in parts)
    return _Answer(runs, aborted, max(ends, default=-1))


_UNREADABLE = (InflatedTooLargeError, TooManyHeadersError, DamagedDataError, CorruptRecordError)


class _MemoryWindow:
    """Read batches that are in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position : position + length]


def _batches(tp: TopicIdPartition, data: bytes) -> Iterator[Batch]:
    """Read batches and check their CRCs.

    Raises:
        CommandError: if a batch is damaged; the batches behind it cannot be found.
    """
    try:
        yield from walk_batches(_MemoryWindow(data), 0, len(data), 0, verify=True)
    except BatchError as e:
        reason = f"{tp.topic}-{tp.partition}: RLM sent a damaged batch: {e}"
        raise CommandError(
            f"{reason}; `sediment scrub` checks the stored copies", EXIT_FAILED
        ) from e


_CODEC_BITS = 0x07


def _records_of(batch: Batch, limit_bytes: int) -> Iterator[Any]:
    """Decode the records of a batch, one after another; a control batch has none for clients.

    kafka-python decompresses without a limit, so it gets the batch without compression.
    """
    if batch.is_control:
        return
    codec = _codec_of(batch)
    data = bytes(batch.data)
    if codec is not Codec.NONE:
        data = _uncompressed(data, inflate(codec, data[HEADER_BYTES:], limit_bytes))
    _check_headers(data)
    yield from MemoryRecords(data).next_batch()


def _check_headers(data: bytes) -> None:
    """Read the counts of headers of an uncompressed batch, before a record of it is decoded.

    Numbers are read as kafka-python reads them. At a record that it refuses this check ends.

    Raises:
        TooManyHeadersError: a record has too many.
    """
    at = HEADER_BYTES
    try:
        while at < len(data):
            length, start = decode_varint(data, at)
            count, at = _header_count(data, start)
            if count > MAX_RECORD_HEADERS:
                raise TooManyHeadersError(f"a record has {count} headers")
            if start + length < at:
                return
            at = start + length
    except (IndexError, ValueError):
        return


def _header_count(data: bytes, at: int) -> tuple[int, int]:
    """Read the count of headers of the record at `at`, and the position behind it."""
    for _ in ("attributes", "timestamp", "offset"):
        _, at = decode_varint(data, at)
    for _ in ("key", "value"):
        size, at = decode_varint(data, at)
        at += max(size, 0)  # null has the size -1
    count, at = decode_varint(data, at)
    return int(count), int(at)


def _codec_of(batch: Batch) -> Codec:
    number = batch.attributes & _CODEC_BITS
    try:
        return Codec(number)
    except ValueError as e:
        raise DamagedDataError(f"unknown compression {number}") from e


_FRONT = Struct(">qiib")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_LENGTH_COUNTED_FROM = 12


def _uncompressed(compressed: bytes, records: bytes) -> bytes:
    """Write a batch again with `records` uncompressed, and the length and CRC of that."""
    base_offset, _, leader_epoch, magic = _FRONT.unpack_from(compressed)
    attributes_at = _FRONT.size + _CRC.size
    (attributes,) = _ATTRIBUTES.unpack_from(compressed, attributes_at)
    rest = compressed[attributes_at + _ATTRIBUTES.size : HEADER_BYTES]
    covered = b"".join((_ATTRIBUTES.pack(attributes & ~_CODEC_BITS), rest, records))
    length = attributes_at + len(covered) - _LENGTH_COUNTED_FROM
    front = _FRONT.pack(base_offset, length, leader_epoch, magic)
    return b"".join((front, _CRC.pack(crc32c(covered)), covered))


def _unreadable(
    tp: TopicIdPartition, batch: Batch, limit_bytes: int, error: Exception
) -> UnreadableBatchError:
    number = batch.attributes & _CODEC_BITS
    codec = Codec(number).name.lower() if number in set(Codec) else f"codec {number}"
    at = (
        f"{tp.topic}-{tp.partition}: batch at offset {batch.base_offset} to {batch.last_offset} "
        f"({codec}, {batch.size_bytes} bytes)"
    )
    if isinstance(error, InflatedTooLargeError):
        return UnreadableBatchError(
            f"{at} inflates to more than the limit of {limit_bytes} bytes; skipped. If you trust "
            "its producer, raise --max-batch-bytes"
        )
    if isinstance(error, TooManyHeadersError):
        return UnreadableBatchError(
            f"{at} is not decoded: {error}, more than the limit of {MAX_RECORD_HEADERS}; skipped. "
            "Read it with a consumer of Kafka if you trust its producer"
        )
    return UnreadableBatchError(
        f"{at} cannot be decoded: {error}; skipped. The CRC is valid, so the producer sent it like "
        "this"
    )
