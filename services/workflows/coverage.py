"""Count what a run verifies of each topic, and record it in RLMM."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from services.api.operations import MAX_RUN_COUNTS, RunCounts, ToolRun
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.batches import batches

COUNTS = ("segments", "done_segments", "done_bytes", "failed_segments")
"""The numbers of RunCounts."""


class Outcome(Enum):
    """The outcome of verifying a finished segment."""

    VERIFIED = "VERIFIED"
    FAILED = "FAILED"
    UNREAD = "UNREAD"


@dataclass(slots=True)
class Coverage:
    """What a run, or a part of one, has verified of each topic."""

    topics: dict[UUID | None, RunCounts] = field(default_factory=dict)

    def count(self, metadata: RemoteLogSegmentMetadata, outcome: Outcome) -> None:
        """Count a finished segment."""
        size_bytes, is_sound = metadata.segment_size_in_bytes, outcome is Outcome.VERIFIED
        topic_id = metadata.topic_id_partition.topic_id
        verified_bytes = max(size_bytes, 0) if is_sound else 0
        failed = int(outcome is Outcome.FAILED)
        self.add(RunCounts(topic_id, 1, int(is_sound), verified_bytes, failed))

    def add(self, more: RunCounts) -> None:
        """Add what was verified of a topic by another part of the run."""
        known = self.topics.get(more.topic_id, RunCounts(more.topic_id))
        sums = {name: getattr(known, name) + getattr(more, name) for name in COUNTS}
        self.topics[more.topic_id] = RunCounts(more.topic_id, **sums)

    def merge(self, other: "Coverage") -> None:
        """Add the counts of another part of the run."""
        for topic in other.topics.values():
            self.add(topic)

    def rows(self) -> list[Mapping[str, object]]:
        """Return a row for each topic, its id as text."""
        return [
            {"topic_id": str(topic_id), **{name: getattr(topic, name) for name in COUNTS}}
            for topic_id, topic in self.topics.items()
        ]

    def report(
        self, rlmm: RemoteLogMetadataManager, run: ToolRun, topic_ids: Collection[UUID]
    ) -> None:
        """Record what was verified of topics of which the run read everything, even if nothing.

        Raises:
            RetriableRemoteStorageError: RLMM is unreachable; run it again.
        """
        verified = [self.topics.get(each, RunCounts(each)) for each in sorted(topic_ids)]
        for batch in batches(verified, MAX_RUN_COUNTS):
            rlmm.report_tool_run(run, batch)


def verified_of(row: Mapping[str, Any]) -> RunCounts:
    """Build what was verified of a topic from a row of Coverage."""
    return RunCounts(UUID(row["topic_id"]), **{name: row[name] for name in COUNTS})
