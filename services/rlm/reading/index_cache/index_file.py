"""One file of the cache: an index as it was fetched, with what tells whether it still is that.

Not Kafka's own file: a header stands before the index, and its checksum covers the file's name, so
that neither a torn file nor one under another's name is taken for an index.
"""

import re
from struct import Struct
from uuid import UUID

from crc32c import crc32c

from services.api.remote_storage_manager import IndexType

_MAGIC = b"SDIX"
_VERSION = 1
"""Also to be raised when checks.py refuses what it accepted: files are not checked anew."""
_DESCRIPTION = Struct(">4sIQ")
_CHECKSUM = Struct(">I")
HEADER_BYTES = _DESCRIPTION.size + _CHECKSUM.size

_SUFFIXES = "|".join(kind.value.lower() for kind in IndexType)
_NAME = re.compile(rf"[0-9a-f]{{32}}\.(?:{_SUFFIXES})")
_UNFINISHED = re.compile(rf"{_NAME.pattern}\.(?P<run>[0-9a-f]{{8}})\.tmp")


class DamagedFileError(Exception):
    """The file is not one that this version of the cache wrote, whole, under this name."""


def name_of(segment_id: UUID, kind: IndexType) -> str:
    return f"{segment_id.hex}.{kind.value.lower()}"


def is_name(name: str) -> bool:
    """Whether a file of this name is the cache's."""
    return _NAME.fullmatch(name) is not None


def unfinished_name(name: str, run: str) -> str:
    """While it is written; `run` names who writes."""
    return f"{name}.{run}.tmp"


def run_of_unfinished(name: str) -> str | None:
    """Who wrote the unfinished file of this name; None: it is none."""
    match = _UNFINISHED.fullmatch(name)
    return None if match is None else match["run"]


def header_of(name: str, index: bytes) -> bytes:
    """What stands in the file before the index."""
    described = _DESCRIPTION.pack(_MAGIC, _VERSION, len(index))
    return described + _CHECKSUM.pack(_checksum(name, described, index))


def index_bytes(header: bytes) -> int:
    """How long the index is that stands behind this header.

    Raises:
        DamagedFileError: it is no header.
    """
    if len(header) != HEADER_BYTES:
        raise DamagedFileError(f"{len(header)} bytes are no header")
    magic, version, size_bytes = _DESCRIPTION.unpack_from(header)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedFileError("another format")
    return int(size_bytes)


def check_index_file(name: str, header: bytes, index: bytes) -> None:
    """
    Raises:
        DamagedFileError: says what is wrong.
    """
    size_bytes = index_bytes(header)
    if len(index) != size_bytes:
        raise DamagedFileError(f"{len(index)} bytes where {size_bytes} were written")
    described, checksum = header[: _DESCRIPTION.size], header[_DESCRIPTION.size :]
    if checksum != _CHECKSUM.pack(_checksum(name, described, index)):
        raise DamagedFileError("wrong CRC-32C")


def _checksum(name: str, described: bytes, index: bytes) -> int:
    checksum: int = crc32c(index, crc32c(name.encode() + described))
    return checksum
