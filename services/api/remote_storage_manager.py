"""The contract of RSM, which keeps the bytes of segments (KIP-405: RemoteStorageManager).

The in-process manager (services/rsm) and the gRPC client (services/rpc) both satisfy it; one
suite, tests/contract, runs over both.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

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
