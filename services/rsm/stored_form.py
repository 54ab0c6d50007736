"""Describe how the objects of a transformed copy hold the files that were copied."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, FileDigest, IndexType, LogDigest

Transform = Literal["zstd", "aes-256-gcm"]
TAG_BYTES = 16
"""What AES-256-GCM adds to a chunk."""

_Uint32 = Annotated[int, Field(ge=0, lt=2**32)]


def chunk_sizes(size_bytes: int) -> list[int]:
    """Return the sizes of the chunks of a file."""
    starts = range(0, size_bytes, DIGEST_CHUNK_BYTES)
    return [min(DIGEST_CHUNK_BYTES, size_bytes - start) for start in starts]


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """The stored chunks of one file, which stand one after another in their object."""

    sizes_bytes: tuple[int, ...]
    crc32c: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes_bytes)


@dataclass(frozen=True, slots=True)
class StoredForm:
    """What was done with the chunks of a copy, and what is stored of them.

    A chunk has DIGEST_CHUNK_BYTES of a file, the last one less. It is compressed if what is stored,
    without its tag, is shorter.

    Attributes:
        transforms: in the order in which they were applied.
    """

    transforms: tuple[Transform, ...]
    log: StoredChunks
    indexes: Mapping[IndexType, StoredChunks]

    @property
    def is_encrypted(self) -> bool:
        return "aes-256-gcm" in self.transforms

    @property
    def indexes_size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.indexes.values())

    def require_of(self, log: LogDigest, indexes: Mapping[IndexType, FileDigest]) -> None:
        """Check that this is a form that files of these sizes can have.

        Raises:
            ValueError: it is not.
        """
        if list(self.indexes) != list(indexes):
            raise ValueError("stored has other indexes")
        pairs = [(log.size_bytes, self.log)]
        pairs += [(indexes[kind].size_bytes, each) for kind, each in self.indexes.items()]
        tag_bytes = TAG_BYTES if self.is_encrypted else 0
        for size_bytes, stored in pairs:
            sizes = chunk_sizes(size_bytes)
            if not len(sizes) == len(stored.sizes_bytes) == len(stored.crc32c):
                raise ValueError("stored has another number of chunks")
            for size, stored_size in zip(sizes, stored.sizes_bytes, strict=True):
                if not tag_bytes < stored_size <= size + tag_bytes:
                    raise ValueError("stored has a chunk of an impossible size")


class _Chunks(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    sizes_bytes: list[_Uint32]
    crc32c: list[_Uint32]

    @classmethod
    def of(cls, chunks: StoredChunks) -> "_Chunks":
        return cls(sizes_bytes=list(chunks.sizes_bytes), crc32c=list(chunks.crc32c))

    def value(self) -> StoredChunks:
        return StoredChunks(tuple(self.sizes_bytes), tuple(self.crc32c))


class StoredSection(BaseModel):
    """A StoredForm in the JSON of a manifest; other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    transforms: Annotated[list[Transform], Field(min_length=1)]
    log: _Chunks
    indexes: dict[str, _Chunks]

    @classmethod
    def of(cls, form: StoredForm | None) -> "StoredSection | None":
        if form is None:
            return None
        return cls(
            transforms=list(form.transforms),
            log=_Chunks.of(form.log),
            indexes={kind.name: _Chunks.of(each) for kind, each in form.indexes.items()},
        )

    def value(self, log: LogDigest, indexes: Mapping[IndexType, FileDigest]) -> StoredForm:
        """Return the form of files with these digests; raises ValueError as require_of."""
        stored = {
            kind: self.indexes[kind.name].value() for kind in IndexType if kind.name in self.indexes
        }
        form = StoredForm(tuple(self.transforms), self.log.value(), stored)
        form.require_of(log, indexes)
        return form
