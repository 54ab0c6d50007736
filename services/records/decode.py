"""Decode the records of a batch, within a limit of memory: the only decoder of records.

    for record in records_of(batch, limit_bytes):
        print(record.offset, record.value)

`batch` is verified (`services/records/batches.py`: `walk_batches` with verify=True, or `verified`).
`columns.py` makes Arrow batches: it reads the fields of many records at once in `decompressed`
bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from struct import Struct
from typing import NamedTuple

from services.api.validation import INT64_MAX
from services.common.inflate import (
    DEFAULT_LIMIT_BYTES,
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    inflated,
)
from services.records.batches import HEADER_BYTES, Batch

MAX_RECORD_HEADERS = 10_000
"""Most headers of a record; an empty one has 2 bytes in a batch and takes many more decoded."""

Header = tuple[str, bytes | None]

_CODEC_BITS = 0x07
_BASE_TIMESTAMP_AT = 27
_COUNT_AT = 57
_INT = Struct(">i")
_LONG = Struct(">q")
_CONTROL_KEY = Struct(">hh")
_ROW_BYTES = 64
_FEW_RECORDS = 1_000
"""So many records are decoded whatever the limit of bytes is."""

_MAX_LENGTH_BYTES = 10
"""Of the number in front of a record."""


class UnreadableRecordsError(Exception):
    """The error if the records of a batch with a valid CRC cannot be decoded.

    Attributes:
        is_too_large: they inflate to more than the limit.
    """

    def __init__(self, batch: Batch, reason: str, *, is_too_large: bool = False) -> None:
        number = batch.attributes & _CODEC_BITS
        codec = Codec(number).name.lower() if number in set(Codec) else f"codec {number}"
        super().__init__(
            f"batch at offset {batch.base_offset} to {batch.last_offset} "
            f"({codec}, {batch.size_bytes} bytes) {reason}"
        )
        self.is_too_large = is_too_large


class DecodedRecord(NamedTuple):
    """A record of a batch; a key or value of None is null, which differs from empty."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def decompressed(batch: Batch, limit_bytes: int) -> bytes:
    """Return the records of a verified batch, not decoded.

    Args:
        limit_bytes: most bytes that the records may have, decompressed.

    Raises:
        UnreadableRecordsError: they have more, are damaged, or are so many that they take more when
            they are decoded.
    """
    (count,) = _INT.unpack_from(batch.data, _COUNT_AT)
    most = max(limit_bytes // _ROW_BYTES, _FEW_RECORDS)
    if count > most:
        raise UnreadableRecordsError(
            batch, f"has {count} records, of at most {most} for the limit of {limit_bytes} bytes"
        )
    with _naming_damage(batch, limit_bytes):
        return b"".join(_pieces(batch, limit_bytes))


def records_of(
    batch: Batch, limit_bytes: int, *, piecewise: bool = False
) -> Iterator[DecodedRecord]:
    """Decode the records of a verified batch, one after another.

    Args:
        piecewise: decode while decompressing, with a piece of the records in memory; a batch over
            the limit is found behind its first records.

    Raises:
        UnreadableRecordsError: they have more than `limit_bytes`, or are not records. Those before
            the damage were yielded.
    """
    (count,) = _INT.unpack_from(batch.data, _COUNT_AT)
    with _naming_damage(batch, limit_bytes):
        pieces = _pieces(batch, limit_bytes)
        data, at = b"" if piecewise else b"".join(pieces), 0
        for _ in range(count):
            if len(data) < at + _MAX_LENGTH_BYTES:
                data, at = _filled(data[at:], _MAX_LENGTH_BYTES, pieces), 0
            length, begin = _varint(data, at)
            if len(data) < begin + length:
                data, begin = _filled(data[begin:], length, pieces), 0
            at = begin + length
            if length < 0 or at > len(data):
                raise DamagedDataError("a record is cut off")
            yield _record(batch, data, begin, at)
        behind_bytes = len(data) - at + sum(map(len, pieces))
        if behind_bytes:
            raise DamagedDataError(f"{behind_bytes} bytes follow its {count} records")


class Marker(Enum):
    """The control record that ends a transaction, by its type number."""

    ABORT = 0
    COMMIT = 1


def control_record(batch: Batch) -> DecodedRecord | None:
    """Read the record of a control batch; None if it has none that can be read."""
    try:
        return next(records_of(batch, DEFAULT_LIMIT_BYTES, piecewise=True), None)
    except UnreadableRecordsError:
        return None


def control_marker(batch: Batch) -> Marker | None:
    """Read the marker of a control batch; None for other kinds of control record."""
    return marker_of(control_record(batch))


def marker_of(record: DecodedRecord | None) -> Marker | None:
    """Return the marker that a control record is; None if it is another kind."""
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        return None
    _, number = _CONTROL_KEY.unpack_from(record.key)
    return Marker(number) if number in (0, 1) else None


@contextmanager
def _naming_damage(batch: Batch, limit_bytes: int) -> Iterator[None]:
    try:
        yield
    except InflatedTooLargeError as e:
        reason = f"inflates to more than the limit of {limit_bytes} bytes"
        raise UnreadableRecordsError(batch, reason, is_too_large=True) from e
    except DamagedDataError as e:
        raise UnreadableRecordsError(batch, f"cannot be decoded: {e}") from e
    except IndexError as e:
        raise UnreadableRecordsError(batch, "cannot be decoded: a record is cut off") from e


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


def _filled(data: bytes, wanted_bytes: int, pieces: Iterator[bytes]) -> bytes:
    """Append pieces until there are so many bytes, or no more."""
    joined, size_bytes = [data], len(data)
    while size_bytes < wanted_bytes and (piece := next(pieces, None)) is not None:
        joined.append(piece)
        size_bytes += len(piece)
    return b"".join(joined)


def _record(batch: Batch, data: bytes, begin: int, end: int) -> DecodedRecord:
    """Decode the record from `begin`, behind its length, to `end`."""
    delta_ms, delta, at = _deltas(data, begin + 1)
    offset = batch.base_offset + delta
    if not batch.base_offset <= offset <= batch.last_offset:
        raise DamagedDataError(f"a record has offset {offset}, outside of its batch")
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    headers: tuple[Header, ...] = ()
    if data[at]:
        headers, at = _headers(data, at, end)
    else:  # no headers
        at += 1
    if at != end:
        raise DamagedDataError(f"the record at offset {offset} has another length")
    if batch.has_append_time:
        time_ms = batch.max_timestamp_ms
    else:
        time_ms = _LONG.unpack_from(batch.data, _BASE_TIMESTAMP_AT)[0] + delta_ms
        if not -INT64_MAX <= time_ms <= INT64_MAX:
            raise DamagedDataError(f"the record at offset {offset} has no valid timestamp")
    return DecodedRecord(offset, time_ms, key, value, headers)


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


def _headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    number, at = _varint(data, at)
    if not 0 <= number <= MAX_RECORD_HEADERS:
        raise DamagedDataError(
            f"a record has {number} headers, more than the limit of {MAX_RECORD_HEADERS}; read it "
            "with a consumer of Kafka if you trust its producer"
        )
    headers: list[Header] = []
    for _ in range(number):
        name, at = _bytes(data, at, end)
        if name is None:
            raise DamagedDataError("a header without a name")
        value, at = _bytes(data, at, end)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), at
