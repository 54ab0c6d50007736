"""The copy of one segment: COPY_SEGMENT_STARTED, bytes, COPY_SEGMENT_FINISHED; or a clean-up.

Source: RemoteLogManager.RLMCopyTask.copyLogSegment, deleteRemoteLogSegment.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from uuid import UUID, uuid4

from services.api.calls import MutationContext
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
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rlm.copying.copy_data import BytesSent, SegmentSource
from services.rlm.copying.inspection import InspectedSegment
from services.rlm.kafka_log.errors import LogFileError, SegmentVanishedError

RETRIABLE_ERRORS = (RetriableRemoteStorageError, ThrottledError, ConcurrentUpdateError)

NOT_FINISHED = "copy not finished"
_State = RemoteLogSegmentState
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """
    Attributes:
        chunk_bytes: of the log that are in memory at once.
        custom_metadata_max_bytes: RSM's answer may not be longer.
    """

    chunk_bytes: int = 1024 * 1024
    custom_metadata_max_bytes: int = 128


class SegmentCopier:
    """Copies inspected segments, and ends what earlier attempts left behind.

    Each attempt has a new segment id. A failure that may pass leaves the segment
    COPY_SEGMENT_STARTED for the next pass to clean up; any other is cleaned up at once.

    How an attempt ends is decided once: its finish and its clean-up bear one request id, so that a
    finish whose answer was lost and that takes effect late is never taken back by the clean-up.
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
        self._now_ms = now_ms
        self._limits = limits
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
        cancelled: Event,
    ) -> None:
        """Copy a segment; on return it is COPY_SEGMENT_FINISHED.

        Raises:
            RETRIABLE_ERRORS: the attempt is left as it is; try again later.
            RemoteStorageError: for good, and cleaned up as far as that worked; a
                CustomMetadataTooLargeError will not be another time either.
            LogFileError, SegmentVanishedError: the file changed meanwhile; cleaned up.
            CopyCancelledError: left as it is.
        """
        started = self._describe(name, inspected, broker_leader_epoch)
        with self._counted(started.remote_log_segment_id.id):
            self._copy(started, inspected, sent, cancelled)

    def _copy(
        self,
        started: RemoteLogSegmentMetadata,
        inspected: InspectedSegment,
        sent: BytesSent,
        cancelled: Event,
    ) -> None:
        self._rlmm.add_remote_log_segment_metadata(started, _context(started, "copy"))
        failpoint("copy.started_registered")
        custom_metadata = self._send(started, inspected, sent, cancelled)
        failpoint("copy.bytes_sent")
        copied = replace(started, custom_metadata=custom_metadata)
        self._check_custom_metadata(copied)
        try:
            self._end(copied, _State.COPY_SEGMENT_FINISHED, "copy")
        except (InvalidStateTransitionError, RemoteResourceNotFoundError):
            # Marked for deletion meanwhile, or gone: a removal does not wait for copies, a sweep
            # only so long. Such a segment never counts again, and who deleted its objects may have
            # done so before they were all there: nobody else would ever look for the rest.
            self._try_delete_objects(copied)
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

    def clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        """Remove what is left of an attempt of this broker: DELETE_SEGMENT_STARTED, objects,
        DELETE_SEGMENT_FINISHED. Idempotent.

        Raises:
            ConcurrentUpdateError: how it ends was decided meanwhile; look again.
            RemoteStorageError: to be tried again.
        """
        if segment.state is not _State.DELETE_SEGMENT_STARTED:
            self._end(segment, _State.DELETE_SEGMENT_STARTED, NOT_FINISHED)
        failpoint("cleanup.delete_started")
        self._rsm.delete_log_segment_data(segment)
        failpoint("cleanup.objects_deleted")
        context = _context(segment, NOT_FINISHED)
        self._update(segment, _State.DELETE_SEGMENT_FINISHED, context)

    def _end(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, reason: str
    ) -> None:
        """Decide how an attempt ends, unless that was decided: the request id is taken then."""
        request_id = f"end-of-{segment.remote_log_segment_id.id.hex}"
        try:
            self._update(segment, state, _context(segment, reason, request_id))
        except CustomMetadataTooLargeError:
            raise
        except InvalidRequestError as e:
            segment_id = segment.remote_log_segment_id
            raise ConcurrentUpdateError(f"{segment_id}: its end was decided meanwhile") from e

    def _send(
        self,
        started: RemoteLogSegmentMetadata,
        inspected: InspectedSegment,
        sent: BytesSent,
        cancelled: Event,
    ) -> bytes | None:
        source = SegmentSource(inspected, self._limits.chunk_bytes, sent, cancelled)
        try:
            return self._rsm.copy_log_segment_data(started, source.data())
        except RETRIABLE_ERRORS:
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

    def _try_clean_up(self, segment: RemoteLogSegmentMetadata) -> None:
        try:
            self.clean_up(segment)
        except RemoteStorageError:
            # The copy's own failure is what the caller must hear of; the next pass cleans up.
            _log.warning("clean-up of %s failed", segment.remote_log_segment_id, exc_info=True)

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
            event_timestamp_ms=self._now_ms(),
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
    ) -> None:
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            event_timestamp_ms=self._now_ms(),
            state=state,
            broker_id=self._broker_id,
            custom_metadata=segment.custom_metadata,
        )
        self._rlmm.update_remote_log_segment_metadata(update, context)


def is_attempt_of(broker_id: int, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether an unfinished segment is a copy of this broker that did not end, or whose clean-up
    did not. What had been copied and is being deleted is for retention to finish: RSM's custom
    metadata tells of it."""
    is_copy = segment.state is _State.COPY_SEGMENT_STARTED or segment.custom_metadata is None
    return is_copy and segment.broker_id == broker_id


def _context(
    segment: RemoteLogSegmentMetadata, reason: str, request_id: str | None = None
) -> MutationContext:
    return MutationContext(
        request_id=request_id, reason=reason, broker_leader_epoch=segment.broker_leader_epoch
    )
