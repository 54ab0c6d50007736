"""Name objects, and read and write custom metadata and manifests."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NoReturn
from uuid import UUID

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, FileDigest, IndexType, LogDigest
from services.api.segments import (
    CUSTOM_METADATA_FORM,
    CUSTOM_METADATA_VERSION,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.validation import INT32_MAX, require, require_int64

FIELD = "custom_metadata"
MANIFEST_DIGEST_BYTES = 16
_ABSENT = -1
_ATTEMPT = re.compile(r"[0-9a-f]{16}")

VERSION = 1

MAX_LEADER_EPOCHS = 100_000
"""Most leader epochs of one segment; no setting lets RLMM accept more."""

MAX_COPIED_CUSTOM_METADATA_BYTES = 1024
"""Longest custom metadata of a segment that is to be copied, before RSM's own exists."""

_ANY_LOCATION = 1
_UNKNOWN_SIZE = -1
_FLAG = "txn_idx_empty"

_NO_MANIFEST = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    InvalidRequestError,
)
"""Errors that reading any other document may raise."""


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


def keys_beside(key: str) -> SegmentKeys:
    """Return all keys of the segment that has `key`, which must have a segment_object_name."""
    folder, _, name = key.rpartition("/")
    return SegmentKeys(f"{folder}/{name.partition('.')[0]}")


def segment_keys(prefix: str, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
    """Return the keys of `metadata`'s segment; `prefix` is empty or ends with a slash."""
    segment_id = metadata.remote_log_segment_id
    partition = segment_id.topic_id_partition
    folder = f"{prefix}{partition.topic_id.hex}/{partition.partition}"
    return SegmentKeys(f"{folder}/{metadata.start_offset:020d}-{segment_id.id.hex}")


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """The location and sizes of one copied segment (KIP-917: CustomMetadata); 51 bytes encoded.

    Attributes:
        location_id: the number of the location in RSM's settings. Clients send these bytes back, so
            they never name a bucket.
        attempt: 16 hex digits, the copy that wrote the objects.
        index_sizes_bytes: of each index file in the order of IndexType, which is their order in the
            .indexes object; TRANSACTION may be missing, an empty file is 0.
        manifest_digest: the first 16 bytes of the manifest's sha256.
    """

    location_id: int
    attempt: str
    log_size_bytes: int
    index_sizes_bytes: Mapping[IndexType, int]
    manifest_digest: bytes

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

    def index_position(self, kind: IndexType) -> int:
        """Return the position of `kind`'s first byte in the .indexes object."""
        before = list(IndexType)[: list(IndexType).index(kind)]
        return sum(self.index_sizes_bytes.get(other, 0) for other in before)

    def to_bytes(self) -> bytes:
        sizes = (self.index_sizes_bytes.get(kind, _ABSENT) for kind in IndexType)
        attempt = bytes.fromhex(self.attempt)
        return CUSTOM_METADATA_FORM.pack(
            CUSTOM_METADATA_VERSION,
            self.location_id,
            attempt,
            self.log_size_bytes,
            *sizes,
            self.manifest_digest,
        )

    @classmethod
    @lru_cache(maxsize=1024)  # Readers request the same few segments again and again.
    def from_bytes(cls, data: bytes) -> "CustomMetadata":
        """Read what to_bytes wrote.

        Raises:
            InvalidRequestError: of an unknown version, or malformed.
        """
        is_known = data[:1] == bytes([CUSTOM_METADATA_VERSION])
        require(is_known, FIELD, f"not of version {CUSTOM_METADATA_VERSION}")
        size = CUSTOM_METADATA_FORM.size
        require(len(data) == size, FIELD, f"must have {size} bytes, has {len(data)}")
        _, location_id, attempt, log_size, *sizes, digest = CUSTOM_METADATA_FORM.unpack(data)
        present = {
            kind: size for kind, size in zip(IndexType, sizes, strict=True) if size != _ABSENT
        }
        return cls(location_id, attempt.hex(), log_size, present, digest)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One complete copy of one segment.

    Attributes:
        metadata: the segment as the copy's caller described it.
        attempt: part of the keys of the objects that hold the bytes.
        written_at_ms: when, by RSM's clock.
        indexes: the index files in their order in the .indexes object.
        deployment_id: of the RSM that wrote it; empty: that RSM had none.
        read_digest: of the bytes that the manifest was read from. None if it was not read.
    """

    metadata: RemoteLogSegmentMetadata
    attempt: str
    written_at_ms: int
    log: LogDigest
    indexes: Mapping[IndexType, FileDigest]
    deployment_id: str = ""
    read_digest: bytes | None = field(default=None, compare=False)

    def custom_metadata(self, location_id: int) -> CustomMetadata:
        """Return the custom metadata that the copy, and any repeat of it, returns."""
        sizes = {kind: digest.size_bytes for kind, digest in self.indexes.items()}
        digest = self.read_digest or _manifest_digest(self.to_bytes())
        return CustomMetadata(location_id, self.attempt, self.log.size_bytes, sizes, digest)

    def holds_same_bytes(self, other: "Manifest") -> bool:
        """Return whether every file of the two copies has the same size and digests."""
        return self.log == other.log and self.indexes == other.indexes

    def to_bytes(self) -> bytes:
        position = 0
        sections = {}
        for kind, digest in self.indexes.items():
            sections[kind.name] = {"position": position, **_digest_to_json(digest)}
            position += digest.size_bytes
        document = {
            "version": VERSION,
            "attempt": self.attempt,
            "written_at_ms": self.written_at_ms,
            "deployment_id": self.deployment_id,
            "metadata": _metadata_to_json(self.metadata),
            "log": {
                **_digest_to_json(self.log.whole),
                "chunk_bytes": DIGEST_CHUNK_BYTES,
                "chunk_crc32c": list(self.log.chunk_crc32c),
            },
            "indexes": sections,
        }
        return json.dumps(document, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> "Manifest":
        """Read what to_bytes wrote; `key` names it in errors.

        The manifest is valid, and so is its custom metadata.

        Raises:
            CorruptSegmentError: not a manifest, or of an unknown version.
        """
        try:
            document = json.loads(data, parse_float=_no_number, parse_constant=_no_number)
            _require_one_flag(document)
            manifest = replace(_from_json(document), read_digest=_manifest_digest(data))
            manifest.custom_metadata(_ANY_LOCATION)
            return manifest
        except _NO_MANIFEST as e:
            raise CorruptSegmentError(f"{key}: not a manifest of version {VERSION}") from e


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


def _from_json(document: dict[str, Any]) -> Manifest:
    log = document["log"]
    if document["version"] != VERSION or log["chunk_bytes"] != DIGEST_CHUNK_BYTES:
        raise ValueError("unknown version")
    if len(log["chunk_crc32c"]) != -(-log["size_bytes"] // DIGEST_CHUNK_BYTES):
        raise ValueError("not a digest for each chunk")
    return Manifest(
        metadata=_metadata_from_json(document["metadata"]),
        attempt=document["attempt"],
        written_at_ms=_time_ms(document["written_at_ms"]),
        log=LogDigest(_digest_from_json(log), tuple(map(_crc32c, log["chunk_crc32c"]))),
        indexes={
            kind: _digest_from_json(document["indexes"][kind.name])
            for kind in IndexType
            if kind.name in document["indexes"]
        },
        deployment_id=_text(document["deployment_id"]),
    )


def _digest_to_json(digest: FileDigest) -> dict[str, int]:
    return {"size_bytes": digest.size_bytes, "crc32c": digest.crc32c}


def _digest_from_json(document: dict[str, Any]) -> FileDigest:
    return FileDigest(size_bytes=document["size_bytes"], crc32c=_crc32c(document["crc32c"]))


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"not a number of a manifest: {text}")


def _require_one_flag(part: object, name: str = "") -> None:
    """Raise TypeError for a boolean in place of a number, which Python accepts as 0 or 1."""
    if isinstance(part, bool) and name != _FLAG:
        raise TypeError(f"{name}: {part}")
    if isinstance(part, dict):
        for key, each in part.items():
            _require_one_flag(each, key)
    elif isinstance(part, list):
        for each in part:
            _require_one_flag(each)


def _time_ms(number: int) -> int:
    require_int64(number, "written_at_ms")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value}")
    return value


def _crc32c(number: int) -> int:
    if not 0 <= number < 2**32:
        raise ValueError(f"not a crc32c: {number}")
    return number


def _metadata_to_json(metadata: RemoteLogSegmentMetadata) -> dict[str, Any]:
    partition = metadata.topic_id_partition
    custom_metadata = metadata.custom_metadata
    return {
        "topic_id": str(partition.topic_id),
        "topic": partition.topic,
        "partition": partition.partition,
        "id": str(metadata.remote_log_segment_id.id),
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "broker_id": metadata.broker_id,
        "broker_leader_epoch": metadata.broker_leader_epoch,
        "event_timestamp_ms": metadata.event_timestamp_ms,
        "segment_leader_epochs": [
            [epoch.leader_epoch, epoch.start_offset] for epoch in metadata.segment_leader_epochs
        ],
        "segment_size_in_bytes": metadata.segment_size_in_bytes,
        "custom_metadata": None if custom_metadata is None else custom_metadata.hex(),
        "state": metadata.state.name,
        "txn_idx_empty": metadata.txn_idx_empty,
    }


def _metadata_from_json(document: dict[str, Any]) -> RemoteLogSegmentMetadata:
    fields = dict(document)
    partition = TopicIdPartition(
        UUID(fields.pop("topic_id")), fields.pop("topic"), fields.pop("partition")
    )
    custom_metadata = fields.pop("custom_metadata")
    if not isinstance(fields[_FLAG], bool):
        raise TypeError(_FLAG)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(partition, UUID(fields.pop("id"))),
        segment_leader_epochs=segment_leader_epochs(fields.pop("segment_leader_epochs")),
        custom_metadata=None if custom_metadata is None else bytes.fromhex(custom_metadata),
        state=RemoteLogSegmentState[fields.pop("state")],
        **fields,
    )
