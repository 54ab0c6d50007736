"""Read and decode the records of a partition, each batch within a limit of memory."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import Any

from crc32c import crc32c
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords
from kafka.record.util import decode_varint

from services.api.errors import RetriableRemoteStorageError, ThrottledError
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
from services.common.inflate import (
    DEFAULT_LIMIT_BYTES,
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    inflate,
)
from services.records.batches import (
    HEADER_BYTES,
    Batch,
    BatchError,
    Marker,
    MemoryWindow,
    control_marker,
    walk_batches,
)
from services.records.committed import CommittedReader

FETCH_BYTES = 1024 * 1024
FOLLOW_WAIT_MS = 1_000
RETRY_PAUSE_S = 1.0

MAX_RECORD_HEADERS = 10_000
"""Most headers of a record. Records are decoded one by one, so this bounds the memory of a batch.

An empty header has 2 bytes in a batch and takes 80 when it is decoded, and more when it is printed.
"""


class TooManyHeadersError(Exception):
    """The error if a record has more than MAX_RECORD_HEADERS."""


class UnreadableBatchError(Exception):
    """The error if a batch cannot be decoded; the batches after it can."""


class ReadFailedError(Exception):
    """The error of a fetch that failed, or of bytes that are no batches.

    Attributes:
        error: Kafka's name of it; None if the bytes are damaged.
    """

    def __init__(self, message: str, error: FetchError | None = None) -> None:
        super().__init__(message)
        self.error = error


class RecordKind(Enum):
    """What a record is to a consumer of transactions.

    DATA: a record that consumers get. ABORTED: a record of an aborted transaction. COMMIT, ABORT:
    the control record that ends a transaction. CONTROL: any other control record.
    """

    DATA = "DATA"
    ABORTED = "ABORTED"
    COMMIT = "COMMIT"
    ABORT = "ABORT"
    CONTROL = "CONTROL"


@dataclass(frozen=True, slots=True)
class Record:
    """A record.

    Attributes:
        timestamp_ms: -1 if it has none.
        key, value: None is null, which differs from empty.
        headers: in their order; a name may be there twice.
        leader_epoch: of the leader that wrote it.
        source: the broker's disk or the tier.
        metadata_age_ms: how old RLM's knowledge of the tier was, if RLMM was away; else None.
        missing: the offsets right before it, both ends inclusive, that no batch has; None if there
            are none. They were compacted, or are a gap.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    source: RecordSource | None
    kind: RecordKind = RecordKind.DATA
    metadata_age_ms: int | None = None
    missing: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read.

    Attributes:
        batch_limit_bytes: most bytes that the records of one batch may have, decompressed.
        isolation: READ_COMMITTED leaves records of aborted transactions out.
        with_transactions: yield records of aborted transactions and control records too, named by
            their kind; the read ends at the last stable offset.
        follow: wait for further records at the end, and retry what may pass; the read never ends.
    """

    batch_limit_bytes: int = DEFAULT_LIMIT_BYTES
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    with_transactions: bool = False
    follow: bool = False

    @property
    def fetched_isolation(self) -> IsolationLevel:
        return IsolationLevel.READ_COMMITTED if self.with_transactions else self.isolation


def raise_unreadable(error: UnreadableBatchError) -> None:
    """End the read at a batch that cannot be decoded."""
    raise error


def decoded(
    manager: RemoteLogManager,
    tp: TopicIdPartition,
    offset: int,
    options: ReadOptions | None = None,
    unreadable: Callable[[UnreadableBatchError], None] = raise_unreadable,
) -> Iterator[Record]:
    """Read the records from `offset` to the end of the log.

    Args:
        unreadable: called with each batch that cannot be decoded; the read continues after it.

    Raises:
        ReadFailedError: a fetch failed; names the offset.
        RemoteStorageError: RLM could not be called.
    """
    options = options or ReadOptions()
    missing: tuple[int, int] | None = None
    while True:
        answer = _fetch(manager, tp, offset, options)
        if not answer.runs and not options.follow:
            return
        reader = CommittedReader()
        reader.add(answer.aborted)
        age_ms = answer.metadata_age_ms
        for source, data in answer.runs:
            for batch in _batches(tp, data):
                is_skipped = reader.skips(batch)
                if batch.base_offset > offset:
                    missing = (missing or (offset,))[0], batch.base_offset - 1
                try:
                    for record in _wanted(batch, is_skipped, source, options):
                        if record.offset >= offset:
                            if age_ms is not None or missing is not None:
                                record = replace(record, metadata_age_ms=age_ms, missing=missing)
                                missing = None
                            yield record
                except _UNREADABLE as e:
                    unreadable(_unreadable(tp, batch, options.batch_limit_bytes, e))
                offset = max(offset, batch.last_offset + 1)
        if offset >= answer.end_offset and not options.follow:
            return


def _wanted(
    batch: Batch, is_skipped: bool, source: RecordSource | None, options: ReadOptions
) -> Iterator[Record]:
    """Yield the records of a batch that the reader wants, one after another."""
    if is_skipped and not options.with_transactions:
        return
    (epoch,) = _EPOCH.unpack_from(batch.data, _EPOCH_AT)
    if batch.is_control:
        marker = control_marker(batch)
        kind = RecordKind.CONTROL if marker is None else _KINDS[marker]
        at_ms = batch.max_timestamp_ms
        yield Record(batch.base_offset, at_ms, None, None, (), epoch, source, kind)
        return
    kind = RecordKind.ABORTED if is_skipped else RecordKind.DATA
    for each in _records_of(batch, options.batch_limit_bytes):
        headers = tuple(each.headers)
        yield Record(
            each.offset, each.timestamp, each.key, each.value, headers, epoch, source, kind
        )


_EPOCH = Struct(">i")
_EPOCH_AT = 12
_KINDS = {Marker.COMMIT: RecordKind.COMMIT, Marker.ABORT: RecordKind.ABORT}


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer to one fetch.

    Attributes:
        runs: whole batches, by their source.
        end_offset: the offset after the last one that the reader may get.
        throttle_time_ms: how long to wait before the next fetch.
        metadata_age_ms: as of a record.
    """

    runs: list[tuple[RecordSource | None, bytes]]
    aborted: list[AbortedTransaction]
    end_offset: int
    throttle_time_ms: int
    metadata_age_ms: int | None


_MAY_PASS = (
    FetchError.TIERED_STORAGE_NOT_AVAILABLE,
    FetchError.NOT_LEADER_OR_FOLLOWER,
    FetchError.REQUEST_TIMED_OUT,
)


def _fetch(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int, options: ReadOptions
) -> _Answer:
    """Fetch once, and again while RLM asks the reader to wait.

    A reader that follows waits for records, and retries what may pass.
    """
    while True:
        pause_s = RETRY_PAUSE_S
        try:
            answer = _fetch_once(manager, tp, offset, options)
            if answer.runs or not answer.throttle_time_ms:
                return answer
            pause_s = answer.throttle_time_ms / 1000
        except ReadFailedError as e:
            if not options.follow or e.error not in _MAY_PASS:
                raise
        except (RetriableRemoteStorageError, ThrottledError):
            if not options.follow:
                raise
        time.sleep(pause_s)


def _fetch_once(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int, options: ReadOptions
) -> _Answer:
    wanted = (FetchPartition(tp, offset, FETCH_BYTES),)
    isolation = options.fetched_isolation
    request = FetchRequest(
        wanted,
        FETCH_BYTES,
        isolation,
        max_wait_ms=FOLLOW_WAIT_MS if options.follow else 0,
        min_bytes=1 if options.follow else 0,
    )
    parts = list(manager.fetch(request))
    for part in parts:
        if part.error is not FetchError.NONE:
            reason = f"{tp.topic}-{tp.partition} at offset {offset}: {part.error.value}"
            raise ReadFailedError(f"{reason}: {part.error_message}", part.error)
    filled = [part for part in parts if any(part.pieces)]
    runs = [
        (source, b"".join(piece for part in run for piece in part.pieces))
        for source, run in groupby(filled, key=attrgetter("source"))
    ]
    aborted = [transaction for part in parts for transaction in part.aborted_transactions]
    committed = isolation is IsolationLevel.READ_COMMITTED
    ends = (part.last_stable_offset if committed else part.high_watermark for part in parts)
    throttle_time_ms = max((part.throttle_time_ms for part in parts), default=0)
    ages_ms = (part.metadata_age_ms for part in parts)
    age_ms = max((age_ms for age_ms in ages_ms if age_ms is not None), default=None)
    return _Answer(runs, aborted, max(ends, default=-1), throttle_time_ms, age_ms)


_UNREADABLE = (InflatedTooLargeError, TooManyHeadersError, DamagedDataError, CorruptRecordError)


def _batches(tp: TopicIdPartition, data: bytes) -> Iterator[Batch]:
    """Read batches and check their CRCs.

    Raises:
        ReadFailedError: if a batch is damaged; the batches behind it cannot be found.
    """
    try:
        yield from walk_batches(MemoryWindow(data), 0, len(data), 0, verify=True)
    except BatchError as e:
        reason = f"{tp.topic}-{tp.partition}: RLM sent a damaged batch: {e}"
        raise ReadFailedError(f"{reason}; `sediment scrub` checks the stored copies") from e


_CODEC_BITS = 0x07


def _records_of(batch: Batch, limit_bytes: int) -> Iterator[Any]:
    """Decode the records of a batch, one after another.

    kafka-python decompresses without a limit, so it gets the batch without compression.
    """
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
            f"{at} inflates to more than the limit of {limit_bytes} bytes; if you trust its "
            "producer, raise --max-batch-bytes, or batch_limit_bytes of TierConsumer"
        )
    if isinstance(error, TooManyHeadersError):
        return UnreadableBatchError(
            f"{at} is not decoded: {error}, more than the limit of {MAX_RECORD_HEADERS}; "
            "read it with a consumer of Kafka if you trust its producer"
        )
    return UnreadableBatchError(
        f"{at} cannot be decoded: {error}; the CRC is valid, so the producer sent it like this"
    )
