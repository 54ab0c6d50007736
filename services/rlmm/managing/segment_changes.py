"""RLMM on SQL: segments are added and move from state to state."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Engine

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.rlmm import segment_additions, segment_updates
from services.rlmm.gathering import Gathering
from services.rlmm.limits import Limits
from services.rlmm.managing.database import OnDatabase
from services.rlmm.single_changes import change_alone, change_free


class SqlSegmentChanges(OnDatabase):
    """Satisfies services.api.segment_changes.SegmentChanges.

    Single changes that meet share a transaction (services.rlmm.gathering).
    """

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        super().__init__(engine, limits)
        alone = partial(change_alone, self._transactions)
        self._gathering = Gathering(self._transactions, change_free, alone)

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        addition = SegmentAddition(metadata, context, lease_ms)
        segment_additions.check(self._limits, addition)
        return self._gathering.change(addition)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_additions.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        change = SegmentUpdate(update, context)
        segment_updates.check(self._limits, change)
        return self._gathering.change(change)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_updates.update_all(self._transactions, self._limits, updates)
