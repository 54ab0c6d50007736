"""Copy finished segments from where they are to another place, and verify each before it counts.

Two targets: the own layout, for rows that another tiered storage's objects serve (adoption), and
the files of Kafka's LocalTieredStorage, for a cluster that leaves. A run may be killed at any
moment: the next one copies what is not at its target yet.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from uuid import UUID

from crc32c import crc32c

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.operations import RunKind, RunOutcome, ToolRun
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import (
    FileDigest,
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.retry import RETRIABLE_ERRORS, Backoff
from services.records.batches import BatchError, Claims, StreamWindow, walk_batches
from services.workflows.coverage import Coverage, Outcome
from services.workflows.scrub import Pace

CHUNK_BYTES = 256 * 1024
PARALLEL = 4
MAX_REASONS = 100
_ATTEMPTS = 4
_PAUSES = Backoff(initial_s=1.0, max_s=10.0)
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class GoneError(Exception):
    """The segment was deleted, or its bytes were replaced, while it was copied."""


class CopyTarget(Protocol):
    """Where segments are copied to. Thread-safe, for different segments."""

    def wants(self, row: RemoteLogSegmentMetadata) -> bool:
        """Return whether a finished segment is not at the target yet."""

    def write(
        self, row: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> RemoteLogSegmentMetadata:
        """Write all files; return the metadata by which `read` finds them."""

    def read(
        self, copied: RemoteLogSegmentMetadata, file: SegmentFile
    ) -> Iterator[bytes | memoryview]:
        """Stream what was written of a file."""

    def finish(self, row: RemoteLogSegmentMetadata, copied: RemoteLogSegmentMetadata) -> None:
        """Let the verified copy count.

        Raises:
            GoneError: the segment is not what it was; the copy is deleted.
        """


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The scope of a run.

    Attributes:
        run_id: names the run in RLMM.
        topics: the ids of the topics to copy, and their names; empty: all.
        parallel: partitions that are copied side by side.
    """

    run_id: str
    topics: Mapping[UUID, str] = field(default_factory=dict)
    parallel: int = PARALLEL

    def has(self, tp: TopicIdPartition) -> bool:
        return not self.topics or tp.topic_id in self.topics


@dataclass(slots=True)
class Copied:
    """What a run did.

    Attributes:
        copied: segments that were copied and verified, with `copied_bytes` in their logs.
        present: segments that were at the target before.
        gone: segments that were deleted meanwhile.
        failed: segments that were not copied, as `reasons` explains, at most MAX_REASONS.
        coverage: what was copied of each topic.
    """

    copied: int = 0
    copied_bytes: int = 0
    present: int = 0
    gone: int = 0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add_failed(self, text: str) -> None:
        self.failed += 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(text)


@dataclass(eq=False)
class SegmentCopy:
    """Copy the finished segments of partitions, some partitions at a time."""

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    target: CopyTarget
    plan: CopyPlan
    pace: Pace
    on_progress: Callable[[Copied], None] = lambda _: None
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _done: Copied = field(init=False, default_factory=Copied)

    def run(self) -> Copied:
        """Copy what the target wants, and record it in RLMM.

        Raises:
            RetriableRemoteStorageError: RLMM is unreachable; run it again.
        """
        names = [each.topic_id_partition for each in all_partitions(self.rlmm)]
        wanted = [tp for tp in names if self.plan.has(tp)]
        with ThreadPoolExecutor(self.plan.parallel, "copy") as pool:
            list(pool.map(self._copy_partition, wanted))
        outcome = RunOutcome.PARTIAL if self._done.failed else RunOutcome.DONE
        run = ToolRun(
            RunKind.COPY, self.plan.run_id, outcome, tuple(sorted(self.plan.topics.values()))
        )
        self._done.coverage.report(self.rlmm, run, {tp.topic_id for tp in wanted})
        return self._done

    def _copy_partition(self, tp: TopicIdPartition) -> None:
        try:
            for row in all_segments(self.rlmm, tp, states=(_FINISHED,)):
                outcome = self._copy_with_retries(row) if self._wants(row) else Outcome.VERIFIED
                with self._lock:
                    if outcome is not None:
                        self._done.coverage.count(row, outcome)
                    self.on_progress(self._done)
        except RemoteResourceNotFoundError:
            pass  # The partition was removed meanwhile.

    def _wants(self, row: RemoteLogSegmentMetadata) -> bool:
        if self.target.wants(row):
            return True
        with self._lock:
            self._done.present += 1
        return False

    def _copy_with_retries(self, row: RemoteLogSegmentMetadata) -> Outcome | None:
        """Copy a segment; return its outcome, None if it is gone."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._copy(row)
            except GoneError:
                with self._lock:
                    self._done.gone += 1
                return None
            except RemoteStorageError as e:
                if isinstance(e, RETRIABLE_ERRORS) and attempt < _ATTEMPTS:
                    self.pace.pause(_PAUSES.delay_s(attempt))
                    continue
                with self._lock:
                    self._done.add_failed(f"{row.remote_log_segment_id}: {e}")
                return Outcome.FAILED
            break
        with self._lock:
            self._done.copied += 1
            self._done.copied_bytes += row.segment_size_in_bytes
        return Outcome.VERIFIED

    def _copy(self, row: RemoteLogSegmentMetadata) -> None:
        source = _Source(self.rsm, row, self.pace)
        copied = self.target.write(row, source.data())
        for file, digest in source.digests.items():
            found = digest_of(self.target.read(copied, file))
            if found != digest:
                raise CorruptSegmentError(
                    f"{file.name} of the copy has {found.size_bytes} bytes with crc32c "
                    f"{found.crc32c:08x}, the source {digest.size_bytes} with {digest.crc32c:08x}"
                )
        self.target.finish(row, copied)


class _Source:
    """Read a segment once through RSM; `digests` has each file's when it has passed."""

    def __init__(
        self, rsm: RemoteStorageManager, row: RemoteLogSegmentMetadata, pace: Pace
    ) -> None:
        self._rsm = rsm
        self._row = row
        self._pace = pace
        self.digests: dict[SegmentFile, FileDigest] = {}

    def data(self) -> LogSegmentData:
        """Read the indexes, and return all files, of which the log is read as it is sent.

        Raises:
            RemoteResourceNotFoundError: the segment, or an index other than TRANSACTION, is gone.
        """
        size_bytes = self._row.segment_size_in_bytes
        if size_bytes < 0:
            raise CorruptSegmentError("its metadata does not have the size of its log")
        indexes = dict(self._indexes())
        self.digests = {file: digest_of([data]) for file, data in indexes.items()}
        headers = [SegmentFileHeader(SegmentFile.LOG, size_bytes)]
        headers += [
            SegmentFileHeader(file, each.size_bytes, each.crc32c)
            for file, each in self.digests.items()
        ]
        return LogSegmentData(headers, self._chunks(indexes))

    def _indexes(self) -> Iterator[tuple[SegmentFile, bytes]]:
        for kind in IndexType:
            try:
                data = b"".join(self._rsm.fetch_index(self._row, kind))
            except RemoteResourceNotFoundError:
                if kind is not IndexType.TRANSACTION:
                    raise
            else:
                yield SegmentFile[kind.name], data

    def _chunks(self, indexes: Mapping[SegmentFile, bytes]) -> Iterator[SegmentChunk]:
        digest = FileDigest(0, 0)
        for piece in self._log():
            digest = _extended(digest, piece)
            yield SegmentChunk(SegmentFile.LOG, piece)
        self.digests[SegmentFile.LOG] = digest
        for file, data in indexes.items():
            for at in range(0, len(data), CHUNK_BYTES):
                yield SegmentChunk(file, data[at : at + CHUNK_BYTES])

    def _log(self) -> Iterator[bytes | memoryview]:
        """Yield the log, and check that it is whole batches of this segment.

        Raises:
            CorruptSegmentError: it is not.
        """
        passed, size_bytes = deque[bytes | memoryview](), self._row.segment_size_in_bytes
        window = StreamWindow(partial(self._pieces, passed), size_bytes, size_bytes)
        first, claims = self._row.start_offset, Claims.of(self._row)
        batches = walk_batches(window, 0, size_bytes, first, verify=True, claims=claims)
        try:
            for _ in batches:
                while passed:
                    yield passed.popleft()
        except BatchError as e:
            raise CorruptSegmentError(f"its log is damaged: {e}") from e
        finally:
            window.close()
        yield from passed

    def _pieces(
        self, passed: deque[bytes | memoryview], first: int, last: int
    ) -> Iterator[bytes | memoryview]:
        """Read the log; remember each piece, for the copy."""
        for piece in self._rsm.fetch_log_segment(self._row, first, last):
            self._pace.acquire(len(piece))
            passed.append(piece)
            yield piece


def digest_of(pieces: Iterator[bytes | memoryview] | Sequence[bytes]) -> FileDigest:
    """Return size and crc32c of a file's bytes."""
    digest = FileDigest(0, 0)
    for piece in pieces:
        digest = _extended(digest, piece)
    return digest


def _extended(digest: FileDigest, piece: bytes | memoryview) -> FileDigest:
    return FileDigest(digest.size_bytes + len(piece), crc32c(piece, digest.crc32c))
