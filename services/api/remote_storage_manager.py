"""Define the contract of RSM, which stores segments' bytes (KIP-405: RemoteStorageManager)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

from services.api.errors import RemoteStorageError
from services.api.ids import ZERO_UUID
from services.api.segments import MAX_SEGMENT_SIZE_IN_BYTES, RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX, INT64_MAX, require


class IndexType(Enum):
    """The index files of a segment. Kafka: RemoteStorageManager.IndexType, same order."""

    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    TRANSACTION = "TRANSACTION"
    LEADER_EPOCH = "LEADER_EPOCH"


class SegmentFile(Enum):
    """Every file of a copy: the log, then one for each IndexType, with the same name."""

    LOG = "LOG"
    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    TRANSACTION = "TRANSACTION"
    LEADER_EPOCH = "LEADER_EPOCH"


@dataclass(frozen=True, slots=True)
class SegmentFileHeader:
    """The header of one file of a copy, sent before the file's bytes.

    Attributes:
        crc32c: of the whole file, None if unknown; the copy fails if the bytes do not match.
    """

    file: SegmentFile
    size_bytes: int
    crc32c: int | None = None

    def __post_init__(self) -> None:
        in_range = 0 <= self.size_bytes <= MAX_SEGMENT_SIZE_IN_BYTES
        require(in_range, "size_bytes", f"must be 0 to 2^31-1, is {self.size_bytes}")
        if self.crc32c is not None:
            require(0 <= self.crc32c < 2**32, "crc32c", "must be an unsigned 32-bit number")


@dataclass(frozen=True, slots=True)
class SegmentChunk:
    """The next bytes of one file."""

    file: SegmentFile
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of a segment to be copied (Kafka: LogSegmentData). Single use.

    Attributes:
        files: LOG first, then the others in the order of SegmentFile. All are required except
            TRANSACTION, which is absent if the broker has no such file. A file may be empty.
        chunks: the bytes, file after file in the order of `files`; none for an empty file. Taking
            the next chunk may block, and may raise an error of the source.
    """

    files: Sequence[SegmentFileHeader]
    chunks: Iterable[SegmentChunk]

    def __post_init__(self) -> None:
        kinds = [header.file for header in self.files]
        in_order = [kind for kind in SegmentFile if kind in kinds]
        require(
            kinds == in_order, "files", f"must be in order and unique: {[k.name for k in kinds]}"
        )
        for kind in SegmentFile:
            present = kind in kinds or kind is SegmentFile.TRANSACTION
            require(present, "files", f"{kind.name} is missing")


class RemoteStorageManager(Protocol):
    """Store and serve segments. Thread-safe; ignores the `state` of metadata.

    Metadata names the segment by its id. After the copy it carries the custom metadata that
    copy_log_segment_data returned: without it a segment counts as never finished.

    The caller must mark the metadata before it deletes objects.

    Every method raises RetriableRemoteStorageError if the store cannot be reached or throttles, and
    RemoteStorageError if it fails permanently (a missing bucket, refused credentials).
    """

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Store a segment and its indexes; return the custom metadata for all later calls.

        All or nothing: a segment exists for readers when its manifest, written last, exists. After
        a failure or cancellation only the objects that this call wrote are removed. Idempotent by
        id: repeating equal bytes succeeds with the first copy's custom metadata.

        Source: RemoteStorageManager.copyLogSegmentData, KIP-917. Kafka lets a second copy
        overwrite; refusing other content under one id is a declared difference.

        Raises:
            InvalidRequestError: chunks are out of order, or more or fewer bytes than announced; the
                metadata has a segment_size_in_bytes that is not the size of LOG.
            SegmentAlreadyExistsError: the id was copied with other content.
            CorruptSegmentError: a file does not match its announced crc32c.
        """
        ...

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes | memoryview]:
        """Stream the log from `start_position` to `end_position`, bytes, both inclusive.

        Ends at min(end_position, end of file); None means the end of file. An empty file from 0 is
        an empty stream. Closing the iterator early ends the read.

        Raises:
            InvalidRequestError: a position is negative, or end_position < start_position.
            InvalidRangeError: start_position is at or beyond the end of the file.
            RemoteResourceNotFoundError: the segment is not in the store.
            CorruptSegmentError: the stored object is shorter than the copied file, or verification
                finds a chunk that differs; the last bytes of that chunk are not streamed.
        """
        ...

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> "OpenedLogSegment":
        """Return a URL to read the log from the store itself, and the digests to verify it with.

        The client verifies each chunk, and streams whatever it cannot read or verify.

        Raises:
            NotServedError: direct reads are off.
            DirectReadRefusedError: this log can only be streamed.
            RemoteResourceNotFoundError: the segment is not in the store.
            CorruptSegmentError: the manifest is not that of the copy.
            ThrottledError: a rate limit is used up.
        """
        ...

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        """Stream one index file, byte for byte as it was copied.

        It may be served from memory for 5 s after the segment's indexes were read from the store,
        even if another process has deleted them since.

        Raises:
            RemoteResourceNotFoundError: the segment is not in the store, or it was copied without
                the requested transaction index.
            CorruptSegmentError: the stored object is shorter than the copied file, or verification
                finds that it differs; its last bytes are not streamed.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of the segment id. Idempotent: success if they are already gone.

        For a copy that never finished (no custom metadata) this also aborts unfinished uploads.

        Raises:
            RetriableRemoteStorageError: also if this service is copying the segment now.
        """
        ...

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        """Delete the data of up to MAX_DELETE_BATCH segments; return one outcome each, in order.

        As delete_log_segment_data for each. None: the segment is gone. An error: delete that
        segment again; it does not stop the others. An outcome is RetriableRemoteStorageError also
        if the caller's deadline is too near; the call returns all outcomes before the deadline.

        Raises:
            InvalidRequestError: the batch is empty or too large.
        """
        ...


MAX_DELETE_BATCH = 1000
DIGEST_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and crc32c of a whole file."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class LogDigest:
    """The digests of a log: of the whole, and the crc32c of each chunk.

    Attributes:
        chunk_bytes: size of each chunk; the last may be shorter.
    """

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
class OpenedLogSegment:
    """A log that the client may read from the store itself.

    Attributes:
        url: a secret: whoever has it can read the log. Neither repr nor an error shows it.
        valid_for_ms: how long the URL is valid, counted from when the client asked for it.
        log: size and digests of the log, which the object has unchanged.
    """

    url: str = field(repr=False)
    valid_for_ms: int
    log: LogDigest

    def __post_init__(self) -> None:
        require(self.url != "", "url", "must not be empty")
        require(self.valid_for_ms > 0, "valid_for_ms", "must be above 0")


@dataclass(frozen=True, slots=True)
class CopyDigests:
    """The digests of all files of a copy.

    Attributes:
        indexes: of each index file that exists, even if empty.
    """

    log: LogDigest
    indexes: Mapping[IndexType, FileDigest]


MAX_OBJECTS = 1_000
"""Most objects of one page, and of one deletion."""

MAX_OBJECT_SHARDS = 256

CURRENT_LOCATION = 0
"""Stands for the location that new segments go to."""

MAX_LOCATION_ID = 65_535


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


_NAME = re.compile(
    r"(?P<topic_id>[0-9a-f]{32})/(?P<partition>0|[1-9][0-9]{0,9})/(?P<start_offset>[0-9]{20})"
    r"-(?P<id>[0-9a-f]{32})\.(?:(?P<attempt>[0-9a-f]{16})\.(?P<file>log|indexes)|manifest)"
)
_NAME_AT_END = re.compile(rf"{_NAME.pattern}\Z")


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
    """

    location: ObjectLocation
    name: SegmentObjectName
    size_bytes: int
    etag: str
    modified_ms: int


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
    """A query for the objects of one location, or of one shard of its partitions.

    Attributes:
        shard: has whole partitions; 0 to shards - 1.
    """

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
        digests: of the copied files. None if an RSM of an earlier release sent none.
        other_deployment_id: of the deployment that wrote it; empty if it is RSM's, or unknown.
    """

    metadata: RemoteLogSegmentMetadata
    attempt: str
    written_at_ms: int
    log_size_bytes: int
    indexes_size_bytes: int
    digests: CopyDigests | None = None
    other_deployment_id: str = ""

    def is_of(self, custom_metadata: bytes) -> bool:
        """Return whether a copy with this custom metadata wrote the manifest.

        Releases before the manifest's digest returned fewer bytes; those name the attempt.
        """
        ours = self.metadata.custom_metadata or b""
        is_older = len(custom_metadata) < len(ours)
        return custom_metadata == ours or (
            is_older and bytes.fromhex(self.attempt) in custom_metadata
        )


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
        ...

    def list_multipart_uploads(
        self, location_id: int = CURRENT_LOCATION, *, page_size: int = 0, page_token: str = ""
    ) -> UploadPage:
        """Return one page of the unfinished uploads.

        Some stores do not list all: MinIO lists an upload only under its whole key, and aborts
        unfinished uploads itself after a day.

        Raises:
            InvalidRequestError: as list_segment_objects.
        """
        ...

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        """Read the manifest of a complete copy, with the digests of all copied files.

        Raises:
            InvalidRequestError: not the location of a manifest.
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object is not a manifest.
        """
        ...

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
        ...

    def abort_multipart_uploads(
        self, uploads: Sequence[tuple[ObjectLocation, str]]
    ) -> list[RemoteStorageError | None]:
        """Abort up to MAX_OBJECTS uploads, each by location and upload id. Idempotent.

        Returns one outcome each, in order, as delete_segment_objects.

        Raises:
            InvalidRequestError: as delete_segment_objects.
        """
        ...

    def put_deployment_state(self, name: str, data: bytes) -> None:
        """Keep what no segment says, in the location for new segments, in place of earlier bytes.

        Raises:
            InvalidRequestError: see require_state.
        """
        ...

    def deployment_state(self, name: str) -> bytes:
        """Read what put_deployment_state kept.

        Raises:
            InvalidRequestError: see require_state.
            RemoteResourceNotFoundError: nothing was kept under the name.
        """
        ...


MAX_STATE_BYTES = 2 * 1024 * 1024
_STATE_NAME = re.compile(r"[a-z0-9-]{1,64}")


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
    in_range = 0 <= location_id <= MAX_LOCATION_ID
    require(in_range, field, f"must be 0 to {MAX_LOCATION_ID}, is {location_id}")


def all_segment_objects(store: SegmentObjects, query: ObjectQuery) -> Iterator[SegmentObject]:
    """Yield the objects of every page of list_segment_objects, one page in memory at a time."""
    return _all_of(
        lambda token: store.list_segment_objects(query, page_token=token),
        lambda page: page.objects,
        lambda page: page.next_page_token,
    )


def all_multipart_uploads(
    store: SegmentObjects, location_id: int = CURRENT_LOCATION
) -> Iterator[MultipartUpload]:
    """Yield the uploads of every page of list_multipart_uploads, one page in memory at a time."""
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
