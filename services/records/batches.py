"""Read record batches of format v2, their headers and CRCs, from files and from streams."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol, Self

from crc32c import crc32c

from services.api.remote_log_manager import ProblemKind
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
from services.api.validation import INT64_MAX
from services.common.bounded_file import open_regular

READ_AHEAD_BYTES = 1024 * 1024

HEADER_BYTES = 61
MAX_BATCH_BYTES = 128 * 1024 * 1024
"""The longest batch that is read whole, into memory; headers are read of longer ones, too."""
_HEADER = Struct(">qiibIhiqqqhii")
LENGTH_COUNTED_FROM = 12
_CRC = Struct(">I")
_CRC_AT = 17
CRC_COVERS_FROM = 21
_MAGIC_AT = 16
MAGIC = 2
LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class BatchError(Exception):
    """The error if the bytes at a position are not the expected record batch.

    Attributes:
        position: of the first wrong byte, in the file.
        offset: the record offset that the batch begins at, or that was expected.
    """

    def __init__(
        self, kind: ProblemKind, position: int, offset: int, reason: str, size_bytes: int
    ) -> None:
        """Describe the `size_bytes` at `position`, which were read."""
        last = position + max(size_bytes, 1) - 1
        super().__init__(f"{reason} (batch at offset {offset}, bytes {position} to {last})")
        self.kind = kind
        self.position = position
        self.offset = offset


class Window(Protocol):
    """Read a segment's bytes forward."""

    def read(self, position: int, length: int) -> memoryview:
        """Read `length` bytes at `position`, fewer only at the end; the bytes stay valid."""


class FileWindow:
    """Read a file forward.

    The file is not mapped: if a broker truncates a mapped file, the process dies by SIGBUS, but a
    read only ends early.
    """

    def __init__(self, path: Path, read_ahead_bytes: int = READ_AHEAD_BYTES) -> None:
        self._fd = open_regular(path)
        self._read_ahead_bytes = read_ahead_bytes
        self._data = memoryview(b"")
        self._start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def last_modified_ms(self) -> int:
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def read(self, position: int, length: int) -> memoryview:
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            self._fill(position, max(length, self._read_ahead_bytes))
            at = 0
        return self._data[at : at + length]

    def buffered(self, position: int) -> memoryview:
        """Return the bytes from `position` on that were read already; perhaps none."""
        at = position - self._start
        return self._data[at if at >= 0 else len(self._data) :]

    def _fill(self, position: int, length: int) -> None:
        data = os.pread(self._fd, length, position)
        while len(data) < length and (more := os.pread(self._fd, length, position + len(data))):
            data += more[: length - len(data)]
        self._data, self._start = memoryview(data), position


class MemoryWindow:
    """Read bytes that are in memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position : position + length]


RangeReader = Callable[[int, int], Iterator[bytes | memoryview]]
"""Open a stream over a range of a segment, given the positions of its first and last byte."""


class StreamWindow:
    """Read a segment forward through streams over ranges of it.

    A range is about as long as the reader needs, so that the store sends few unneeded bytes. At the
    end of a range the next one is opened.
    """

    def __init__(self, open_range: RangeReader, size_bytes: int, read_ahead_bytes: int) -> None:
        self._open_range = open_range
        self._size_bytes = size_bytes
        self._read_ahead_bytes = read_ahead_bytes
        self._stream: Iterator[bytes | memoryview] = iter(())
        self._data = memoryview(b"")
        self._start = 0

    def read(self, position: int, length: int) -> memoryview:
        length = max(min(length, self._size_bytes - position), 0)
        at = position - self._start
        if not 0 <= at <= len(self._data):
            self._reopen(position, length)
            at = 0
        if at + length > len(self._data):
            self._pull(position, length)
            at = 0
        return self._data[at : at + length]

    def close(self) -> None:
        """Close the open stream, early or not."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def _reopen(self, position: int, length: int) -> None:
        self.close()
        end = min(position + max(length, self._read_ahead_bytes), self._size_bytes) - 1
        self._stream = self._open_range(position, end)
        self._data, self._start = memoryview(b""), position

    def _pull(self, position: int, length: int) -> None:
        """Fill `_data` with `length` bytes from `position` on, if the file has them."""
        pieces = [self._data[position - self._start :]]
        have = len(pieces[0])
        reopened = False
        while have < length:
            chunk = next(self._stream, None)
            if chunk is not None:
                pieces.append(memoryview(chunk))
                have += len(chunk)
            elif reopened:
                break
            else:
                self._reopen(position + have, length - have)
                reopened = True
        self._start = position
        self._data = pieces[-1] if have == len(pieces[-1]) else memoryview(b"".join(pieces))


class Batch(NamedTuple):
    """The header fields and the data of one record batch.

    Attributes:
        position: of its first byte in the segment.
        last_offset: inclusive.
        max_timestamp_ms: -1 if its records have none.
        producer_id: -1 if the producer has none.
        data: the whole batch if it was verified, otherwise at least its header.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    producer_id: int
    attributes: int
    data: memoryview

    @property
    def leader_epoch(self) -> int:
        return int.from_bytes(self.data[12:16], "big", signed=True)

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def next_position(self) -> int:
        return self.position + self.size_bytes


class Claims(NamedTuple):
    """What the batches of a segment must agree with in the part of a header that no CRC covers.

    Attributes:
        last_offset: no batch ends after it.
        epochs: the leader epoch from each offset on, ascending; before the first any.
    """

    last_offset: int = INT64_MAX - 1
    epochs: Sequence[SegmentLeaderEpoch] = ()

    @classmethod
    def of(cls, segment: RemoteLogSegmentMetadata) -> Self:
        return cls(segment.end_offset, segment.segment_leader_epochs)

    def allow(self, last_offset: int, base_offset: int, leader_epoch: int) -> bool:
        """Return whether a batch agrees with them."""
        at = bisect_right(self.epochs, base_offset, key=_START) - 1
        is_of_epoch = at < 0 or self.epochs[at].leader_epoch == leader_epoch
        return is_of_epoch and last_offset <= self.last_offset


_START = attrgetter("start_offset")
NO_CLAIMS = Claims()


def walk_batches(
    window: Window,
    position: int,
    end_position: int,
    next_offset: int,
    *,
    verify: bool,
    claims: Claims = NO_CLAIMS,
) -> Iterator[Batch]:
    """Read the batches from `position`, where one must begin, to `end_position` (exclusive).

    Args:
        next_offset: no batch may begin below it, nor below the end of the previous batch.
        verify: read each batch completely and check its CRC-32C. If False, do so with control
            batches only, and read only the header of the others.
        claims: of the segment.

    Raises:
        BatchError: if a batch is cut off (TRUNCATED_BATCH), has a wrong CRC, length or offset
            (CORRUPT_BATCH), is of magic 0 or 1 (OLD_MESSAGE_FORMAT), or is to be read completely
            and is longer than MAX_BATCH_BYTES (LIMIT_EXCEEDED).
    """
    while position < end_position:
        batch = read_batch(window, position, end_position, next_offset, verify, claims)
        yield batch
        next_offset = batch.last_offset + 1
        position += batch.size_bytes


def verified(window: Window, batch: Batch) -> Batch:
    """Read the whole batch and check its CRC-32C.

    Raises:
        BatchError: TRUNCATED_BATCH, CORRUPT_BATCH, LIMIT_EXCEEDED.
    """
    (crc,) = _CRC.unpack_from(batch.data, _CRC_AT)
    return Batch(
        *batch[:-1], _whole(window, batch.position, batch.size_bytes, batch.base_offset, crc)
    )


def read_batch(
    window: Window,
    position: int,
    end_position: int,
    next_offset: int,
    verify: bool,
    claims: Claims = NO_CLAIMS,
) -> Batch:
    """Read the batch at `position`; arguments and errors as walk_batches."""
    data = window.read(position, min(HEADER_BYTES, end_position - position))
    if len(data) < HEADER_BYTES or data[_MAGIC_AT] != MAGIC:
        raise _no_header(data, position, next_offset)
    (base, length, epoch, _, crc, attributes, last_delta, _, max_timestamp, producer, *_) = (
        _HEADER.unpack(data)
    )
    size = length + LENGTH_COUNTED_FROM
    if size < HEADER_BYTES or size > max(end_position - position, MAX_BATCH_BYTES):
        reason = f"impossible batch length {length}"
        raise BatchError(ProblemKind.CORRUPT_BATCH, position, next_offset, reason, HEADER_BYTES)
    if size > end_position - position:
        raise _truncated(position, base, end_position - position, size)
    if verify or attributes & _CONTROL:
        data = _whole(window, position, size, base, crc)
    last = base + last_delta
    if not (next_offset <= base <= last and claims.allow(last, base, epoch)):
        reason = f"batch {base} to {last} of leader epoch {epoch}, expected {next_offset} next"
        if claims is not NO_CLAIMS:
            reason += f", and none beyond {claims.last_offset} or of another leader epoch"
        raise BatchError(ProblemKind.CORRUPT_BATCH, position, base, reason, size)
    return Batch(position, size, base, last, max_timestamp, producer, attributes, data)


def is_blank(window: Window, position: int) -> bool:
    """Return whether no batch follows at `position`: zeros of a preallocated file, or its end."""
    return not any(window.read(position, HEADER_BYTES))


def _whole(window: Window, position: int, size: int, offset: int, crc: int) -> memoryview:
    if size > MAX_BATCH_BYTES:
        reason = (
            f"a batch of {size} bytes, over the limit of {MAX_BATCH_BYTES} that one may have; set "
            "the topic's max.message.bytes to at most that: the partition is copied again when the "
            "segment has left the log"
        )
        raise BatchError(ProblemKind.LIMIT_EXCEEDED, position, offset, reason, HEADER_BYTES)
    data = window.read(position, size)
    if len(data) < size:
        raise _truncated(position, offset, len(data), size)
    if crc32c(data[CRC_COVERS_FROM:]) != crc:
        raise BatchError(ProblemKind.CORRUPT_BATCH, position, offset, "wrong CRC-32C", size)
    return data


def _no_header(data: memoryview, position: int, next_offset: int) -> BatchError:
    """Return the error of a missing header: an older format, or damage.

    An older format has its magic at the same position, and its header may be shorter.
    """
    if len(data) <= _MAGIC_AT or data[_MAGIC_AT] == MAGIC:
        return _truncated(position, next_offset, len(data), HEADER_BYTES)
    base = int.from_bytes(data[:8], "big", signed=True)
    magic = data[_MAGIC_AT]
    if magic in (0, 1) and any(data[:_MAGIC_AT]):  # all zeros: a hole that a crash left
        reason = f"message format {magic}; only format 2 can be copied"
        return BatchError(ProblemKind.OLD_MESSAGE_FORMAT, position, base, reason, len(data))
    reason = "not a record batch"
    return BatchError(ProblemKind.CORRUPT_BATCH, position, base, reason, len(data))


def _truncated(position: int, offset: int, have: int, need: int) -> BatchError:
    reason = f"batch cut off: {have} bytes of {need}"
    return BatchError(ProblemKind.TRUNCATED_BATCH, position, offset, reason, have)
