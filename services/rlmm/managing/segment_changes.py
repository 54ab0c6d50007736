"""RLMM on SQL: segments are added and move from state to state."""

from collections.abc import Sequence

from sqlalchemy import Engine

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.rlmm import segment_additions, segment_updates
from services.rlmm.batches import Outcome
from services.rlmm.free_changes import change_free
from services.rlmm.gathering import Gathering
from services.rlmm.limits import Limits, check_storable
from services.rlmm.managing.database import OnDatabase
from services.rlmm.segment_batch import SegmentChange, rows_of, tp_of


class SqlSegmentChanges(OnDatabase):
    """Satisfies services.api.segment_changes.SegmentChanges.

    Single changes that meet share a transaction (services.rlmm.gathering).
    """

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        super().__init__(engine, limits)
        self._gathering = Gathering[SegmentChange](
            self._transactions, tp_of, rows_of, change_free, self._change_alone
        )

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        addition = SegmentAddition(metadata, context, lease_ms)
        self._limits.check_addition(metadata)
        check_storable(context)
        return self._gathering.change(addition)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_additions.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_update(update)
        check_storable(context)
        return self._gathering.change(SegmentUpdate(update, context))

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_updates.update_all(self._transactions, self._limits, updates)

    def _change_alone(self, change: SegmentChange) -> Outcome:
        if isinstance(change, SegmentAddition):
            return segment_additions.add_alone(self._transactions, change)
        return segment_updates.update_alone(self._transactions, change)
