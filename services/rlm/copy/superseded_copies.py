"""Mark the superseded segments of a partition for deletion; retention passes delete the objects."""

import logging
from collections.abc import Callable
from itertools import islice

from services.api.errors import DeletionRefusedError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import SegmentLineage
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import superseded
from services.rlm.tier import Tier
from services.workflows.deletion import Deleter, begin_deletion

MAX_MARKS = 10_000
"""Of one pass; the next one marks the others."""

_log = logging.getLogger(__name__)


class SupersededCopies:
    """Search one partition for superseded segments when its finished ones share other offsets."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, broker_id: int, now_ms: Callable[[], int]
    ) -> None:
        self._rlmm = rlmm
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._found_none_in = 0

    def may_exist(self, tier: Tier) -> bool:
        """Return whether a search may find something."""
        return tier.overlapping not in (0, self._found_none_in)

    def mark(
        self, name: TopicIdPartition, tier: Tier, lineage: SegmentLineage, epoch: int | None
    ) -> None:
        """Mark the superseded segments; what a hold keeps stays.

        Raises:
            ConcurrentUpdateError: a segment is not superseded any more; refresh and retry.
            RemoteStorageError: RLMM is unreachable, or refused a mark.
        """
        segments = all_segments(
            self._rlmm, name, states=[RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
        )
        found = [_deletion(*each) for each in islice(superseded(segments, lineage), MAX_MARKS)]
        if not found:
            self._found_none_in = tier.overlapping
            return
        deleter = Deleter(self._broker_id, broker_leader_epoch=epoch)
        outcomes = begin_deletion(self._rlmm, name, found, None, None, deleter, self._now_ms())
        for error in filter(None, (outcome.error for outcome in outcomes)):
            if not isinstance(error, DeletionRefusedError):
                raise error
            _log.info("%s: a superseded segment stays: %s", name, error)


def _deletion(worse: RemoteLogSegmentMetadata, better: RemoteLogSegmentMetadata) -> Deletion:
    id = uuid_to_text(better.remote_log_segment_id.id)
    detail = f"segment {id} has offsets {better.start_offset} to {better.end_offset}"
    return Deletion(worse, DeletionReason.SUPERSEDED, detail)
