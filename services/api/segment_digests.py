"""What the files of a copy were, as its manifest keeps it: sizes and checksums."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.api.remote_storage_manager import IndexType
from services.api.validation import require

DIGEST_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and crc32c of a whole file."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class LogDigest:
    """Of a log: of the whole, and the crc32c of each `chunk_bytes` of it, the last shorter."""

    whole: FileDigest
    chunk_crc32c: tuple[int, ...]
    chunk_bytes: int = DIGEST_CHUNK_BYTES

    def __post_init__(self) -> None:
        require(self.chunk_bytes > 0, "chunk_bytes", "must be above 0")
        chunks = -(-self.size_bytes // self.chunk_bytes)
        is_each = len(self.chunk_crc32c) == chunks
        require(is_each, "chunk_crc32c", f"must be {chunks}, are {len(self.chunk_crc32c)}")

    @property
    def size_bytes(self) -> int:
        return self.whole.size_bytes


@dataclass(frozen=True, slots=True)
class CopyDigests:
    """Of all files of a copy; `indexes` has each index file that there is, also an empty one."""

    log: LogDigest
    indexes: Mapping[IndexType, FileDigest]
