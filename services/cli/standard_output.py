"""End a command in one line if its standard output is full or closed."""

import io
import locale
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_STDOUT = 1


class OutputError(OSError):
    """The error for a standard output that accepts no more bytes.

    A BrokenPipeError is none of these: the reader has what it wants.
    """

    def __str__(self) -> str:
        return f"standard output: {self.strerror}; what was printed before is incomplete"


class _Output(io.FileIO):
    """A descriptor that fails once, or is interrupted by Ctrl-C, and then drops what is written.

    Python writes what is buffered again when it ends, and would print that failure, or a record,
    twice. Standard error only drops: there is no place left to report its failure.
    """

    _failed = False

    def write(self, data: "ReadableBuffer", /) -> int:
        if not self._failed:
            try:
                return super().write(data)
            except OSError as e:
                self._failed = True
                if isinstance(e, BrokenPipeError):
                    raise
                if self.fileno() == _STDOUT:
                    raise OutputError(e.errno, os.strerror(e.errno or 0)) from e
            except KeyboardInterrupt:
                # The bytes may be out already, and are still in the buffer.
                self._failed = self.fileno() == _STDOUT
                raise
        return memoryview(data).nbytes


def guard_standard_output() -> None:
    """Let each failed write to standard output raise OutputError.

    A character that the encoding lacks is written as an escape, on standard error as well.

    Raises:
        OutputError: standard output is closed.
    """
    if sys.stdout is None:
        # No file that is opened later may become descriptor 1.
        os.open(os.devnull, os.O_WRONLY)
        sys.stdout = io.StringIO()
        raise OutputError(0, "closed")
    sys.stdout = _guarded(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # Of a program that runs a command in its own process.
    raw = _Output(stream.fileno(), "w", closefd=False)
    # Python writes UTF-8 under LC_ALL=C, which the terminal need not show.
    is_ascii = stream.isatty() and locale.setlocale(locale.LC_CTYPE) == "C"
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        "ascii" if is_ascii else stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
