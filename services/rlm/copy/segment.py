"""Copy one segment: COPY_SEGMENT_STARTED, bytes, COPY_SEGMENT_FINISHED; or clean up."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid, tail_uuid
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, segments_by_id
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.retention import young_copies
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.common.cancellation import Flag
from services.common.failpoints import failpoint
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.inspection import InspectedSegment
from services.rlm.copy.leases import CopyCancelledError, CopyLease, CopyLeases, LeaseLostError
from services.rlm.copy.sending import (
    BytesSent,
    SegmentSource,
    ThrottleRetry,
    copy_with_throttle_retry,
)
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError

_log = logging.getLogger(__name__)

ENDED_BY_ANOTHER = (
    ConcurrentUpdateError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
"""Another process decided how the copy ends, or its row is already deleted."""

NOT_FINISHED = "copy not finished"
_State = RemoteLogSegmentState
_ABANDONED = (_State.DELETE_SEGMENT_STARTED, _State.DELETE_SEGMENT_FINISHED)
_ENDED = (_State.COPY_SEGMENT_FINISHED, _State.DELETE_SEGMENT_FINISHED)


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """The bounds of one copy.

    Attributes:
        chunk_bytes: of the log in memory at once.
        custom_metadata_max_bytes: the longest custom metadata that RSM may return.
        lease_ms: how long after the last renewal no other process may end the copy.
    """

    chunk_bytes: int = 1024 * 1024
    custom_metadata_max_bytes: int = 128
    lease_ms: int = 60_000
    throttle_retry: ThrottleRetry = field(default_factory=ThrottleRetry)


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished segment, and the revisions of its partition that added and finished it."""

    segment: RemoteLogSegmentMetadata
    added_at: int
    finished_at: int


class SegmentCopier:
    """Copy inspected segments, and delete dangling copies of earlier attempts.

    Each attempt has a new segment id and a lease, which is renewed while the copy runs. After a
    retriable failure the attempt is abandoned (DELETE_SEGMENT_STARTED) and the next pass cleans up;
    after any other failure the copier cleans up at once. What a killed process leaves is cleaned up
    by the next pass, or by another process after the lease has expired.

    The end of an attempt is decided once: finish and clean-up have the same request id, so that the
    clean-up never reverts a finish whose answer was lost.

    Args:
        now_ms: the timestamp of events.
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

    @property
    def being_copied(self) -> frozenset[UUID]:
        """Return the ids of the segments that this process copies.

        An id is included from before the segment is registered until the end of the copy is known
        (Kafka: segmentIdsBeingCopied).
        """
        return self._leases.running

    def copy(
        self,
        name: TopicIdPartition,
        inspected: InspectedSegment,
        broker_leader_epoch: int | None,
        sent: BytesSent,
        stopping: Flag,
        cancelled: Flag,
    ) -> Copied:
        """Copy a segment; on return it is COPY_SEGMENT_FINISHED.

        Args:
            stopping: once set, stop waiting for RSM; a copy that RSM has accepted is finished.
            cancelled: once set, abandon the copy.

        Raises:
            RETRIABLE_ERRORS: the copy was abandoned; retry later.
            RemoteStorageError: the copy failed permanently and was cleaned up if possible; after a
                CustomMetadataTooLargeError every further attempt fails.
            LogFileError, SegmentVanishedError: the file changed meanwhile; the copy was cleaned up.
            CopyCancelledError: the copy was abandoned; LeaseLostError if the lease was lost.
        """
        started = self._describe(name, inspected, broker_leader_epoch)
        segment_id = started.remote_log_segment_id
        with self._leases.of(segment_id) as lease:

            def require_running() -> None:
                if cancelled.is_set():
                    raise CopyCancelledError(f"{segment_id}: the copy was cancelled")
                lease.require_held()

            source = SegmentSource(inspected, self._limits.chunk_bytes, sent, require_running)
            return self._copy(started, source, stopping, lease)

    def _copy(
        self,
        started: RemoteLogSegmentMetadata,
        source: SegmentSource,
        stopping: Flag,
        lease: CopyLease,
    ) -> Copied:
        added = self._rlmm.add_remote_log_segment_metadata(
            started, _context(started, "copy"), lease_ms=lease.lease_ms
        )
        self._leases.begin_renewal(lease)
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
            finished = self._end(copied, _State.COPY_SEGMENT_FINISHED, "copy")
        except ENDED_BY_ANOTHER:
            self._try_delete_if_abandoned(copied)
            raise
        failpoint("copy.finished_registered")
        segment = replace(copied, state=_State.COPY_SEGMENT_FINISHED)
        return Copied(segment, added.revision, finished.revision)

    def active_copies_elsewhere(
        self, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Return the copies of this broker that another process may be making.

        The other process is an RLM, which has a lease, or the broker with the plugin, whose copies
        have no lease and count for one hour.

        Raises:
            ConcurrentUpdateError: if one has finished meanwhile; refresh and retry.
        """
        unknown = [s for s in segments if s.state is _State.COPY_SEGMENT_STARTED]
        unknown = [s for s in unknown if not self._leases.is_ours(s.remote_log_segment_id.id)]
        if not unknown:
            return []
        # The end of a lease changes no revision, so the listed state may be outdated.
        ids = [segment.remote_log_segment_id.id for segment in unknown]
        now = list(segments_by_id(self._rlmm, unknown[0].topic_id_partition, ids))
        for segment in now:
            if segment.state is _State.COPY_SEGMENT_FINISHED:
                raise ConcurrentUpdateError(
                    f"{segment.remote_log_segment_id}: another process finished this copy; retry"
                )
        by_the_plugin = [s for s in now if not s.copy_leased and not _is_by_rlm(s)]
        leased = [segment for segment in now if segment.copy_leased]
        return leased + self._young(by_the_plugin)

    def _young(self, copies: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Return the young copies, by the database's clock, because this host's may be wrong."""
        if not copies:
            return []
        name = copies[0].topic_id_partition
        return young_copies(copies, self._rlmm.partition_state(name).value.read_at_ms)

    def clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete the rest of an attempt of this broker. Idempotent.

        The steps are DELETE_SEGMENT_STARTED, the objects, DELETE_SEGMENT_FINISHED.

        Raises:
            ConcurrentUpdateError: if another process ended it; see is_finished_or_gone.
        """
        if segment.state is not _State.DELETE_SEGMENT_STARTED:
            self._end(segment, _State.DELETE_SEGMENT_STARTED, NOT_FINISHED)
        failpoint("cleanup.delete_started")
        self._rsm.delete_log_segment_data(segment)
        failpoint("cleanup.objects_deleted")
        context = _context(segment, NOT_FINISHED)
        self._update(segment, _State.DELETE_SEGMENT_FINISHED, context)

    def is_finished_or_gone(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the attempt has ended, as RLMM has it now.

        Another process may have ended it, or an earlier call of this process that took effect late.
        """
        return self._state_of(segment) in (None, *_ENDED)

    def _state_of(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentState | None:
        """Return the state in RLMM now; None if RLMM does not have the segment."""
        segment_id = segment.remote_log_segment_id
        try:
            found = segments_by_id(self._rlmm, segment_id.topic_id_partition, [segment_id.id])
            return next((now.state for now in found), None)
        except RemoteResourceNotFoundError:
            return None

    def _end(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, reason: str
    ) -> MutationOutcome:
        """Decide the end of an attempt.

        Raises:
            ConcurrentUpdateError: if the end was decided before: the request id is then in use.
        """
        request_id = f"end-of-{segment.remote_log_segment_id.id.hex}"
        try:
            return self._update(segment, state, _context(segment, reason, request_id))
        except CustomMetadataTooLargeError:
            raise
        except InvalidRequestError as e:
            segment_id = segment.remote_log_segment_id
            raise ConcurrentUpdateError(
                f"{segment_id}: another process ended this copy; retry"
            ) from e

    def _send(
        self, started: RemoteLogSegmentMetadata, source: SegmentSource, stopping: Flag
    ) -> bytes | None:
        try:
            return copy_with_throttle_retry(
                self._rsm, started, source, stopping, self._limits.throttle_retry
            )
        except (*RETRIABLE_ERRORS, CopyCancelledError):
            self._try_abandon(started)
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
                f"RSM returned {length} bytes of custom metadata (limit {limit})"
            )

    def _try_abandon(self, segment: RemoteLogSegmentMetadata) -> None:
        """Mark this attempt as abandoned, so that no process waits for its lease."""
        try:
            abandoned = self._end(segment, _State.DELETE_SEGMENT_STARTED, NOT_FINISHED)
        except ENDED_BY_ANOTHER:
            self._try_delete_if_abandoned(segment)
        except RemoteStorageError as e:
            _log.warning(
                "%s: could not record that the copy was abandoned; the next pass retries: %s",
                segment.remote_log_segment_id,
                e,
            )
        else:
            if not abandoned.applied:
                self._try_delete_if_abandoned(segment)

    def _try_clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Clean up an attempt that must not finish."""
        try:
            self.clean_up(segment)
        except ENDED_BY_ANOTHER:
            self._try_delete_if_abandoned(segment)
        except RemoteStorageError:
            # The caller gets the failure of the copy itself; the next pass cleans up.
            _log.warning(
                "%s: clean-up failed; the next pass retries",
                segment.remote_log_segment_id,
                exc_info=True,
            )

    def _try_delete_if_abandoned(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete the objects of a copy that another process has abandoned.

        Any process may abandon a copy after its lease has expired. It may have deleted the objects
        before all of them were written, and no other process would delete the rest.
        """
        segment_id = segment.remote_log_segment_id
        try:
            if self._state_of(segment) not in (None, *_ABANDONED):
                return
        except RemoteStorageError as e:
            _log.warning(
                "%s: its objects may be left (`sediment reconcile` finds them): %s", segment_id, e
            )
            return
        try:
            self._rsm.delete_log_segment_data(segment)
        except RemoteStorageError:
            _log.warning(
                "%s is deleted, but its objects are not; `sediment reconcile` finds them",
                segment_id,
                exc_info=True,
            )

    def _describe(
        self,
        name: TopicIdPartition,
        inspected: InspectedSegment,
        broker_leader_epoch: int | None,
    ) -> RemoteLogSegmentMetadata:
        id = tail_uuid() if inspected.is_tail else random_uuid()
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(name, id),
            start_offset=inspected.start_offset,
            end_offset=inspected.end_offset,
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
    """Return whether an unfinished segment is a copy of this broker, or the clean-up of one.

    A segment with RSM's custom metadata had been copied: retention finishes its deletion.
    """
    is_copy = segment.state is _State.COPY_SEGMENT_STARTED or segment.custom_metadata is None
    return is_copy and segment.broker_id == broker_id


def _is_by_rlm(segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether RLM made the copy; RLM sets the leader epoch, the broker's plugin cannot."""
    return segment.broker_leader_epoch is not None


def _context(
    segment: RemoteLogSegmentMetadata, reason: str, request_id: str | None = None
) -> MutationContext:
    return MutationContext(
        request_id=request_id, reason=reason, broker_leader_epoch=segment.broker_leader_epoch
    )
