"""Transform the files of a copy chunk by chunk: compress with zstd, then encrypt; and read them."""

import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.api.errors import CorruptSegmentError
from services.api.remote_storage_manager import (
    DIGEST_CHUNK_BYTES,
    IndexType,
    SegmentFile,
    SegmentFileHeader,
)
from services.common.copied_bytes import BYTES_COPIED
from services.common.inflate import DamagedDataError, compressed_frame, inflated_frame
from services.records.batches import LENGTH_COUNTED_FROM, MAGIC
from services.rsm.keys import DataKey, KeyUse
from services.rsm.layout import Manifest
from services.rsm.stored_form import TAG_BYTES, StoredChunks, StoredForm, Transform, chunk_sizes

DEFAULT_LEVEL = 3
MAX_LEVEL = 19
"""Above it zstd needs far more memory for a chunk."""

_FILES = list(SegmentFile)
_NONCE = struct.Struct(">IQ")
"""Kind of file, number of the chunk: unique under a key that is used for one copy only."""
_CHUNK = struct.Struct(">IIIQ")
"""Kind of file, number of the chunk, number of chunks, size of the file."""
_BATCH = struct.Struct(">8xi4xb4xh")
"""Length, magic and attributes of a record batch."""
_COMPRESSED_OR_CONTROL = 0x07 | 0x20
"""Control batches are never compressed, and short."""
_TABLE_ENTRY_BYTES = 8

Bytes = bytes | memoryview
Fetch = Callable[[int, int], Generator[bytes, None, None]]
"""Read an object, or joined files, between two bytes, both inclusive."""


@dataclass(frozen=True, slots=True)
class TransformPolicy:
    """What is done with the chunks of new copies in a location.

    Attributes:
        compression_level: of zstd; None: chunks are not compressed.
        encrypts: chunks are encrypted with a key of their copy.
    """

    compression_level: int | None = None
    encrypts: bool = False


NO_TRANSFORMS = TransformPolicy()


class _ChunkCipher:
    """Encrypt and decrypt the chunks of one copy. Thread-safe.

    A chunk is bound to its place in the copy and, by the use of the key, to the copy.
    """

    def __init__(self, key: bytes, use: KeyUse) -> None:
        self._aead = AESGCM(key)
        self._use = use.to_bytes()

    def encrypt(self, data: Bytes, file: "_File", number: int) -> bytes:
        return self._aead.encrypt(file.nonce(number), data, file.bound(number) + self._use)

    def decrypt(self, data: Bytes, file: "_File", number: int) -> bytes:
        """Raise InvalidTag if it is not this chunk as it was encrypted."""
        return self._aead.decrypt(file.nonce(number), data, file.bound(number) + self._use)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a copy; `stored_bytes` and `crc32c` are of its stored chunks, if it is read."""

    file: SegmentFile
    size_bytes: int
    stored_bytes: Sequence[int] = ()
    crc32c: Sequence[int] = ()

    @classmethod
    def stored(cls, file: SegmentFile, size_bytes: int, chunks: StoredChunks) -> "_File":
        return cls(file, size_bytes, array("I", chunks.sizes_bytes), array("I", chunks.crc32c))

    @property
    def chunk_count(self) -> int:
        return -(-self.size_bytes // DIGEST_CHUNK_BYTES)

    def chunk_bytes(self, number: int) -> int:
        return min(DIGEST_CHUNK_BYTES, self.size_bytes - number * DIGEST_CHUNK_BYTES)

    def chunk_name(self, number: int) -> str:
        what = "the log" if self.file is SegmentFile.LOG else f"the {self.file.name} index"
        return f"chunk {number} of {what}"

    def nonce(self, number: int) -> bytes:
        return _NONCE.pack(_FILES.index(self.file), number)

    def bound(self, number: int) -> bytes:
        kind = _FILES.index(self.file)
        return _CHUNK.pack(kind, number, self.chunk_count, self.size_bytes)


class CopyTransform:
    """Transform the files of one copy, as its policy demands. Single use."""

    def __init__(self, policy: TransformPolicy, use: KeyUse, data_key: DataKey | None) -> None:
        """Set up a copy's transforms; the data key, which `use` describes, is of this copy only."""
        self._level = policy.compression_level
        self._cipher = _cipher(data_key, use) if policy.encrypts else None
        self._transforms: tuple[Transform, ...] = ()
        if self._level is not None:
            self._transforms += ("zstd",)
        if self._cipher is not None:
            self._transforms += ("aes-256-gcm",)
        self._stored: dict[SegmentFile, StoredChunks] = {}

    @property
    def is_any(self) -> bool:
        """Return whether the objects will have other bytes than the files."""
        return bool(self._transforms)

    @property
    def form(self) -> StoredForm | None:
        """Return how the files that were read to their ends are stored; None: as they were."""
        if not self._transforms:
            return None
        stored = dict(self._stored)
        log = stored.pop(SegmentFile.LOG)
        indexes = {IndexType[file.name]: chunks for file, chunks in stored.items()}
        return StoredForm(self._transforms, log, indexes)

    def most_bytes(self, headers: Iterable[SegmentFileHeader]) -> int:
        """Return the largest size that an object with these files may have."""
        tag_bytes = 0 if self._cipher is None else TAG_BYTES
        sizes = [header.size_bytes for header in headers]
        return sum(sizes) + tag_bytes * sum(len(chunk_sizes(size)) for size in sizes)

    def stored(self, header: SegmentFileHeader, pieces: Iterator[Bytes]) -> Iterator[Bytes]:
        """Yield what is to be stored of a file; without transforms its pieces as they are."""
        return self._chunks(header, pieces) if self._transforms else pieces

    def _chunks(self, header: SegmentFileHeader, pieces: Iterator[Bytes]) -> Iterator[Bytes]:
        file, batches = _File(header.file, header.size_bytes), CompressedBatches()
        sizes, crcs = list[int](), list[int]()
        is_log = header.file is SegmentFile.LOG
        for number, chunk in enumerate(joined(pieces, chunk_sizes(header.size_bytes))):
            compresses = not (is_log and batches.fill(chunk))
            stored = self._compressed(chunk) if compresses else chunk
            if self._cipher is not None:
                stored = self._cipher.encrypt(stored, file, number)
            sizes.append(len(stored))
            crcs.append(crc32c(stored))
            yield stored
        self._stored[header.file] = StoredChunks(tuple(sizes), tuple(crcs))

    def _compressed(self, chunk: Bytes) -> Bytes:
        if self._level is None:
            return chunk
        frame = compressed_frame(chunk, self._level)
        return frame if len(frame) < len(chunk) else chunk


class CompressedBatches:
    """Tell which chunks of a log have no other batches than compressed ones.

    From the first chunk with another batch on, none: walking the headers of small batches would
    take longer than the attempts to compress.
    """

    def __init__(self) -> None:
        self._next = 0
        self._cut = b""
        self._is_sure = True

    def fill(self, chunk: Bytes) -> bool:
        """Return whether the next chunk of the log has compressed batches only."""
        if not self._is_sure:
            return False
        data = self._cut + bytes(chunk) if self._cut else chunk
        position = 0 if self._cut else self._next
        while position + _BATCH.size <= len(data):
            length, magic, attributes = _BATCH.unpack_from(data, position)
            if magic != MAGIC or length <= 0 or not attributes & _COMPRESSED_OR_CONTROL:
                self._is_sure = False
                return False
            position += LENGTH_COUNTED_FROM + length
        self._cut, self._next = bytes(data[position:]), max(0, position - len(data))
        return True


class TransformedCopy:
    """Read the files of one transformed copy from its objects. Thread-safe.

    Attributes:
        size_bytes: what its tables of chunks take of memory.
    """

    def __init__(self, manifest: Manifest, form: StoredForm, data_key: DataKey | None) -> None:
        """Set up reads of the copy that a manifest with this stored form describes."""
        self._cipher = _cipher(data_key, manifest.key_use) if form.is_encrypted else None
        self._log = [_File.stored(SegmentFile.LOG, manifest.log.size_bytes, form.log)]
        self._indexes = [
            _File.stored(SegmentFile[kind.name], manifest.indexes[kind].size_bytes, chunks)
            for kind, chunks in form.indexes.items()
        ]
        chunks = sum(file.chunk_count for file in (*self._log, *self._indexes))
        self.size_bytes = _TABLE_ENTRY_BYTES * chunks

    @property
    def is_encrypted(self) -> bool:
        return self._cipher is not None

    def log(self, fetch: Fetch) -> Fetch:
        """Return how to read the log; `fetch` reads the object that holds it."""
        return partial(self._read, self._log, fetch)

    def indexes(self, fetch: Fetch) -> Fetch:
        """Return how to read the joined index files; `fetch` reads their object."""
        return partial(self._read, self._indexes, fetch)

    def _read(
        self, files: Sequence["_File"], fetch: Fetch, start: int, last: int
    ) -> Generator[bytes, None, None]:
        """Yield the bytes of joined files between two bytes, both inclusive.

        Raises:
            CorruptSegmentError: before the first byte of a chunk that is not as it was stored.
        """
        wanted = list[tuple[_File, int]]()
        at = stored_at = first = first_stored = 0
        for file in files:
            skipped = max(start - at, 0) // DIGEST_CHUNK_BYTES
            behind = min((last - at) // DIGEST_CHUNK_BYTES + 1, file.chunk_count)
            if skipped < behind and not wanted:
                first = at + skipped * DIGEST_CHUNK_BYTES
                first_stored = stored_at + sum(file.stored_bytes[:skipped])
            wanted += [(file, number) for number in range(skipped, behind)]
            at, stored_at = at + file.size_bytes, stored_at + sum(file.stored_bytes)
        sizes = [file.stored_bytes[number] for file, number in wanted]
        with closing(fetch(first_stored, first_stored + sum(sizes) - 1)) as pieces:
            for (file, number), stored in zip(wanted, joined(pieces, sizes), strict=True):
                chunk = bytes(self._opened(file, number, stored))
                yield chunk[max(start - first, 0) : last + 1 - first]
                first += len(chunk)

    def _opened(self, file: "_File", number: int, stored: Bytes) -> Bytes:
        name, size = file.chunk_name(number), file.chunk_bytes(number)
        crc, expected = crc32c(stored), file.crc32c[number]
        if self._cipher is not None:
            try:
                chunk: Bytes = self._cipher.decrypt(stored, file, number)
            except InvalidTag as e:
                what = "are those" if crc == expected else "are not those"
                raise CorruptSegmentError(
                    f"{name} fails its authentication; its stored bytes {what} of its manifest"
                ) from e
        elif crc != expected:
            raise CorruptSegmentError(
                f"{name}: crc32c of its stored bytes is {crc:08x}, was {expected:08x} when copied"
            )
        else:
            chunk = stored
        try:
            return chunk if len(chunk) == size else inflated_frame(chunk, size)
        except DamagedDataError as e:
            raise CorruptSegmentError(f"{name} cannot be inflated to {size} bytes: {e}") from e


def _cipher(data_key: DataKey | None, use: KeyUse) -> _ChunkCipher:
    if data_key is None:
        raise CorruptSegmentError("its chunks are encrypted, and its manifest has no data key")
    return _ChunkCipher(data_key.derived("chunks"), use)


def joined(pieces: Iterator[Bytes], sizes: Iterable[int]) -> Iterator[Bytes]:
    """Yield joined pieces in chunks of these sizes; the pieces have as many bytes in all."""
    rest = memoryview(b"")
    for size in sizes:
        rest = rest or memoryview(next(pieces))
        if len(rest) >= size:
            yield rest[:size]
            rest = rest[size:]
            continue
        chunk, filled = memoryview(bytearray(size)), 0
        while filled < size:
            rest = rest or memoryview(next(pieces))
            taken = rest[: size - filled]
            chunk[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
        BYTES_COPIED.labels("chunk").inc(size)
        yield chunk
    # The source may check what it has sent after its last piece.
    for piece in pieces:
        assert not piece, "more bytes than announced"
