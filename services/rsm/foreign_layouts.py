"""Find the objects that another tiered storage wrote for a segment."""

import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from cachetools import TTLCache
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.api.errors import CorruptSegmentError, NotServedError, RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.remote_storage_manager import IndexType, SegmentFile
from services.api.segments import UNKNOWN_SIZE, RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX
from services.common.inflate import Codec, DamagedDataError, InflatedTooLargeError, inflate
from services.rsm.foreign_keys import ADDED_BYTES, KeyPairs, SegmentCipher
from services.rsm.keys import AlteredKeyError, UnknownKeyError

if TYPE_CHECKING:
    from services.rsm.locations import Location

AIVEN_TEMPLATE = "{topic}-{topic_id}/{partition}/{offset}-{segment_id}"
AIVEN_SUFFIXES: Mapping[str, str] = {
    "log": ".log",
    "indexes": ".indexes",
    "manifest": ".rsm-manifest",
}
LOCAL_FOLDER = "kafka-tiered-storage/"
"""What LocalTieredStorage makes in its directory."""
_TEMPLATE_FIELDS = {"topic", "topic_id", "partition", "offset", "segment_id"}
_SUFFIXES = {
    SegmentFile.LOG: ".log",
    SegmentFile.OFFSET: ".index",
    SegmentFile.TIMESTAMP: ".timeindex",
    SegmentFile.PRODUCER_SNAPSHOT: ".snapshot",
    SegmentFile.TRANSACTION: ".txnindex",
    SegmentFile.LEADER_EPOCH: ".leader_epoch_checkpoint",
}
# A chunk that is not stored as it is is read whole, and a list of them is kept with the manifest.
_MOST_CHUNK_BYTES = 64 * 1024 * 1024
_MOST_CHUNKS = 65_536
_PACKED = struct.Struct(">IIB")
_COUNT_BYTES = _LAST_BYTES = 4
_MANIFESTS = 1024
_MANIFEST_S = 60.0
_MOST_KEY_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """The bytes of one file of a segment: a part of an object, or the whole.

    Attributes:
        size_bytes: of the file.
        stored_bytes: the object has chunks of these sizes, one for each `chunk_bytes` of the file;
            empty: it has the file's bytes.
        cipher: opens the chunks; None: they are not encrypted.
        is_compressed: each is then a frame of zstd.
    """

    key: str
    start: int
    size_bytes: int
    stored_bytes: Sequence[int] = ()
    chunk_bytes: int = 0
    cipher: SegmentCipher | None = None
    is_compressed: bool = False


class ForeignLayout(Protocol):
    """The names of a storage's objects. Each begins with `prefix`, and the rest with the topic.

    `log` and `index` raise RemoteResourceNotFoundError if there is no such object.
    """

    def log(self, location: "Location", metadata: RemoteLogSegmentMetadata) -> ObjectPart:
        """Return where the segment's log is."""

    def index(
        self, location: "Location", metadata: RemoteLogSegmentMetadata, kind: IndexType
    ) -> ObjectPart:
        """Return where an index is."""

    def keys(self, prefix: str, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
        """Return the keys of all objects that the segment may have, for their deletion."""


class LocalTieredStorageLayout:
    """The files of Kafka's LocalTieredStorage: one directory for a partition, one file each."""

    def log(self, location: "Location", metadata: RemoteLogSegmentMetadata) -> ObjectPart:
        key = self.key(location.prefix, metadata, SegmentFile.LOG)
        size_bytes = metadata.segment_size_in_bytes
        is_known = size_bytes != UNKNOWN_SIZE
        return ObjectPart(key, 0, size_bytes) if is_known else _whole(location, key)

    def index(
        self, location: "Location", metadata: RemoteLogSegmentMetadata, kind: IndexType
    ) -> ObjectPart:
        return _whole(location, self.key(location.prefix, metadata, SegmentFile[kind.name]))

    def keys(self, prefix: str, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
        return [self.key(prefix, metadata, file) for file in SegmentFile]

    def key(self, prefix: str, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> str:
        """Return the key of one file of a segment."""
        names = _names_of(metadata)
        folder = f"{prefix}{names['topic']}-{names['partition']}-{names['topic_id']}"
        return f"{folder}/{names['offset']}-{names['segment_id']}{_SUFFIXES[file]}"


class AivenLayout:
    """The objects of Aiven's Tiered Storage for Apache Kafka: log, indexes, manifest.

    Chunks lie in the object as in the log, or each compressed, then encrypted; of an index only
    encrypted, as one. Manifests are cached for a minute. Thread-safe.
    """

    def __init__(
        self,
        template: str = AIVEN_TEMPLATE,
        suffixes: Mapping[str, str] = AIVEN_SUFFIXES,
        key_pairs: KeyPairs | None = None,
    ) -> None:
        self._template = template
        self._suffixes = dict(suffixes)
        self._pairs = key_pairs or KeyPairs({})
        self._lock = Lock()
        self._manifests: TTLCache[str, _Opened] = TTLCache(_MANIFESTS, _MANIFEST_S)

    def log(self, location: "Location", metadata: RemoteLogSegmentMetadata) -> ObjectPart:
        manifest, cipher = self._manifest(location, metadata)
        chunks, size_bytes = manifest.chunks, manifest.chunks.size_bytes
        key, expected = self._key(location.prefix, metadata, "log"), metadata.segment_size_in_bytes
        if expected not in (UNKNOWN_SIZE, size_bytes):
            text = f"{key} has {size_bytes} bytes by its manifest, {expected} by the metadata"
            raise CorruptSegmentError(text)
        stored_bytes, is_frames = manifest.stored_bytes, manifest.compression
        return ObjectPart(key, 0, size_bytes, stored_bytes, chunks.chunk_bytes, cipher, is_frames)

    def index(
        self, location: "Location", metadata: RemoteLogSegmentMetadata, kind: IndexType
    ) -> ObjectPart:
        manifest, cipher = self._manifest(location, metadata)
        section = manifest.indexes.get(kind)
        key = self._key(location.prefix, metadata, "indexes")
        if section is None:
            raise RemoteResourceNotFoundError(f"{key} has no {kind.name} index")
        if cipher is None or not section.size:
            return ObjectPart(key, section.position, section.size)
        size_bytes = section.size - ADDED_BYTES
        if not 0 <= size_bytes <= _MOST_CHUNK_BYTES:
            text = f"{key}: its encrypted {kind.name} index has {section.size} bytes"
            raise CorruptSegmentError(text)
        stored_bytes = (section.size,) if size_bytes else ()
        return ObjectPart(key, section.position, size_bytes, stored_bytes, size_bytes, cipher)

    def keys(self, prefix: str, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
        return [self._key(prefix, metadata, kind) for kind in ("manifest", "log", "indexes")]

    def _key(self, prefix: str, metadata: RemoteLogSegmentMetadata, kind: str) -> str:
        return f"{prefix}{self._template.format(**_names_of(metadata))}{self._suffixes[kind]}"

    def _manifest(self, location: "Location", metadata: RemoteLogSegmentMetadata) -> "_Opened":
        key = self._key(location.prefix, metadata, "manifest")
        with self._lock:
            opened = self._manifests.get(key)
        if opened is None:
            manifest = _Manifest.read(location.backend.get(key), key)
            opened = manifest, self._cipher(manifest, key)
            with self._lock:
                self._manifests[key] = opened
        return opened

    def _cipher(self, manifest: "_Manifest", key: str) -> SegmentCipher | None:
        if manifest.encryption is None:
            return None
        try:
            return self._pairs.cipher(manifest.encryption.data_key, manifest.encryption.additional)
        except UnknownKeyError as e:
            raise NotServedError(f"{key}: the segment is encrypted {e}") from e
        except AlteredKeyError as e:
            text = f"{key}: its data key was changed, or is another key pair's"
            raise CorruptSegmentError(text) from e


def template_problem(template: str) -> str:
    """Return why keys cannot be made with a template, or could leave the prefix; "" if they can."""
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as e:
        return str(e)
    for _, name, spec, conversion in parsed:
        if name is not None and (name not in _TEMPLATE_FIELDS or spec or conversion):
            return f"has {{{name}}}; may have {', '.join(sorted(_TEMPLATE_FIELDS))}"
    if "segment_id" not in {name for _, name, _, _ in parsed}:
        return "must have {segment_id}"
    made = template.format(**dict.fromkeys(_TEMPLATE_FIELDS, "x"))
    if {"", ".", ".."} & set(made.split("/")) or not made.isascii() or not made.isprintable():
        return "must make a relative path"
    return ""


class _Part(BaseModel):
    """A part of the JSON of a manifest; other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


_Size = Annotated[int, Field(ge=0, le=INT32_MAX)]


class _Chunks(_Part):
    type: Literal["fixed", "variable"]
    size_bytes: _Size = Field(alias="originalFileSize")
    chunk_bytes: Annotated[int, Field(gt=0, le=INT32_MAX)] = Field(alias="originalChunkSize")
    stored_chunk_bytes: _Size | None = Field(None, alias="transformedChunkSize")
    packed: str = Field("", alias="transformedChunks")

    @property
    def count(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def frames_bytes(self) -> Sequence[int]:
        """Return the sizes of compressed chunks, encrypted or not.

        They are packed, big-endian, in base64 of a frame of zstd: how many they are, the least of
        all but the last, a width, what each of these has above it, and the last.

        Raises:
            ValueError, struct.error, DamagedDataError, InflatedTooLargeError: not so.
        """
        most_bytes = _PACKED.size + 4 * self.count
        data = inflate(Codec.ZSTD, b64decode(self.packed, validate=True), most_bytes)
        others, last = data[:-_LAST_BYTES], int.from_bytes(data[-_LAST_BYTES:])
        count, sizes = int.from_bytes(others[:_COUNT_BYTES]), [last]
        if count > 1:
            _, least, width = _PACKED.unpack_from(others)
            starts = range(_PACKED.size, len(others), width)
            sizes[:0] = [least + int.from_bytes(others[at : at + width]) for at in starts]
        if not count == len(sizes) == self.count or not min(sizes):
            raise ValueError(f"has {len(sizes)} chunks, {count} by its own count")
        return tuple(sizes)


class _Section(_Part):
    position: _Size
    size: _Size


class _Sections(_Part):
    offset: _Section
    timestamp: _Section
    producer_snapshot: _Section = Field(alias="producerSnapshot")
    leader_epoch: _Section = Field(alias="leaderEpoch")
    transaction: _Section | None = None


class _Encryption(_Part):
    data_key: str = Field(alias="dataKey", max_length=_MOST_KEY_LENGTH)
    additional: str = Field(alias="aad", max_length=_MOST_KEY_LENGTH)


class _Manifest(_Part):
    version: Literal["1"]
    chunks: _Chunks = Field(alias="chunkIndex")
    sections: _Sections = Field(alias="segmentIndexes")
    compression: bool
    encryption: _Encryption | None = None

    @classmethod
    def read(cls, data: bytes, key: str) -> "_Manifest":
        """Read a manifest; `key` names it in errors.

        Raises:
            CorruptSegmentError: not a manifest of version 1.
            NotServedError: its log is encrypted or compressed in chunks too large or too many.
        """
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as e:
            raise CorruptSegmentError(f"{key}: not a manifest of version 1") from e
        chunks, is_encrypted = manifest.chunks, manifest.encryption is not None
        if manifest.compression != (chunks.type == "variable"):
            raise CorruptSegmentError(f"{key}: its chunks are {chunks.type}, compressed or not")
        expected_bytes = chunks.chunk_bytes + ADDED_BYTES * is_encrypted
        if not manifest.compression and chunks.stored_chunk_bytes != expected_bytes:
            raise CorruptSegmentError(f"{key}: its chunks are stored with another size")
        if not manifest.compression and not is_encrypted:
            return manifest
        if chunks.chunk_bytes > _MOST_CHUNK_BYTES or chunks.count > _MOST_CHUNKS:
            how = "compressed" if manifest.compression else "encrypted"
            has = f"{chunks.count} {how} chunks of {chunks.chunk_bytes} bytes, not read over"
            raise NotServedError(f"{key}: {has} {_MOST_CHUNKS} chunks or {_MOST_CHUNK_BYTES} bytes")
        try:
            _ = manifest.stored_bytes
        except (ValueError, struct.error, DamagedDataError, InflatedTooLargeError) as e:
            raise CorruptSegmentError(f"{key}: its list of chunks cannot be read: {e}") from e
        return manifest

    @cached_property
    def stored_bytes(self) -> Sequence[int]:
        """Return the sizes of the log's stored chunks; none if they are the log's bytes."""
        chunks = self.chunks
        if self.compression:
            return chunks.frames_bytes
        if self.encryption is None:
            return ()
        starts = range(0, chunks.size_bytes, chunks.chunk_bytes)
        return [min(chunks.chunk_bytes, chunks.size_bytes - at) + ADDED_BYTES for at in starts]

    @property
    def indexes(self) -> Mapping[IndexType, _Section]:
        all_kinds = {kind: getattr(self.sections, kind.name.lower()) for kind in IndexType}
        return {kind: section for kind, section in all_kinds.items() if section is not None}


_Opened: TypeAlias = tuple[_Manifest, SegmentCipher | None]


def _names_of(metadata: RemoteLogSegmentMetadata) -> Mapping[str, str]:
    """Return what keys are made of, as Kafka writes it; a topic's name has no slash."""
    segment = metadata.remote_log_segment_id
    tp = segment.topic_id_partition
    return {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": str(tp.partition),
        "offset": f"{metadata.start_offset:020d}",
        "segment_id": uuid_to_text(segment.id),
    }


def _whole(location: "Location", key: str) -> ObjectPart:
    stored = location.backend.describe(key)
    if stored is None:
        raise RemoteResourceNotFoundError(f"there is no {key}")
    return ObjectPart(key, 0, stored.size_bytes)
