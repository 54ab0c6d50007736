"""Define the contract of RSM, which stores segments' bytes (KIP-405: RemoteStorageManager)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import MAX_SEGMENT_SIZE_IN_BYTES, RemoteLogSegmentMetadata
from services.api.validation import require, require_between


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
        require_between(self.size_bytes, "size_bytes", 0, MAX_SEGMENT_SIZE_IN_BYTES)
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
        replaces: the copy takes the place of the one that the metadata's custom metadata names.
    """

    files: Sequence[SegmentFileHeader]
    chunks: Iterable[SegmentChunk]
    replaces: bool = False

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

        A copy that replaces another one writes objects of its own and then its manifest over the
        other's, whose objects stay and are still read and verified by the custom metadata of
        before, until another copy replaces this one. It counts once RLMM's replace_segment_data
        has its custom metadata. The deletion of such a segment deletes every object of its id.

        Raises:
            InvalidRequestError: chunks are out of order, or more or fewer bytes than announced; the
                metadata has a segment_size_in_bytes that is not the size of LOG; a copy replaces
                none, or one in another than the current location.
            SegmentAlreadyExistsError: the id was copied with other content.
            CorruptSegmentError: a file does not match its announced crc32c.
        """

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

    def fetch_index(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        *,
        as_stored: bool = False,
    ) -> Iterator[bytes]:
        """Stream one index file, byte for byte as it was copied.

        It may be served from memory for 5 s after the segment's indexes were read from the store,
        even if another process has deleted them since.

        An index that is lost or damaged is rebuilt: from the log, as a broker's recovery does it,
        leader epochs from the manifest. A producer snapshot also needs that of the segment before.

        Args:
            as_stored: rebuild nothing.

        Raises:
            RemoteResourceNotFoundError: the segment is not in the store, or it was copied without
                the requested transaction index.
            CorruptSegmentError: the stored object is shorter than the copied file, or verification
                finds that it differs, and the index cannot be rebuilt.
        """

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of the segment id. Idempotent: success if they are already gone.

        For a copy that never finished (no custom metadata) this also aborts unfinished uploads.

        Raises:
            RetriableRemoteStorageError: also if this service is copying the segment now.
        """

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

    def find_partition_object(self, topic_id_partition: TopicIdPartition) -> str | None:
        """Return the location and key of one of the partition's objects; None if none is left.

        Lists the partition's keys in every registered location. Objects count whether or not
        metadata names them; unfinished uploads do not.
        """


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
        url: a secret: its holder can read the log. Neither repr nor an error shows it.
        valid_for_ms: how long the URL is valid, counted from the client's call.
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
