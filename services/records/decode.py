"""Decode the records of a batch into columns, within a limit of memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct

from services.api.validation import INT64_MAX
from services.common.inflate import Codec, DamagedDataError, InflatedTooLargeError, inflated
from services.records.batches import HEADER_BYTES, Batch

MAX_RECORD_HEADERS = 10_000
"""Most headers of a record; an empty one has 2 bytes in a batch and takes many more decoded."""

Header = tuple[str, bytes | None]

_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_EPOCH_AT = 12
_BASE_TIMESTAMP_AT = 27
_COUNT_AT = 57
_INT = Struct(">i")
_LONG = Struct(">q")
_ROW_BYTES = 64
_FEW_RECORDS = 1_000
"""So many records are decoded whatever the limit of bytes is."""

_TIMED_BYTES = 32
"""At least as many as the numbers at the beginning of a record, up to its offset, can have."""


class UnreadableRecordsError(Exception):
    """The error if the records of a batch with a valid CRC cannot be decoded."""


@dataclass(slots=True)
class RecordColumns:
    """Decoded records, column by column.

    Attributes:
        timestamp_types: 0 for the producer's time, 1 for that of the broker.
        headers: None for a record without any.
        size_bytes: about what the records take in memory.
    """

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    timestamp_types: list[int] = field(default_factory=list)
    headers: list[list[Header] | None] = field(default_factory=list)
    leader_epochs: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.offsets)


def decode(batch: Batch, first: int, last: int, limit_bytes: int, into: RecordColumns) -> None:
    """Append the records of a verified batch from offset `first` to `last`, both inclusive.

    Args:
        limit_bytes: most bytes that the records of the batch may have, decompressed.

    Raises:
        UnreadableRecordsError: they have more, or are not records.
    """
    data = decompressed(batch, limit_bytes)
    with _damage_named(batch, limit_bytes):
        _append(batch, data, first, last, into)


def decompressed(batch: Batch, limit_bytes: int) -> bytes:
    """Return the records of a verified batch, not decoded.

    Raises:
        UnreadableRecordsError: they have more than `limit_bytes`, are damaged, or are so many that
            they take more when they are decoded.
    """
    (count,) = _INT.unpack_from(batch.data, _COUNT_AT)
    most = max(limit_bytes // _ROW_BYTES, _FEW_RECORDS)
    if count > most:
        raise _unreadable(
            batch, f"has {count} records, of at most {most} for the limit of {limit_bytes} bytes"
        )
    with _damage_named(batch, limit_bytes):
        return b"".join(_pieces(batch, limit_bytes))


def timed_records(batch: Batch, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the time, ms, and the offset of each record of a verified batch, one after another.

    Records are read as they are decompressed: however many there are, a piece of them is in memory.

    Raises:
        UnreadableRecordsError: they have more than `limit_bytes`, or are not records.
    """
    (base_ms,) = _LONG.unpack_from(batch.data, _BASE_TIMESTAMP_AT)
    (count,) = _INT.unpack_from(batch.data, _COUNT_AT)
    is_append_time = bool(batch.attributes & _LOG_APPEND_TIME)
    base, last_delta = batch.base_offset, batch.last_offset - batch.base_offset
    with _damage_named(batch, limit_bytes):
        pieces = _pieces(batch, limit_bytes)
        data, at = b"", 0
        for _ in range(count):
            while len(data) < at + _TIMED_BYTES and (piece := next(pieces, None)) is not None:
                data, at = data[at:] + piece, max(at - len(data), 0)
            length, begin = _varint(data, at)
            delta_ms, delta, _ = _deltas(data, begin + 1)
            if length < 0 or not 0 <= delta <= last_delta:
                raise DamagedDataError(f"a record has offset {base + delta}, outside of its batch")
            yield batch.max_timestamp_ms if is_append_time else base_ms + delta_ms, base + delta
            at = begin + length


@contextmanager
def _damage_named(batch: Batch, limit_bytes: int) -> Iterator[None]:
    try:
        yield
    except InflatedTooLargeError as e:
        raise _unreadable(batch, f"inflates to more than the limit of {limit_bytes} bytes") from e
    except DamagedDataError as e:
        raise _unreadable(batch, f"cannot be decoded: {e}") from e
    except IndexError as e:
        raise _unreadable(batch, "cannot be decoded: a record is cut off") from e


def _pieces(batch: Batch, limit_bytes: int) -> Iterator[bytes]:
    number = batch.attributes & _CODEC_BITS
    try:
        codec = Codec(number)
    except ValueError as e:
        raise DamagedDataError(f"unknown compression {number}") from e
    data = bytes(batch.data[HEADER_BYTES:])
    if len(data) > limit_bytes:
        raise InflatedTooLargeError
    return inflated(codec, data, limit_bytes)


def _append(batch: Batch, data: bytes, first: int, last: int, into: RecordColumns) -> None:
    (leader_epoch,) = _INT.unpack_from(batch.data, _EPOCH_AT)
    (base_ms,) = _LONG.unpack_from(batch.data, _BASE_TIMESTAMP_AT)
    (count,) = _INT.unpack_from(batch.data, _COUNT_AT)
    is_append_time = bool(batch.attributes & _LOG_APPEND_TIME)
    base, end, at, added = batch.base_offset, len(data), 0, 0
    last_delta = batch.last_offset - base
    for _ in range(count):
        length, at = _varint(data, at)
        following = at + length
        if length < 0 or following > end:
            raise DamagedDataError("a record is cut off")
        delta_ms, delta, at = _deltas(data, at + 1)
        if not 0 <= delta <= last_delta:
            raise DamagedDataError(f"a record has offset {base + delta}, outside of its batch")
        if not first <= base + delta <= last:
            at = following
            continue
        key, at = _bytes(data, at, following)
        value, at = _bytes(data, at, following)
        headers: list[Header] | None = None
        if data[at]:
            headers, at = _headers(data, at, following)
        else:  # no headers
            at += 1
        if at != following:
            raise DamagedDataError(f"the record at offset {base + delta} has another length")
        time_ms = batch.max_timestamp_ms if is_append_time else base_ms + delta_ms
        if not -INT64_MAX <= time_ms <= INT64_MAX:
            raise DamagedDataError(f"the record at offset {base + delta} has no valid timestamp")
        into.keys.append(key)
        into.values.append(value)
        into.offsets.append(base + delta)
        into.timestamps_ms.append(time_ms)
        into.headers.append(headers)
        added += 1
        into.size_bytes += length + _ROW_BYTES
    if at != end:
        raise DamagedDataError(f"{end - at} bytes follow its {count} records")
    into.timestamp_types += [int(is_append_time)] * added
    into.leader_epochs += [leader_epoch] * added


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the zig-zag number at `at`, and the position behind it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        at += 1
        byte = data[at]
        if byte < 0x80:
            value |= byte << shift
            return (value >> 1) ^ -(value & 1), at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    raise DamagedDataError("a number has more than ten bytes")


def _deltas(data: bytes, at: int) -> tuple[int, int, int]:
    """Read a record's timestamp delta and offset delta, and the position behind them."""
    delta_ms, delta = data[at], data[at + 1]
    if delta_ms < 0x80 and delta < 0x80:
        return (delta_ms >> 1) ^ -(delta_ms & 1), (delta >> 1) ^ -(delta & 1), at + 2
    delta_ms, at = _varint(data, at)
    delta, at = _varint(data, at)
    return delta_ms, delta, at


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a length and so many bytes, which end within the record; the length -1 is null."""
    length = data[at]
    if length < 0x80 and not length & 1:  # a length of one byte, without a call: most keys
        length >>= 1
        at += 1
    else:
        length, at = _varint(data, at)
    if length < 0:
        if length != -1:
            raise DamagedDataError(f"a length of {length}")
        return None, at
    if at + length > end:
        raise DamagedDataError("a key, value or header is longer than its record")
    return data[at : at + length], at + length


def _headers(data: bytes, at: int, end: int) -> tuple[list[Header] | None, int]:
    number, at = _varint(data, at)
    if number == 0:
        return None, at
    if not 0 < number <= MAX_RECORD_HEADERS:
        raise DamagedDataError(
            f"a record has {number} headers, of at most {MAX_RECORD_HEADERS} that are decoded"
        )
    headers: list[Header] = []
    for _ in range(number):
        name, at = _bytes(data, at, end)
        if name is None:
            raise DamagedDataError("a header without a name")
        value, at = _bytes(data, at, end)
        headers.append((name.decode("utf-8", "replace"), value))
    return headers, at


def _unreadable(batch: Batch, reason: str) -> UnreadableRecordsError:
    return UnreadableRecordsError(
        f"the batch at offset {batch.base_offset} to {batch.last_offset} "
        f"({batch.size_bytes} bytes) {reason}"
    )
