"""The copy of one segment: COPY_SEGMENT_STARTED, bytes, COPY_SEGMENT_FINISHED; or a clean-up.

Source: RemoteLogManager.RLMCopyTask.copyLogSegment, deleteRemoteLogSegment.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.failpoints import failpoint
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.retention import young_copies
from services.api.segment_queries import segments_by_id
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rlm.copying.copy_data import BytesSent, CopyCancelledError, SegmentSource
from services.rlm.copying.inspection import InspectedSegment
from services.rlm.copying.leases import CopyLease, CopyLeases, LeaseLostError
from services.rlm.copying.turn_at_rsm import TurnLimits, copy_in_turn
from services.rlm.ending import Flag
from services.rlm.kafka_log.errors import LogFileError, SegmentVanishedError
from services.rpc.bounded_lines import BoundedLines

RETRIABLE_ERRORS = (RetriableRemoteStorageError, ThrottledError, ConcurrentUpdateError)

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
_lines = BoundedLines(logging.getLogger(__name__))


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
    turn: TurnLimits = field(default_factory=TurnLimits)


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
            return copy_in_turn(self._rsm, started, source, stopping, self._limits.turn)
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
            _lines.warning("%s was not given up: %s", segment.remote_log_segment_id, e)
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
            _lines.warning("clean-up of %s failed", segment.remote_log_segment_id, exc_info=True)

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
            _lines.warning("%s: not known whether its objects are to go: %s", segment_id, e)
            return
        if is_given_up:
            self._try_delete_objects(segment)

    def _try_delete_objects(self, segment: RemoteLogSegmentMetadata) -> None:
        try:
            self._rsm.delete_log_segment_data(segment)
        except RemoteStorageError:
            name = segment.remote_log_segment_id
            _lines.warning("objects of %s, which is deleted, were left", name, exc_info=True)

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
