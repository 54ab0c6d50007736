"""The contract of RSM, which keeps the bytes of segments (KIP-405: RemoteStorageManager)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

from services.api.errors import RemoteStorageError
from services.api.segments import MAX_SEGMENT_SIZE_IN_BYTES, RemoteLogSegmentMetadata
from services.api.validation import require


class IndexType(Enum):
    """The files that belong to a segment. Kafka: RemoteStorageManager.IndexType, same order."""

    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    TRANSACTION = "TRANSACTION"
    LEADER_EPOCH = "LEADER_EPOCH"


class SegmentFile(Enum):
    """Every file of a copy: the log itself, then one for each IndexType, of the same name."""

    LOG = "LOG"
    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    TRANSACTION = "TRANSACTION"
    LEADER_EPOCH = "LEADER_EPOCH"


@dataclass(frozen=True, slots=True)
class SegmentFileHeader:
    """One file of a copy, announced before its bytes.

    Attributes:
        crc32c: of the whole file, where the caller knows it; the copy fails where it differs.
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
    """The files of a segment on their way to the store (Kafka: LogSegmentData). Single use.

    Attributes:
        files: LOG first, then the others in the order of SegmentFile. All are required but
            TRANSACTION, which is absent where the broker has no such file; a file that is present
            may be empty.
        chunks: the bytes, file after file in the order of `files`; of an empty file none. Taking
            the next chunk may block, and may raise what the source of the bytes raises.
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
    """Keeps and serves segments. Thread-safe; trusts no `state` in the metadata it is given.

    Metadata names the segment by its id and, after the copy, carries the custom metadata that
    copy_log_segment_data answered: without it a segment counts as never finished.

    "No object is deleted before its metadata says so" is the caller's duty.

    Every method raises RetriableRemoteStorageError where the store cannot be reached or throttles,
    and RemoteStorageError where it fails for good (a missing bucket, refused credentials).
    """

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Store a segment and its indexes; answer the custom metadata for all later calls.

        All or nothing: a segment exists for readers when its manifest, written last, exists. On
        any failure or cancellation what this call wrote, and nothing else, is removed. Idempotent
        by id: equal bytes again are a success with the first copy's custom metadata.

        Source: RemoteStorageManager.copyLogSegmentData, KIP-917. Kafka lets a second copy
        overwrite; refusing other content under one id is a declared difference.

        Raises:
            InvalidRequestError: chunks out of order, more or fewer bytes than announced; the
                metadata knows a segment_size_in_bytes, and LOG has another.
            SegmentAlreadyExistsError: the id was copied with other content.
            CorruptSegmentError: a file does not match its announced crc32c.
        """
        ...

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        """Stream the log from `start_position` to `end_position`, bytes, both inclusive.

        Ends at min(end_position, end of file); None means the end of file. An empty file from 0
        is an empty stream. Closing the iterator early ends the read.

        Raises:
            InvalidRequestError: a position is negative, or end_position < start_position.
            InvalidRangeError: start_position is at or beyond the end of the file.
            RemoteResourceNotFoundError: the segment is not in the store.
            CorruptSegmentError: the stored object is shorter than what was copied, or, where reads
                are verified, a chunk of it is not what was copied; its last bytes are not streamed.
        """
        ...

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        """Stream one index file, byte for byte as it was copied.

        Raises:
            RemoteResourceNotFoundError: the segment is not in the store, or it was copied without
                a transaction index and that is asked for.
            CorruptSegmentError: the stored object is shorter than what was copied, or, where reads
                are verified, the file is not what was copied; its last bytes are not streamed.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove all that belongs to the segment id. Idempotent: already gone is success.

        For a copy that never finished (no custom metadata) it also ends unfinished uploads.

        Raises:
            RetriableRemoteStorageError: also where this service is copying it right now.
        """
        ...

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        """delete_log_segment_data of up to MAX_DELETE_BATCH segments; one outcome each, in order.

        None: gone. An error: that segment is to be deleted again; it never stops the others. One is
        RetriableRemoteStorageError also where the caller's deadline came too near; it hears of all
        others before that.

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

    def is_of(self, custom_metadata: bytes) -> bool:
        """Return whether a copy with this custom metadata wrote the manifest.

        Releases before the manifest's digest answered fewer bytes; those name the attempt.
        """
        ours = self.metadata.custom_metadata or b""
        is_older = len(custom_metadata) < len(ours)
        return custom_metadata == ours or (
            is_older and bytes.fromhex(self.attempt) in custom_metadata
        )


@dataclass(frozen=True, slots=True)
class ObjectToDelete:
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
        self, objects: Sequence[ObjectToDelete]
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
