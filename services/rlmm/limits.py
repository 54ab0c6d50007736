"""What a request may hold at most; checked before the database is asked anything."""

from dataclasses import dataclass

from services.api.calls import MutationContext
from services.api.errors import CustomMetadataTooLargeError
from services.api.partition_state import PartitionReport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.validation import require


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    custom_metadata_bytes: the longest custom metadata of a segment.
    leader_epochs_per_segment: the most leader epochs of one segment.
    leader_epochs_per_report: the most leader epochs of a partition that a report may tell of.
    """

    custom_metadata_bytes: int = 128
    leader_epochs_per_segment: int = 10_000
    leader_epochs_per_report: int = 10_000

    def check_update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._check_custom_metadata("update", update.custom_metadata)

    def check_segment(self, metadata: RemoteLogSegmentMetadata, path: str = "metadata") -> None:
        self._check_custom_metadata(path, metadata.custom_metadata)
        count, most = len(metadata.segment_leader_epochs), self.leader_epochs_per_segment
        require(count <= most, f"{path}.segment_leader_epochs", f"at most {most}, has {count}")

    def check_addition(self, metadata: RemoteLogSegmentMetadata) -> None:
        """check_segment, and that the segment is one whose copy begins."""
        is_start = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        require(
            is_start, "metadata.state", f"must be COPY_SEGMENT_STARTED, is {metadata.state.value}"
        )
        self.check_segment(metadata)

    def check_report(self, report: PartitionReport) -> None:
        count, most = len(report.lineage.entries), self.leader_epochs_per_report
        require(count <= most, "leader_epochs", f"at most {most}, has {count}")

    def _check_custom_metadata(self, path: str, custom_metadata: bytes | None) -> None:
        length = len(custom_metadata or b"")
        if length > self.custom_metadata_bytes:
            raise CustomMetadataTooLargeError(
                f"{path}.custom_metadata: at most {self.custom_metadata_bytes} bytes, has {length}"
            )


def check_storable(context: MutationContext) -> None:
    """check_text of every text of the context."""
    for field in ("request_id", "reason", "rule_detail", "plan_id"):
        check_text(getattr(context, field) or "", f"context.{field}")


def check_text(text: str, field: str) -> None:
    """PostgreSQL's text has no NUL character."""
    require("\0" not in text, field, "must not contain NUL")
