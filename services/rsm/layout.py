"""Name objects, and read and write custom metadata and manifests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, FileDigest, IndexType, LogDigest
from services.api.segments import (
    CUSTOM_METADATA_FORM,
    CUSTOM_METADATA_VERSION,
    CUSTOM_METADATA_VERSIONS,
    TRANSFORMED_FORM,
    TRANSFORMED_VERSION,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    has_replaced,
    is_transformed,
    segment_leader_epochs,
)
from services.api.validation import INT32_MAX, INT64_MAX, require
from services.rsm.keys import KeyUse, WrappedKey
from services.rsm.stored_form import StoredForm, StoredSection

FIELD = "custom_metadata"
MANIFEST_DIGEST_BYTES = 16
_ABSENT = -1
_ATTEMPT = re.compile(r"[0-9a-f]{16}")

VERSION: Literal[1] = 1
TRANSFORMED_MANIFEST_VERSION: Literal[2] = 2
"""Of the manifest of a copy with transforms, which readers of version 1 must not take for one
without.
"""

MAX_LEADER_EPOCHS = 100_000
"""Most leader epochs of one segment; no setting lets RLMM accept more."""

MAX_COPIED_CUSTOM_METADATA_BYTES = 1024
"""Longest custom metadata of a segment that is to be copied, before RSM's own exists."""

MAX_MANIFEST_EPOCHS_BYTES = 512 * 1024
"""A longer LEADER_EPOCH file is not in the manifest."""
MANIFEST_ENCODING = "latin-1"
"""Has a character for each byte."""

_ANY_LOCATION = 1
_UNKNOWN_SIZE = -1

_Crc32c = Annotated[int, Field(ge=0, lt=2**32)]

_SAME = (
    *("start_offset", "end_offset", "max_timestamp_ms", "broker_id", "broker_leader_epoch"),
    *("event_timestamp_ms", "segment_size_in_bytes", "txn_idx_empty"),
)
"""The fields of segment metadata that a manifest has as they are."""


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment id.

    For the prefix "tier/", topic id 67c8…01, partition 3, start offset 4711, segment id 0b4e…7f and
    the attempt 00c0ffee00c0ffee:

        tier/67c8…01/3/00000000000000004711-0b4e…7f.00c0ffee00c0ffee.log      the segment's bytes
        tier/67c8…01/3/00000000000000004711-0b4e…7f.00c0ffee00c0ffee.indexes  its index files
        tier/67c8…01/3/00000000000000004711-0b4e…7f.manifest                  written last

    (ids have 32 hex digits). Ids have one length, so no segment's keys begin with another's stem,
    and listing `prefix` finds one segment only.
    """

    stem: str

    @property
    def prefix(self) -> str:
        """Return the common beginning of all keys of this segment id, for every attempt."""
        return f"{self.stem}."

    @property
    def manifest(self) -> str:
        return f"{self.stem}.manifest"

    def log(self, attempt: str) -> str:
        return f"{self.stem}.{attempt}.log"

    def indexes(self, attempt: str) -> str:
        return f"{self.stem}.{attempt}.indexes"


def keys_of_segment_with(key: str) -> SegmentKeys:
    """Return all keys of the segment that has `key`, which must have a segment_object_name."""
    folder, _, name = key.rpartition("/")
    return SegmentKeys(f"{folder}/{name.partition('.')[0]}")


def partition_prefix(prefix: str, tp: TopicIdPartition) -> str:
    """Return the common beginning of all keys of a partition in a location."""
    return f"{prefix}{tp.topic_id.hex}/{tp.partition}/"


def segment_keys(prefix: str, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
    """Return the keys of `metadata`'s segment; `prefix` is empty or ends with a slash."""
    segment_id = metadata.remote_log_segment_id
    partition = segment_id.topic_id_partition
    folder = partition_prefix(prefix, partition)
    return SegmentKeys(f"{folder}{metadata.start_offset:020d}-{segment_id.id.hex}")


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """The location and sizes of one copied segment (KIP-917: CustomMetadata).

    51 bytes encoded; 55 of a transformed copy.

    Attributes:
        location_id: the number of the location in RSM's settings. Clients send these bytes back, so
            they never name a bucket.
        attempt: 16 hex digits, the copy that wrote the objects.
        index_sizes_bytes: of each index file in the order of IndexType, which is their order in the
            .indexes object; TRANSACTION may be missing, an empty file is 0.
        manifest_digest: the first 16 bytes of the manifest's sha256.
        replaces: the copy replaced another one of the same id, whose objects may still exist.
        stored_log_bytes: the size of the log's object, if the objects can only be read with the
            manifest; all other sizes are of the files. None: the objects are the files.
    """

    location_id: int
    attempt: str
    log_size_bytes: int
    index_sizes_bytes: Mapping[IndexType, int]
    manifest_digest: bytes
    replaces: bool = False
    stored_log_bytes: int | None = None

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
        has_size = len(self.manifest_digest) == MANIFEST_DIGEST_BYTES
        require(has_size, FIELD, f"manifest digest must have {MANIFEST_DIGEST_BYTES} bytes")
        in_range = 0 <= (self.stored_log_bytes or 0) < 2**32
        require(in_range, FIELD, "stored log size must be 0 to 2^32-1")

    @property
    def transformed(self) -> bool:
        return self.stored_log_bytes is not None

    def index_position(self, kind: IndexType) -> int:
        """Return the position of `kind`'s first byte in the joined index files."""
        before = list(IndexType)[: list(IndexType).index(kind)]
        return sum(self.index_sizes_bytes.get(other, 0) for other in before)

    def to_bytes(self) -> bytes:
        sizes = (self.index_sizes_bytes.get(kind, _ABSENT) for kind in IndexType)
        attempt = bytes.fromhex(self.attempt)
        version = TRANSFORMED_VERSION if self.transformed else CUSTOM_METADATA_VERSION
        values = (
            version + self.replaces,
            self.location_id,
            attempt,
            self.log_size_bytes,
            *sizes,
            self.manifest_digest,
        )
        if self.stored_log_bytes is None:
            return CUSTOM_METADATA_FORM.pack(*values)
        return TRANSFORMED_FORM.pack(*values, self.stored_log_bytes)

    @classmethod
    @lru_cache(maxsize=1024)  # Readers request the same few segments again and again.
    def from_bytes(cls, data: bytes) -> "CustomMetadata":
        """Read what to_bytes wrote.

        Raises:
            InvalidRequestError: of an unknown version, or malformed.
        """
        versions = CUSTOM_METADATA_VERSIONS
        is_known = bool(data) and data[0] in versions
        require(is_known, FIELD, f"not of version {versions[0]} to {versions[-1]}")
        form = TRANSFORMED_FORM if is_transformed(data) else CUSTOM_METADATA_FORM
        require(len(data) == form.size, FIELD, f"must have {form.size} bytes, has {len(data)}")
        _, location_id, attempt, log_size, *sizes, digest = CUSTOM_METADATA_FORM.unpack_from(data)
        present = {
            kind: size for kind, size in zip(IndexType, sizes, strict=True) if size != _ABSENT
        }
        stored = form.unpack(data)[-1] if form is TRANSFORMED_FORM else None
        return cls(
            location_id, attempt.hex(), log_size, present, digest, has_replaced(data), stored
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One complete copy of one segment.

    Attributes:
        metadata: the segment as the copy's caller described it.
        attempt: part of the keys of the objects that hold the bytes.
        written_at_ms: when, by RSM's clock.
        log, indexes: the files that were copied; the index files in their order in the .indexes
            object.
        deployment_id: of the RSM that wrote it; empty: that RSM had none.
        leader_epochs: the LEADER_EPOCH file as MANIFEST_ENCODING, so that it is there even if the
            .indexes object is lost; None if it is too long to be in two places.
        replaced_indexes: the index files of the copy that this one replaced, which the metadata's
            custom metadata names; empty if they are not known. None: it replaced none.
        stored: how the objects hold the files; None: byte for byte.
        replaced_stored: how the objects of the replaced copy do.
        read_digest: of the bytes that the manifest was read from. None if it was not read.
        wrapped_key: the copy's data key, from the manifest's seal; None: it has no seal.
        replaced_wrapped_key: that of the replaced copy; None: it had none, or it is not known.
    """

    metadata: RemoteLogSegmentMetadata
    attempt: str
    written_at_ms: int
    log: LogDigest
    indexes: Mapping[IndexType, FileDigest]
    deployment_id: str = ""
    leader_epochs: str | None = None
    replaced_indexes: Mapping[IndexType, FileDigest] | None = None
    stored: StoredForm | None = None
    replaced_stored: StoredForm | None = None
    read_digest: bytes | None = field(default=None, compare=False)
    wrapped_key: WrappedKey | None = field(default=None, compare=False)
    replaced_wrapped_key: WrappedKey | None = field(default=None, compare=False)

    @property
    def key_use(self) -> KeyUse:
        """Return what the copy's data key is for."""
        return key_use(self.deployment_id, self.metadata, self.attempt)

    def custom_metadata(self, location_id: int) -> CustomMetadata:
        """Return the custom metadata that the copy, and any repeat of it, returns."""
        sizes = {kind: digest.size_bytes for kind, digest in self.indexes.items()}
        digest = self.read_digest or _manifest_digest(self.to_bytes())
        stored = None if self.stored is None else self.stored.log.size_bytes
        forms = self.replaced_indexes is not None, stored
        size_bytes = self.log.size_bytes
        return CustomMetadata(location_id, self.attempt, size_bytes, sizes, digest, *forms)

    def of_copy(self, custom: CustomMetadata) -> "Manifest | None":
        """Return the manifest of the copy that `custom` describes: this one, or the replaced one.

        None if it is neither, or nothing is known of the replaced one.
        """
        if self.custom_metadata(custom.location_id) == custom:
            return self
        if not self.replaced_indexes or self.metadata.custom_metadata != custom.to_bytes():
            return None
        return replace(
            self,
            attempt=custom.attempt,
            indexes=self.replaced_indexes,
            stored=self.replaced_stored,
            wrapped_key=self.replaced_wrapped_key,
        )

    @property
    def log_object_bytes(self) -> int:
        return self.log.size_bytes if self.stored is None else self.stored.log.size_bytes

    @property
    def indexes_object_bytes(self) -> int:
        if self.stored is not None:
            return self.stored.indexes_size_bytes
        return sum(each.size_bytes for each in self.indexes.values())

    def has_same_bytes(self, other: "Manifest") -> bool:
        """Return whether every file of the two copies has the same size and digests."""
        return self.log == other.log and self.indexes == other.indexes

    def to_bytes(self) -> bytes:
        replaced = self.replaced_indexes
        forms = {"stored": self.stored, "replaced_stored": self.replaced_stored}
        document = _Document(
            version=VERSION if self.stored is None else TRANSFORMED_MANIFEST_VERSION,
            attempt=self.attempt,
            written_at_ms=self.written_at_ms,
            deployment_id=self.deployment_id,
            metadata=_Metadata.of(self.metadata),
            log=_Log(
                size_bytes=self.log.size_bytes,
                crc32c=self.log.whole.crc32c,
                chunk_bytes=DIGEST_CHUNK_BYTES,
                chunk_crc32c=list(self.log.chunk_crc32c),
            ),
            indexes=_sections(self.indexes),
            leader_epochs=self.leader_epochs,
            replaced_indexes=None if replaced is None else _sections(replaced),
            **{name: StoredSection.of(form) for name, form in forms.items()},
        )
        # Without them a manifest has the same bytes as in releases that knew no transforms.
        absent = {name for name, form in forms.items() if form is None}
        return document.model_dump_json(exclude=absent).encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> "Manifest":
        """Read what to_bytes wrote; `key` names it in errors.

        The manifest is valid, and so is its custom metadata.

        Raises:
            CorruptSegmentError: not a manifest, or of an unknown version.
        """
        try:
            document = _Document.model_validate_json(data)
            sections, stored = document.replaced_indexes, document.stored
            log = LogDigest(document.log.value(), tuple(document.log.chunk_crc32c))
            indexes = _digests(document.indexes)
            replaced = None if sections is None else _digests(sections)
            before = document.replaced_stored
            if (stored is None) != (document.version == VERSION):
                raise ValueError("the version does not fit")
            manifest = cls(
                metadata=document.metadata.value(),
                attempt=document.attempt,
                written_at_ms=document.written_at_ms,
                log=log,
                indexes=indexes,
                deployment_id=document.deployment_id,
                leader_epochs=document.leader_epochs,
                replaced_indexes=replaced,
                stored=None if stored is None else stored.value(log, indexes),
                replaced_stored=None if before is None else before.value(log, replaced or {}),
                read_digest=_manifest_digest(data),
            )
            manifest.custom_metadata(_ANY_LOCATION)
            return manifest
        except (ValueError, KeyError, InvalidRequestError) as e:
            versions = f"{VERSION} or {TRANSFORMED_MANIFEST_VERSION}"
            raise CorruptSegmentError(f"{key}: not a manifest of version {versions}") from e


def key_use(deployment_id: str, metadata: RemoteLogSegmentMetadata, attempt: str) -> KeyUse:
    """Return what the data key of a copy is for."""
    id, tp = metadata.remote_log_segment_id.id, metadata.topic_id_partition
    return KeyUse(deployment_id, tp.topic_id, tp.partition, id, attempt)


class _Part(BaseModel):
    """A part of the JSON of a manifest; other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Digest(_Part):
    size_bytes: int
    crc32c: _Crc32c

    def value(self) -> FileDigest:
        return FileDigest(self.size_bytes, self.crc32c)


class _Section(_Digest):
    position: int


class _Log(_Digest):
    chunk_bytes: Annotated[int, Field(ge=DIGEST_CHUNK_BYTES, le=DIGEST_CHUNK_BYTES)]
    chunk_crc32c: list[_Crc32c]


class _Metadata(_Part):
    topic_id: str
    topic: str
    partition: int
    id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    broker_leader_epoch: int | None
    event_timestamp_ms: int
    segment_leader_epochs: list[tuple[int, int]]
    segment_size_in_bytes: int
    custom_metadata: str | None
    state: str
    txn_idx_empty: bool

    @classmethod
    def of(cls, metadata: RemoteLogSegmentMetadata) -> "_Metadata":
        partition, custom = metadata.topic_id_partition, metadata.custom_metadata
        return cls(
            topic_id=str(partition.topic_id),
            topic=partition.topic,
            partition=partition.partition,
            id=str(metadata.remote_log_segment_id.id),
            segment_leader_epochs=[
                (each.leader_epoch, each.start_offset) for each in metadata.segment_leader_epochs
            ],
            custom_metadata=None if custom is None else custom.hex(),
            state=metadata.state.name,
            **{name: getattr(metadata, name) for name in _SAME},
        )

    def value(self) -> RemoteLogSegmentMetadata:
        partition = TopicIdPartition(UUID(self.topic_id), self.topic, self.partition)
        custom = self.custom_metadata
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(partition, UUID(self.id)),
            segment_leader_epochs=segment_leader_epochs(self.segment_leader_epochs),
            custom_metadata=None if custom is None else bytes.fromhex(custom),
            state=RemoteLogSegmentState[self.state],
            **{name: getattr(self, name) for name in _SAME},
        )


class _Document(_Part):
    version: Literal[1, 2]
    attempt: str
    written_at_ms: Annotated[int, Field(ge=0, le=INT64_MAX)]
    deployment_id: str
    metadata: _Metadata
    log: _Log
    indexes: dict[str, _Section]
    leader_epochs: str | None = None
    replaced_indexes: dict[str, _Section] | None = None
    stored: StoredSection | None = None
    replaced_stored: StoredSection | None = None


def _sections(indexes: Mapping[IndexType, FileDigest]) -> dict[str, _Section]:
    position, sections = 0, dict[str, _Section]()
    for kind, digest in indexes.items():
        sections[kind.name] = _Section(
            size_bytes=digest.size_bytes, crc32c=digest.crc32c, position=position
        )
        position += digest.size_bytes
    return sections


def _digests(sections: Mapping[str, _Section]) -> dict[IndexType, FileDigest]:
    return {kind: sections[kind.name].value() for kind in IndexType if kind.name in sections}


def require_fits(metadata: RemoteLogSegmentMetadata, log_size_bytes: int) -> None:
    """Check that a segment to be copied fits into a manifest.

    A manifest that is too long to be read back would make the copy useless; a wrong size would
    mislead retention and readers.

    Raises:
        InvalidRequestError: too many leader epochs, too long custom metadata, or a size that is not
            the log's.
    """
    epochs, most = len(metadata.segment_leader_epochs), MAX_LEADER_EPOCHS
    require(epochs <= most, "metadata.segment_leader_epochs", f"at most {most}, has {epochs}")
    length, longest = len(metadata.custom_metadata or b""), MAX_COPIED_CUSTOM_METADATA_BYTES
    text = f"at most {longest} bytes, has {length}"
    require(length <= longest, "metadata.custom_metadata", text)
    size = metadata.segment_size_in_bytes
    text = f"is {size}, LOG has {log_size_bytes} bytes"
    is_same = size in (_UNKNOWN_SIZE, log_size_bytes)
    require(is_same, "metadata.segment_size_in_bytes", text)


def _manifest_digest(data: bytes) -> bytes:
    return sha256(data).digest()[:MANIFEST_DIGEST_BYTES]
