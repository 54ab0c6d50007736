"""RSM: what is stored, whether or not metadata knows of it. For reconciliation and rebuilds.

No part of Kafka's interface: an orphan has no metadata that a caller could name it by.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

from services.api.errors import RemoteStorageError
from services.api.segment_digests import CopyDigests
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require

MAX_OBJECTS = 1_000
"""Of one page, and of one deletion."""
MAX_OBJECT_SHARDS = 256
CURRENT_LOCATION = 0
"""Stands for the location that new segments go to."""
MAX_LOCATION_ID = 65_535


class SegmentObjectKind(Enum):
    """What an object is to its segment."""

    LOG = "LOG"
    INDEXES = "INDEXES"
    MANIFEST = "MANIFEST"


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """Where an object is: a registered location by its number, and the whole key."""

    location_id: int
    key: str

    def __str__(self) -> str:
        """As anomalies name it: the same key may be there in several locations."""
        return f"{self.location_id}:{self.key}"


@dataclass(frozen=True, slots=True)
class SegmentObjectName:
    """Whose an object is, by its key alone.

    Attributes:
        attempt: which of the copies under this id wrote it, 16 hex digits; None of a manifest.
    """

    topic_id: UUID
    partition: int
    start_offset: int
    segment_id: UUID
    kind: SegmentObjectKind
    attempt: str | None


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """An object in the store.

    Attributes:
        etag: what the store calls its content; changes with it.
        modified_ms: when it was written, by the store's clock.
    """

    location: ObjectLocation
    name: SegmentObjectName
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload in parts that is not complete; no reader sees it.

    Attributes:
        location: where its object would be.
        begun_ms: by the store's clock.
    """

    location: ObjectLocation
    upload_id: str
    name: SegmentObjectName
    begun_ms: int


@dataclass(frozen=True, slots=True)
class ObjectQuery:
    """Objects of one location, those of whole partitions: of shard `shard` of `shards`."""

    location_id: int = CURRENT_LOCATION
    shard: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        require_location_id(self.location_id, "location_id")
        require(
            1 <= self.shards <= MAX_OBJECT_SHARDS, "shards", f"must be 1 to {MAX_OBJECT_SHARDS}"
        )
        require(0 <= self.shard < self.shards, "shard", "must be 0 to shards - 1")


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """In order of keys; may be empty though another page follows.

    Attributes:
        next_page_token: "": this is the last one.
    """

    objects: tuple[SegmentObject, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class UploadPage:
    """As ObjectPage."""

    uploads: tuple[MultipartUpload, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """What a copy said of itself when it was complete.

    Attributes:
        metadata: as the copy described the segment, with the custom metadata that it was answered.
        attempt: its objects bear the same.
        written_at_ms: by RSM's clock.
        digests: of what was copied; None: told by an RSM of a release that did not tell them.
    """

    metadata: RemoteLogSegmentMetadata
    attempt: str
    written_at_ms: int
    log_size_bytes: int
    indexes_size_bytes: int
    digests: CopyDigests | None = None


@dataclass(frozen=True, slots=True)
class DoomedObject:
    """An object that is to go; with `if_etag` only if the store still calls its content so."""

    location: ObjectLocation
    if_etag: str | None = None


class SegmentObjects(Protocol):
    """What RSM tells of its stores, and removes where metadata cannot name it. Thread-safe.

    Every method raises RetriableRemoteStorageError and RemoteStorageError as RemoteStorageManager.
    """

    def list_segment_objects(
        self, query: ObjectQuery, *, page_size: int = 0, page_token: str = ""
    ) -> ObjectPage:
        """One page of what is stored, in order of keys; what is no object of a segment is left out.

        Whole partitions to a shard, the same in every listing of so many shards. What is written
        or deleted meanwhile may or may not be seen. `page_size`: 0 for the most.

        Raises:
            InvalidRequestError: a location that is not registered, a negative page size, a token
                of another query or of nobody.
        """
        ...

    def list_multipart_uploads(
        self, location_id: int = CURRENT_LOCATION, *, page_size: int = 0, page_token: str = ""
    ) -> UploadPage:
        """One page of the uploads that nobody has completed. Some stores do not tell of all: MinIO
        tells of none without its key, and ends them itself after a day.

        Raises:
            InvalidRequestError: as list_segment_objects.
        """
        ...

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        """What makes a copy complete, with the digests of all that was copied.

        Raises:
            InvalidRequestError: not the location of a manifest.
            RemoteResourceNotFoundError: there is none.
            CorruptSegmentError: there is something else.
        """
        ...

    def delete_segment_objects(
        self, objects: Sequence[DoomedObject]
    ) -> list[RemoteStorageError | None]:
        """Delete up to MAX_OBJECTS objects; one outcome each, in order. Idempotent.

        None: gone. ConcurrentUpdateError: the object is another one than `if_etag` names.
        RetriableRemoteStorageError: also where this service is copying the segment right now, and
        where the caller's deadline came too near; it hears of all others before that.

        Raises:
            InvalidRequestError: none or too many; the location of no object of a segment.
        """
        ...

    def abort_multipart_uploads(
        self, uploads: Sequence[tuple[ObjectLocation, str]]
    ) -> list[RemoteStorageError | None]:
        """End up to MAX_OBJECTS uploads, each by location and upload id; one outcome each, in
        order, as delete_segment_objects has them. Idempotent.

        Raises:
            InvalidRequestError: as delete_segment_objects.
        """
        ...


def shard_of(topic_id: UUID, shards: int) -> int:
    """The shard of list_segment_objects that has a topic's partitions: ranges of topic ids."""
    return topic_id.bytes[0] * shards // MAX_OBJECT_SHARDS


def require_location_id(location_id: int, field: str) -> None:
    in_range = 0 <= location_id <= MAX_LOCATION_ID
    require(in_range, field, f"must be 0 to {MAX_LOCATION_ID}, is {location_id}")


def all_segment_objects(store: SegmentObjects, query: ObjectQuery) -> Iterator[SegmentObject]:
    """Every page of list_segment_objects, one page in memory at a time."""
    return _all_of(
        lambda token: store.list_segment_objects(query, page_token=token),
        lambda page: page.objects,
        lambda page: page.next_page_token,
    )


def all_multipart_uploads(
    store: SegmentObjects, location_id: int = CURRENT_LOCATION
) -> Iterator[MultipartUpload]:
    """Every page of list_multipart_uploads, one page in memory at a time."""
    return _all_of(
        lambda token: store.list_multipart_uploads(location_id, page_token=token),
        lambda page: page.uploads,
        lambda page: page.next_page_token,
    )


Page = TypeVar("Page")
Item = TypeVar("Item")


def _all_of(
    read: Callable[[str], Page],
    items_of: Callable[[Page], Sequence[Item]],
    next_token_of: Callable[[Page], str],
) -> Iterator[Item]:
    token = ""
    while True:
        page = read(token)
        yield from items_of(page)
        token = next_token_of(page)
        if not token:
            return
