"""Positioned reads of a segment with read-ahead: the same for a file and for a remote stream."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

READ_AHEAD_BYTES = 1024 * 1024


class Window(Protocol):
    """A segment's bytes, read forward."""

    def read(self, position: int, length: int) -> memoryview:
        """The `length` bytes from `position` on, fewer only at the end of the file. They last."""
        ...


class FileWindow:
    """A window over a file.

    Reads instead of mapping the file: one that a broker truncates under a mapping kills the process
    with SIGBUS, here the read just ends.
    """

    def __init__(self, path: Path, read_ahead_bytes: int = READ_AHEAD_BYTES) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._read_ahead_bytes = read_ahead_bytes
        self._data = memoryview(b"")
        self._start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    def _fill(self, position: int, length: int) -> None:
        data = os.pread(self._fd, length, position)
        while len(data) < length and (more := os.pread(self._fd, length, position + len(data))):
            data += more[: length - len(data)]
        self._data, self._start = memoryview(data), position


RangeReader = Callable[[int, int], Iterator[bytes]]
"""Opens a stream over a range of a segment: positions of its first and its last byte."""


class StreamWindow:
    """A window over ranged streams, which it opens as they are needed.

    A range is as long as the reader is going to need, so that the store sends no bytes in vain;
    at its end the next one is opened.
    """

    def __init__(self, open_range: RangeReader, size_bytes: int, read_ahead_bytes: int) -> None:
        self._open_range = open_range
        self._size_bytes = size_bytes
        self._read_ahead_bytes = read_ahead_bytes
        self._stream: Iterator[bytes] = iter(())
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
        """End the stream under way, early or not."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def _reopen(self, position: int, length: int) -> None:
        self.close()
        end = min(position + max(length, self._read_ahead_bytes), self._size_bytes) - 1
        self._stream = self._open_range(position, end)
        self._data, self._start = memoryview(b""), position

    def _pull(self, position: int, length: int) -> None:
        """Make `_data` begin at `position` and hold `length` bytes, if the file has them."""
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
