"""Define the objects of segments in a store, and how to list and delete them one by one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from services.api.errors import RemoteStorageError
from services.api.ids import ZERO_UUID
from services.api.pages import every_item
from services.api.remote_storage_manager import CopyDigests
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX, INT64_MAX, require, require_between

MAX_OBJECTS = 1_000
"""Most objects of one page, and of one deletion."""


MAX_OBJECT_SHARDS = 256


CURRENT_LOCATION = 0
"""Stands for the location that new segments go to; in a listing, for all of them."""


MAX_LOCATION_ID = 65_535

_NAME = re.compile(
    r"(?P<topic_id>[0-9a-f]{32})/(?P<partition>0|[1-9][0-9]{0,9})/(?P<start_offset>[0-9]{20})"
    r"-(?P<id>[0-9a-f]{32})\.(?:(?P<attempt>[0-9a-f]{16})\.(?P<file>log|indexes)|manifest)"
)
_NAME_AT_END = re.compile(rf"{_NAME.pattern}\Z")
MAX_STATE_BYTES = 2 * 1024 * 1024
_STATE_NAME = re.compile(r"[a-z0-9-]{1,64}")


class SegmentObjectKind(Enum):
    """The kinds of objects of a segment."""

    LOG = "LOG"
    INDEXES = "INDEXES"
    MANIFEST = "MANIFEST"


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The place of an object: the number of a registered location, and the whole key."""

    location_id: int
    key: str

    def __str__(self) -> str:
        """Format as anomalies name it: several locations may have the same key."""
        return f"{self.location_id}:{self.key}"


@dataclass(frozen=True, slots=True)
class SegmentObjectName:
    """The segment and kind of an object, as its key gives them.

    Attributes:
        attempt: the copy under this id that wrote the object, 16 hex digits; None for a manifest.
    """

    topic_id: UUID
    partition: int
    start_offset: int
    segment_id: UUID
    kind: SegmentObjectKind
    attempt: str | None


def segment_object_name(prefix: str, key: str) -> SegmentObjectName | None:
    """Return the segment and kind of a key's object; None if RSM makes no such key."""
    match = _NAME.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        return None
    partition, start_offset = int(match["partition"]), int(match["start_offset"])
    topic_id, segment_id = UUID(match["topic_id"]), UUID(match["id"])
    in_range = partition <= INT32_MAX and start_offset <= INT64_MAX
    if not in_range or ZERO_UUID in (topic_id, segment_id):
        return None
    return SegmentObjectName(
        topic_id=topic_id,
        partition=partition,
        start_offset=start_offset,
        segment_id=segment_id,
        kind=SegmentObjectKind[(match["file"] or "manifest").upper()],
        attempt=match["attempt"],
    )


def prefix_of(key: str) -> str:
    """Return what stands before the name of a segment's object in its key."""
    match = _NAME_AT_END.search(key)
    return key if match is None else key[: match.start()]


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """An object in the store.

    Attributes:
        etag: the store's identifier of the content; changes with the content.
        modified_ms: when the object was written, by the store's clock.
        mirror_location_id: another location that has the same objects under the same keys: the
            mirror of its location, or the one that its location mirrors; 0: none.
    """

    location: ObjectLocation
    name: SegmentObjectName
    size_bytes: int
    etag: str
    modified_ms: int
    mirror_location_id: int = 0


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An unfinished multipart upload, invisible to readers.

    Attributes:
        location: the place of the finished object.
        begun_ms: by the store's clock.
    """

    location: ObjectLocation
    upload_id: str
    name: SegmentObjectName
    begun_ms: int


@dataclass(frozen=True, slots=True)
class ObjectQuery:
    """A query for the objects of one location, or of all that are written; of one shard, or of all.

    Attributes:
        shard: has whole partitions; 0 to shards - 1.
    """

    location_id: int = CURRENT_LOCATION
    shard: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        require_location_id(self.location_id, "location_id")
        require_between(self.shards, "shards", 1, MAX_OBJECT_SHARDS)
        require_between(self.shard, "shard", 0, self.shards - 1)


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """A page of objects in order of keys; may be empty though another page follows.

    Attributes:
        next_page_token: empty for the last page.
    """

    objects: tuple[SegmentObject, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class UploadPage:
    """A page of uploads; as ObjectPage."""

    uploads: tuple[MultipartUpload, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """The manifest that a copy wrote when it was complete.

    Attributes:
        metadata: as the caller described the segment, with the custom metadata of the copy.
        attempt: of the copy; the keys of its objects contain it.
        written_at_ms: by RSM's clock.
        digests: of the copied files. None in a view of many manifests, which drops them.
        other_deployment_id: of the deployment that wrote it; empty if it is RSM's, or unknown.
        is_unsealed: RSM has a ring of keys, and the manifest no seal: it must not be relied on
            unless RLMM's metadata names this very manifest.
    """

    metadata: RemoteLogSegmentMetadata
    attempt: str
    written_at_ms: int
    log_size_bytes: int
    indexes_size_bytes: int
    digests: CopyDigests | None = None
    other_deployment_id: str = ""
    is_unsealed: bool = False

    def is_of(self, custom_metadata: bytes) -> bool:
        """Return whether a copy with this custom metadata wrote the manifest."""
        return custom_metadata == self.metadata.custom_metadata


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Which key of the ring wraps the data key of a segment.

    Attributes:
        key_id: the key's id; "" if the manifest has no seal.
        is_changed: the call has replaced the seal, or made one.
        problem: why the ring cannot unwrap it; "" if it can, or if RSM has no ring.
    """

    location_id: int
    key_id: str
    is_changed: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KeysInUse:
    """The keys of some segments, in their order, and the ring of RSM.

    Attributes:
        current: the id of the key for new segments; "" if RSM has no ring.
        key_ids: of all keys of the ring.
        problem: what is wrong with the ring, which is then as it was before; "" if nothing is.
    """

    outcomes: tuple[SegmentKey | RemoteStorageError, ...]
    current: str = ""
    key_ids: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ObjectToDelete:
    """An object to delete; with `if_etag` only if its etag is still the same."""

    location: ObjectLocation
    if_etag: str | None = None


class SegmentObjects(Protocol):
    """List the objects of RSM's stores, and delete those that no metadata names. Thread-safe.

    Every method raises RetriableRemoteStorageError and RemoteStorageError as RemoteStorageManager.
    """

    def list_segment_objects(
        self, query: ObjectQuery, *, page_size: int = 0, page_token: str = ""
    ) -> ObjectPage:
        """Return one page of the segments' objects, in order of keys; skip other objects.

        A partition is wholly in one shard, the same in every listing with as many shards. Objects
        written or deleted during the listing may be missing or present. `page_size`: 0 for the
        largest.

        Raises:
            InvalidRequestError: the location is not registered, the page size is negative, or the
                token is malformed or of another query.
        """

    def list_multipart_uploads(
        self, location_id: int = CURRENT_LOCATION, *, page_size: int = 0, page_token: str = ""
    ) -> UploadPage:
        """Return one page of the unfinished uploads.

        Some stores do not list all: MinIO lists an upload only under its whole key, and aborts
        unfinished uploads itself after a day.

        Raises:
            InvalidRequestError: as list_segment_objects.
        """

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        """Read the manifest of a complete copy, with the digests of all copied files.

        Raises:
            InvalidRequestError: not the location of a manifest.
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object is not a manifest.
        """

    def delete_segment_objects(
        self, objects: Sequence[ObjectToDelete], *, committed_copies: bool = False
    ) -> list[RemoteStorageError | None]:
        """Delete up to MAX_OBJECTS objects; return one outcome each, in order. Idempotent.

        None: the object is gone. ConcurrentUpdateError: its etag is not `if_etag`.
        DeletionRefusedError: it is of a committed copy, that is a manifest or of the attempt that a
        manifest names, and `committed_copies` is False.
        RetriableRemoteStorageError: also if this service is copying the segment now, or if the
        caller's deadline is too near; the call returns all outcomes before the deadline.

        Raises:
            InvalidRequestError: none or too many objects; a key that no object of a segment has.
        """

    def abort_multipart_uploads(
        self, uploads: Sequence[tuple[ObjectLocation, str]]
    ) -> list[RemoteStorageError | None]:
        """Abort up to MAX_OBJECTS uploads, each by location and upload id. Idempotent.

        Returns one outcome each, in order, as delete_segment_objects.

        Raises:
            InvalidRequestError: as delete_segment_objects.
        """

    def rewrap_keys(
        self, metadatas: Sequence[RemoteLogSegmentMetadata], *, dry_run: bool = False
    ) -> KeysInUse:
        """Wrap the data keys of up to MAX_OBJECTS segments under the ring's current key.

        Only the seal of each manifest changes. A manifest without one gets it if the segment's
        custom metadata names this very manifest; its copy then has a data key. Idempotent. With
        `dry_run` nothing changes: each data key is unwrapped. None: returns the ring alone.

        An outcome is RemoteResourceNotFoundError, CorruptSegmentError, StoreAccessDeniedError as of
        a read of the manifest; ConcurrentUpdateError: it changed meanwhile; InvalidRequestError:
        the segment has no copy of RSM's own.

        Raises:
            InvalidRequestError: too many segments.
            NotServedError: RSM has no ring, and it is no dry run.
        """

    def put_deployment_state(self, name: str, data: bytes) -> None:
        """Store what no segment has, in the location for new segments, in place of earlier bytes.

        Raises:
            InvalidRequestError: see require_state.
        """

    def deployment_state(self, name: str) -> bytes:
        """Read what put_deployment_state stored.

        Raises:
            InvalidRequestError: see require_state.
            RemoteResourceNotFoundError: nothing was kept under the name.
        """


def require_state(name: str, data: bytes = b"") -> None:
    """Check the arguments of put_deployment_state."""
    is_name = _STATE_NAME.fullmatch(name) is not None
    require(is_name, "name", f"must be 1 to 64 of a-z, 0-9 and -, is {name[:100]!r}")
    fits = len(data) <= MAX_STATE_BYTES
    require(fits, "data", f"at most {MAX_STATE_BYTES} bytes, has {len(data)}")


def shard_of(topic_id: UUID, shards: int) -> int:
    """Return the shard of list_segment_objects for a topic; shards are ranges of topic ids."""
    return topic_id.bytes[0] * shards // MAX_OBJECT_SHARDS


def require_location_id(location_id: int, field: str) -> None:
    require_between(location_id, field, 0, MAX_LOCATION_ID)


all_segment_objects = every_item(SegmentObjects.list_segment_objects, lambda page: page.objects)
all_multipart_uploads = every_item(SegmentObjects.list_multipart_uploads, lambda page: page.uploads)
