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
from services.rlmm.limits import check_storable
from services.rlmm.managing.database import OnDatabase
from services.rlmm.outcomes import applied_once


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
        check_storable(context)
        require_may_lease(lease_ms, metadata.broker_id)

        def work(session: Session) -> MutationOutcome:
            with within("metadata.remote_log_segment_id"):
                partition = partitions.lock_or_create(session, metadata.topic_id_partition)
            return applied_once(
                session,
                partition,
                metadata,
                context,
                lambda: segments.add(session, partition, metadata, context, lease_ms),
            )

        return self._transactions.change(work)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_additions.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_update(update)
        check_storable(context)
        tp = update.remote_log_segment_id.topic_id_partition

        def work(session: Session) -> MutationOutcome:
            with within("update.remote_log_segment_id"):
                partition = partitions.lock_known(session, tp)
            return applied_once(
                session,
                partition,
                update,
                context,
                lambda: segments.move(session, partition, update, context),
            )

        return self._transactions.change(work)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_batches.update_all(self._transactions, self._limits, updates)
