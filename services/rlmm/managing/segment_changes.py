"""RLMM on SQL: segments are added and move from state to state."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.copy_leases import require_may_lease
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.api.validation import within
from services.rlmm import partitions, segment_additions, segment_batches, segments
from services.rlmm.managing.database import OnDatabase
from services.rlmm.tables import PartitionRow


class SqlSegmentChanges(OnDatabase):
    """Satisfies services.api.segment_changes.SegmentChanges."""

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        self._limits.check_addition(metadata)
        require_may_lease(lease_ms, metadata.broker_id)

        def lock(session: Session) -> PartitionRow:
            with within("metadata.remote_log_segment_id"):
                return partitions.lock_or_create(session, metadata.topic_id_partition)

        return self._change_once(
            metadata,
            context,
            lock,
            lambda session, partition: segments.add(
                session, partition, metadata, context, lease_ms
            ),
        )

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_additions.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_update(update)
        tp = update.remote_log_segment_id.topic_id_partition

        def lock(session: Session) -> PartitionRow:
            with within("update.remote_log_segment_id"):
                return partitions.lock_known(session, tp)

        return self._change_once(
            update,
            context,
            lock,
            lambda session, partition: segments.move(session, partition, update, context),
        )

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_batches.update_all(self._transactions, self._limits, updates)
