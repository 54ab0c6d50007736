"""Define a target: a parser, the errors that it documents, and valid inputs to mutate."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LONGEST_INPUT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        parse: reads the bytes and asserts what the result promises. Another exception than a
            refusal is a finding.
        refusals: the documented errors.
        seeds: returns valid inputs, and inputs that are nearly valid.
    """

    name: str
    parse: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    seeds: Callable[[], Sequence[bytes]]

    def __str__(self) -> str:
        return self.name

    def accepts(self, data: bytes) -> bool:
        """Return whether the parser reads the bytes; raise only what it does not document."""
        try:
            self.parse(data)
        except self.refusals:
            return False
        return True


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return tempfile.TemporaryDirectory(prefix="sediment-parsers-", dir=in_memory)


def written(data: bytes, name: str) -> Path:
    """Write the only file of this name, for a parser that reads a file; return its path."""
    path = Path(_directory().name) / name
    path.write_bytes(data)
    return path
