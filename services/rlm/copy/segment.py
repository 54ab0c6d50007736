"""Copy one segment: COPY_SEGMENT_STARTED, bytes, COPY_SEGMENT_FINISHED; or clean up."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID, uuid4

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    ThrottledError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, segments_by_id
from services.api.remote_storage_manager import (
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.retention import young_copies
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.common.cancellation import Flag
from services.common.failpoints import failpoint
from services.common.retry import RETRIABLE_ERRORS, Backoff
from services.rlm.copy.inspection import InspectedSegment
from services.rlm.copy.leases import CopyCancelledError, CopyLease, CopyLeases, LeaseLostError
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError, reading_segment
from services.rlm.metrics import COPIES_WAITING_FOR_RSM

BytesSent = Callable[[int], None]

GoingOn = Callable[[], None]
"""Raises CopyCancelledError where the copy is to stop."""


class SegmentSource:
    """Reads an inspected segment for one copy; anew where the copy is begun anew.

    The log comes from the file again, announced with the length and CRC it was inspected with; the
    other files are the very bytes that were checked. Reading may end with CopyCancelledError,
    LogFileError or SegmentVanishedError, which any RemoteStorageManager raises as it is.
    """

    def __init__(
        self, inspected: InspectedSegment, chunk_bytes: int, sent: BytesSent, going_on: GoingOn
    ) -> None:
        self._inspected = inspected
        self._chunk_bytes = chunk_bytes
        self._sent = sent
        self._going_on = going_on
        self._told_bytes = 0

    def require_going_on(self) -> None:
        """Raise CopyCancelledError where the copy is to stop."""
        self._going_on()

    def data(self) -> LogSegmentData:
        """From the beginning; what was told as sent before is taken back."""
        self._tell(-self._told_bytes)
        log, others = self._inspected, self._side_files()
        headers = [SegmentFileHeader(SegmentFile.LOG, log.size_bytes, log.crc32c)]
        headers += [SegmentFileHeader(file, len(data)) for file, data in others]
        return LogSegmentData(headers, self._chunks())

    def _side_files(self) -> list[tuple[SegmentFile, bytes]]:
        files = self._inspected.side_files
        return [(file, files[file]) for file in SegmentFile if file in files]

    def _chunks(self) -> Iterator[SegmentChunk]:
        for data in self._log_chunks(self._inspected.segment.log_path):
            yield SegmentChunk(SegmentFile.LOG, data)
            self._tell(len(data))
            failpoint("copy.some_bytes_sent")
        for file, whole in self._side_files():
            for at in range(0, len(whole), self._chunk_bytes):
                yield SegmentChunk(file, whole[at : at + self._chunk_bytes])

    def _tell(self, size_bytes: int) -> None:
        self._told_bytes += size_bytes
        if size_bytes:
            self._sent(size_bytes)

    def _log_chunks(self, path: Path) -> Iterator[bytes]:
        left = self._inspected.size_bytes
        with reading_segment(path), path.open("rb", buffering=0) as file:
            while left:
                self._going_on()
                data = file.read(min(left, self._chunk_bytes))
                if not data:
                    reason = f"cut off while it was being copied, {left} bytes are missing"
                    raise LogFileError(ProblemKind.COPY_FAILED, path, reason)
                left -= len(data)
                yield data


_LOOK_EVERY_S = 0.1

_TOO_MANY = (
    "%s has waited for a place at RSM for %d s, more copies come than RSM serves: raise "
    "RSM_COPY_THREADS, or run more RSMs: %s"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ThrottleRetry:
    """
    Attributes:
        backoff: between two questions.
        timeout_s: for so long it is asked, as long as RSM's client waits for a thread; then the
            copy has failed.
        warn_after_s: a copy that has waited for so long is told of as a warning.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, max_s=5.0))
    timeout_s: float = 1800.0
    warn_after_s: float = 60.0


def copy_with_throttle_retry(
    rsm: RemoteStorageManager,
    started: RemoteLogSegmentMetadata,
    source: SegmentSource,
    stopping: Flag,
    limits: ThrottleRetry,
) -> bytes | None:
    """RemoteStorageManager.copy_log_segment_data, asked under the same id until RSM has a place.

    Args:
        stopping: set: ask no more.

    Raises:
        CopyCancelledError: the copy is to stop.
        ThrottledError: RSM had no place for too long.
    """
    turn = _Turn(started.remote_log_segment_id, limits)
    while True:
        try:
            return rsm.copy_log_segment_data(started, source.data())
        except ThrottledError as e:
            turn.refused(e)
        turn.wait(source, stopping)


class _Turn:
    """The wait of a copy that is refused a place."""

    def __init__(self, segment_id: RemoteLogSegmentId, limits: ThrottleRetry) -> None:
        self._segment_id = segment_id
        self._limits = limits
        self._since_s = time.monotonic()
        self._refusals = 0
        self._is_told = False

    def refused(self, error: ThrottledError) -> None:
        """
        Raises:
            ThrottledError: it has been waited for too long.
        """
        now_s = time.monotonic()
        if self._refusals == 0:
            self._since_s = now_s
            _log.info("%s waits for a place at RSM: %s", self._segment_id, error)
        self._refusals += 1
        self._wait_s = self._limits.backoff.delay_s(self._refusals)
        waited_s = now_s - self._since_s
        if waited_s + self._wait_s > self._limits.timeout_s:
            raise error
        if waited_s >= self._limits.warn_after_s and not self._is_told:
            self._is_told = True
            _log.warning(_TOO_MANY, self._segment_id, waited_s, error)

    def wait(self, source: SegmentSource, stopping: Flag) -> None:
        """Until RSM is to be asked again.

        Raises:
            CopyCancelledError: the copy is to stop.
        """
        until_s = time.monotonic() + self._wait_s
        with COPIES_WAITING_FOR_RSM.track_inprogress():
            while (left_s := until_s - time.monotonic()) > 0:
                source.require_going_on()
                if stopping.is_set():
                    reason = "stopped while it waited for a place at RSM"
                    raise CopyCancelledError(f"{self._segment_id}: {reason}")
                threading.Event().wait(min(left_s, _LOOK_EVERY_S))


ENDED_BY_ANOTHER = (
    ConcurrentUpdateError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
"""How the copy ends was decided by somebody else, or its row is gone for good already."""

NOT_FINISHED = "copy not finished"
_State = RemoteLogSegmentState
_GIVEN_UP = (_State.DELETE_SEGMENT_STARTED, _State.DELETE_SEGMENT_FINISHED)
_ENDED = (_State.COPY_SEGMENT_FINISHED, _State.DELETE_SEGMENT_FINISHED)


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """
    Attributes:
        chunk_bytes: of the log that are in memory at once.
        custom_metadata_max_bytes: RSM's answer may not be longer.
        lease_ms: for how long nobody else ends a copy that this process cannot speak for.
        turn: for a place at RSM.
    """

    chunk_bytes: int = 1024 * 1024
    custom_metadata_max_bytes: int = 128
    lease_ms: int = 60_000
    throttle_retry: ThrottleRetry = field(default_factory=ThrottleRetry)


class SegmentCopier:
    """Copies inspected segments, and ends what earlier attempts left behind.

    Each attempt has a new segment id and a lease, renewed while it is under way. A failure that may
    pass gives the attempt up, DELETE_SEGMENT_STARTED, for the next pass to clean up; any other is
    cleaned up at once. An attempt of which nobody could say so, as its process was killed, or RLMM
    was away, is left to the next pass of this process, or of another one when its lease has ended.

    How an attempt ends is decided once: its finish and its clean-up bear one request id, so that a
    finish whose answer was lost and that takes effect late is never taken back by the clean-up.

    Args:
        now_ms: the time that attempts bear.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        now_ms: Callable[[], int],
        limits: CopyLimits,
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._broker_id = broker_id
        self.now_ms = now_ms
        self._limits = limits
        self._leases = CopyLeases(rlmm, broker_id, limits.lease_ms)
        self._lock = threading.Lock()
        self._being_copied: set[UUID] = set()

    @property
    def being_copied(self) -> frozenset[UUID]:
        """Ids of the segments that are under way in this process: in it before they are
        registered, and until it is known how they ended (Kafka: segmentIdsBeingCopied)."""
        with self._lock:
            return frozenset(self._being_copied)

    def copy(
        self,
        name: TopicIdPartition,
        inspected: InspectedSegment,
        broker_leader_epoch: int | None,
        sent: BytesSent,
        stopping: Flag,
        cancelled: Flag,
    ) -> None:
        """Copy a segment; on return it is COPY_SEGMENT_FINISHED.

        Args:
            stopping: set: leave it while it has no place at RSM; what RSM takes is finished.
            cancelled: set: leave it wherever it is.

        Raises:
            RETRIABLE_ERRORS: given up, or left where that cannot be said; try again later.
            RemoteStorageError: for good, and cleaned up as far as that worked; a
                CustomMetadataTooLargeError will not be another time either.
            LogFileError, SegmentVanishedError: the file changed meanwhile; cleaned up.
            CopyCancelledError: given up as with RETRIABLE_ERRORS; a LeaseLostError where the lease
                was lost.
        """
        started = self._describe(name, inspected, broker_leader_epoch)
        segment_id = started.remote_log_segment_id
        with self._counted(segment_id.id), self._leases.of(segment_id) as lease:

            def going_on() -> None:
                if cancelled.is_set():
                    raise CopyCancelledError(f"{segment_id}: stopped while it was being copied")
                lease.require_held()

            source = SegmentSource(inspected, self._limits.chunk_bytes, sent, going_on)
            self._copy(started, source, stopping, lease)

    def _copy(
        self,
        started: RemoteLogSegmentMetadata,
        source: SegmentSource,
        stopping: Flag,
        lease: CopyLease,
    ) -> None:
        self._rlmm.add_remote_log_segment_metadata(
            started, _context(started, "copy"), lease_ms=lease.lease_ms
        )
        self._leases.keep(lease)
        failpoint("copy.started_registered")
        custom_metadata = self._send(started, source, stopping)
        failpoint("copy.bytes_sent")
        copied = replace(started, custom_metadata=custom_metadata)
        self._check_custom_metadata(copied)
        try:
            lease.require_held()
        except LeaseLostError:
            self._try_clean_up(copied)
            raise
        try:
            self._end(copied, _State.COPY_SEGMENT_FINISHED, "copy")
        except ENDED_BY_ANOTHER:
            self._try_delete_if_given_up(copied)
            raise
        failpoint("copy.finished_registered")

    @contextmanager
    def _counted(self, segment_id: UUID) -> Iterator[None]:
        with self._lock:
            self._being_copied.add(segment_id)
        try:
            yield
        finally:
            with self._lock:
                self._being_copied.remove(segment_id)

    def under_way_elsewhere(
        self, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Which of these copies of this broker somebody else may be making: another process of it,
        under a lease, or the broker itself, which has the plugin and no leases. What began an hour
        ago counts no more.

        Raises:
            ConcurrentUpdateError: one has finished meanwhile; look again.
        """
        unknown = [s for s in segments if s.state is _State.COPY_SEGMENT_STARTED]
        unknown = [s for s in unknown if not self._leases.is_ours(s.remote_log_segment_id.id)]
        if not unknown:
            return []
        # No revision tells that a lease has ended, or was renewed: what was listed may be over.
        ids = [segment.remote_log_segment_id.id for segment in unknown]
        now = list(segments_by_id(self._rlmm, unknown[0].topic_id_partition, ids))
        for segment in now:
            if segment.state is _State.COPY_SEGMENT_FINISHED:
                raise ConcurrentUpdateError(
                    f"{segment.remote_log_segment_id}: its copy has finished meanwhile"
                )
        by_the_plugin = [s for s in now if not s.copy_leased and not _is_by_rlm(s)]
        leased = [segment for segment in now if segment.copy_leased]
        return leased + self._young(by_the_plugin)

    def _young(self, copies: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """By the database's clock, as leases: with this host's wrong, every copy was old."""
        if not copies:
            return []
        name = copies[0].topic_id_partition
        return young_copies(copies, self._rlmm.partition_state(name).value.read_at_ms)

    def clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Remove what is left of an attempt of this broker: DELETE_SEGMENT_STARTED, objects,
        DELETE_SEGMENT_FINISHED. Idempotent.

        Raises:
            ConcurrentUpdateError: how it ends was decided meanwhile; is_finished_or_gone tells.
            RemoteStorageError: to be tried again.
        """
        if segment.state is not _State.DELETE_SEGMENT_STARTED:
            self._end(segment, _State.DELETE_SEGMENT_STARTED, NOT_FINISHED)
        failpoint("cleanup.delete_started")
        self._rsm.delete_log_segment_data(segment)
        failpoint("cleanup.objects_deleted")
        context = _context(segment, NOT_FINISHED)
        self._update(segment, _State.DELETE_SEGMENT_FINISHED, context)

    def is_finished_or_gone(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether somebody else, or a call of ours that took effect late, has decided how it ends,
        as RLMM has it now."""
        segment_id = segment.remote_log_segment_id
        try:
            found = list(segments_by_id(self._rlmm, segment_id.topic_id_partition, [segment_id.id]))
        except RemoteResourceNotFoundError:
            return True
        return all(now.state in _ENDED for now in found)

    def _end(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, reason: str
    ) -> MutationOutcome:
        """Decide how an attempt ends, unless that was decided: the request id is taken then."""
        request_id = f"end-of-{segment.remote_log_segment_id.id.hex}"
        try:
            return self._update(segment, state, _context(segment, reason, request_id))
        except CustomMetadataTooLargeError:
            raise
        except InvalidRequestError as e:
            segment_id = segment.remote_log_segment_id
            raise ConcurrentUpdateError(f"{segment_id}: its end was decided meanwhile") from e

    def _send(
        self, started: RemoteLogSegmentMetadata, source: SegmentSource, stopping: Flag
    ) -> bytes | None:
        try:
            return copy_with_throttle_retry(
                self._rsm, started, source, stopping, self._limits.throttle_retry
            )
        except (*RETRIABLE_ERRORS, CopyCancelledError):
            self._try_give_up(started)
            raise
        except (RemoteStorageError, LogFileError, SegmentVanishedError):
            self._try_clean_up(started)
            raise

    def _check_custom_metadata(self, copied: RemoteLogSegmentMetadata) -> None:
        length = len(copied.custom_metadata or b"")
        limit = self._limits.custom_metadata_max_bytes
        if length > limit:
            self._try_clean_up(copied)
            raise CustomMetadataTooLargeError(
                f"custom_metadata: {length} bytes, the limit is {limit}"
            )

    def _try_give_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Say that this attempt will not finish, so that nobody waits for its lease to end."""
        try:
            given_up = self._end(segment, _State.DELETE_SEGMENT_STARTED, NOT_FINISHED)
        except ENDED_BY_ANOTHER:
            self._try_delete_if_given_up(segment)
        except RemoteStorageError as e:
            _log.warning("%s was not given up: %s", segment.remote_log_segment_id, e)
        else:
            if not given_up.applied:
                self._try_delete_if_given_up(segment)

    def _try_clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Of an attempt that was not asked to finish, and must not."""
        try:
            self.clean_up(segment)
        except ENDED_BY_ANOTHER:
            self._try_delete_if_given_up(segment)
        except RemoteStorageError:
            # The copy's own failure is what the caller must hear of; the next pass cleans up.
            _log.warning("clean-up of %s failed", segment.remote_log_segment_id, exc_info=True)

    def _try_delete_if_given_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete the objects of a copy that somebody else has given up, as may happen at any time
        once its lease has ended. Such a segment never counts again, and who deleted its objects may
        have done so before they were all there: nobody else would ever look for the rest."""
        segment_id = segment.remote_log_segment_id
        try:
            found = segments_by_id(self._rlmm, segment_id.topic_id_partition, [segment_id.id])
            is_given_up = all(now.state in _GIVEN_UP for now in found)
        except RemoteResourceNotFoundError:
            is_given_up = True
        except RemoteStorageError as e:
            _log.warning("%s: not known whether its objects are to go: %s", segment_id, e)
            return
        if is_given_up:
            self._try_delete_objects(segment)

    def _try_delete_objects(self, segment: RemoteLogSegmentMetadata) -> None:
        try:
            self._rsm.delete_log_segment_data(segment)
        except RemoteStorageError:
            name = segment.remote_log_segment_id
            _log.warning("objects of %s, which is deleted, were left", name, exc_info=True)

    def _describe(
        self,
        name: TopicIdPartition,
        inspected: InspectedSegment,
        broker_leader_epoch: int | None,
    ) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(name, uuid4()),
            start_offset=inspected.segment.base_offset,
            end_offset=inspected.segment.end_offset,
            max_timestamp_ms=inspected.max_timestamp_ms,
            broker_id=self._broker_id,
            event_timestamp_ms=self.now_ms(),
            segment_leader_epochs=inspected.leader_epochs,
            segment_size_in_bytes=inspected.size_bytes,
            txn_idx_empty=inspected.txn_idx_empty,
            broker_leader_epoch=broker_leader_epoch,
        )

    def _update(
        self,
        segment: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        context: MutationContext,
    ) -> MutationOutcome:
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            event_timestamp_ms=self.now_ms(),
            state=state,
            broker_id=self._broker_id,
            custom_metadata=segment.custom_metadata,
        )
        return self._rlmm.update_remote_log_segment_metadata(update, context)


def is_attempt_of(broker_id: int, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether an unfinished segment is a copy of this broker that did not end, or whose clean-up
    did not. What had been copied and is being deleted is for retention to finish: RSM's custom
    metadata tells of it."""
    is_copy = segment.state is _State.COPY_SEGMENT_STARTED or segment.custom_metadata is None
    return is_copy and segment.broker_id == broker_id


def _is_by_rlm(segment: RemoteLogSegmentMetadata) -> bool:
    """RLM tells the leader epoch that it copies under, and has a lease; or, before there were
    leases, the lock of the folder. A stock broker with the plugin has neither of the three: no
    interface of Kafka's has that epoch."""
    return segment.broker_leader_epoch is not None


def _context(
    segment: RemoteLogSegmentMetadata, reason: str, request_id: str | None = None
) -> MutationContext:
    return MutationContext(
        request_id=request_id, reason=reason, broker_leader_epoch=segment.broker_leader_epoch
    )
