"""RLMM: segments are added and move from state to state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.segment_batches import MAX_BATCH, AddOutcome, SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate

MAX_UPDATE_BATCH = MAX_BATCH


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """One item of a batch: a change and why, as update_remote_log_segment_metadata takes them."""

    update: RemoteLogSegmentMetadataUpdate
    context: MutationContext = NO_CONTEXT


UpdateOutcome = MutationOutcome | RemoteStorageError


class SegmentChanges(Protocol):
    """What changes segments; a part of RemoteLogMetadataManager, which says what holds for all."""

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        """Register a copy that begins; `metadata.state` must be COPY_SEGMENT_STARTED.

        Idempotent: the same metadata again is a repeat, whatever its lease, and leaves the lease as
        it is. Raises the partition's highest broker leader epoch to the call's:
        `context.broker_leader_epoch`, or the metadata's where that is None.

        Args:
            lease_ms: how long from now on, by the database's clock, only this broker may give the
                copy up, MIN_LEASE_MS to MAX_LEASE_MS; None: anybody may at once.

        Raises:
            InvalidRequestError: another state; a topic id under another name; a lease out of
                bounds, or of a broker that is not known.
            SegmentAlreadyExistsError: the id is there with other content.
            InvalidStateTransitionError: the id is in a later state; the partition is being deleted.
            FencedLeaderEpochError: the broker leader epoch is below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """
        ...

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        """add_remote_log_segment_metadata of up to MAX_BATCH segments; one outcome each, in order,
        as update_remote_log_segment_metadata_batch has them.

        Raises:
            InvalidRequestError: the batch is empty or too large; a segment comes twice.
        """
        ...

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a segment to its next state. Idempotent: the state it is in, and
        DELETE_SEGMENT_STARTED of one that is DELETE_SEGMENT_FINISHED, with the same custom metadata
        or with none, is a repeat.

        Absent custom metadata keeps the stored one. COPY_SEGMENT_FINISHED makes the segment
        visible to look-ups and displaces older ones as Kafka does (kafka-storage
        RemoteLogLeaderEpochState).

        Raises:
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: the state machine does not allow it.
            SegmentAlreadyExistsError: the same state with other custom metadata.
            FencedLeaderEpochError: COPY_SEGMENT_FINISHED to DELETE_SEGMENT_STARTED under an epoch
                below the partition's highest. Finishing a copy and cleaning up one's own (same
                broker id) are allowed at any epoch.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: COPY_SEGMENT_FINISHED to DELETE_SEGMENT_STARTED of a topic on
                hold; or, unless the partition is in DELETE_PARTITION_STARTED, by another than the
                topic's retention owner, or by a sweep that is paused. COPY_SEGMENT_STARTED to
                DELETE_SEGMENT_STARTED by another broker than the one that added it, before its
                lease has ended; the message says when that is.
        """
        ...

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        """update_remote_log_segment_metadata of up to MAX_UPDATE_BATCH segments; one outcome each,
        in order. An error is that item's and stops no other.

        The items of one partition are done in their order, all of them at once;
        `expected_revision` is that of the partition before the batch. Of several partitions some
        may be done and others not when the call itself fails.

        Raises:
            InvalidRequestError: the batch is empty or too large; a segment comes twice.
        """
        ...
