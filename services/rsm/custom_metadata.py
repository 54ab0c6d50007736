"""What RSM answers to a copy and is handed back in every later call."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from services.api.remote_storage_manager import IndexType
from services.api.validation import INT32_MAX, require

FIELD = "custom_metadata"
_VERSION = 1
_ABSENT = -1
# version, location id, attempt, size of the log, size of each index file or -1 where it is absent.
_FORM = struct.Struct(f">BH8si{len(IndexType)}i")
_ATTEMPT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """Where a segment's bytes are (KIP-917: CustomMetadata); 35 bytes on the wire.

    Attributes:
        location_id: the store that has the objects, by its number in RSM's settings. These bytes
            come from callers and never name a bucket.
        attempt: 16 hex digits, the copy that wrote the objects.
        index_sizes_bytes: of each index file in the order of IndexType, which is their order in
            the .indexes object; TRANSACTION may be missing, an empty file is 0.
    """

    location_id: int
    attempt: str
    log_size_bytes: int
    index_sizes_bytes: Mapping[IndexType, int]

    def __post_init__(self) -> None:
        require(0 < self.location_id < 2**16, FIELD, "location id must be 1 to 65535")
        require(
            _ATTEMPT.fullmatch(self.attempt) is not None, FIELD, "attempt must be 16 hex digits"
        )
        require(0 <= self.log_size_bytes <= INT32_MAX, FIELD, "log size must be 0 to 2^31-1")
        for kind in IndexType:
            size = self.index_sizes_bytes.get(kind, _ABSENT)
            least = _ABSENT if kind is IndexType.TRANSACTION else 0
            in_range = least <= size <= INT32_MAX
            require(in_range, FIELD, f"size of {kind.name} must be {least} to 2^31-1")

    def index_position(self, kind: IndexType) -> int:
        """Where `kind` begins in the .indexes object."""
        before = list(IndexType)[: list(IndexType).index(kind)]
        return sum(self.index_sizes_bytes.get(other, 0) for other in before)

    def to_bytes(self) -> bytes:
        sizes = (self.index_sizes_bytes.get(kind, _ABSENT) for kind in IndexType)
        attempt = bytes.fromhex(self.attempt)
        return _FORM.pack(_VERSION, self.location_id, attempt, self.log_size_bytes, *sizes)

    @classmethod
    @lru_cache(maxsize=1024)  # Readers ask for the same few segments again and again.
    def from_bytes(cls, data: bytes) -> "CustomMetadata":
        """Read what to_bytes wrote.

        Raises:
            InvalidRequestError: not of a version known here, or malformed.
        """
        require(len(data) > 0 and data[0] == _VERSION, FIELD, f"not of version {_VERSION}")
        require(len(data) == _FORM.size, FIELD, f"must have {_FORM.size} bytes, has {len(data)}")
        _, location_id, attempt, log_size, *sizes = _FORM.unpack(data)
        present = {
            kind: size for kind, size in zip(IndexType, sizes, strict=True) if size != _ABSENT
        }
        return cls(location_id, attempt.hex(), log_size, present)
