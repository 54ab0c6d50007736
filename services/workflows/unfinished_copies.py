"""Find copies that began long ago and never finished, and those that a finished copy replaces."""

from collections.abc import Iterator
from enum import Enum
from uuid import UUID

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.workflows.bucket_copies import covers


class CopyKind(Enum):
    """The kind of a copy that began and did not finish."""

    STUCK_COPY = "STUCK_COPY"
    SUPERSEDED_COPY = "SUPERSEDED_COPY"


def line_about(kind: CopyKind, metadata: RemoteLogSegmentMetadata) -> str:
    """Describe a copy that never finished."""
    offsets = f"offsets {metadata.start_offset} to {metadata.end_offset}"
    return f"{kind.value} {metadata.remote_log_segment_id}: {offsets}, broker {metadata.broker_id}"


def is_stuck(metadata: RemoteLogSegmentMetadata, before_ms: int) -> bool:
    """Return whether a copy began at `before_ms` or earlier, and nobody has its lease."""
    is_started = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    is_idle = is_started and not metadata.copy_leased
    return is_idle and metadata.event_timestamp_ms <= before_ms


class UnfinishedCopies:
    """Find the unfinished copies of a partition, of which the segments come by start offset."""

    def __init__(self, before_ms: int) -> None:
        """Consider copies that began at `before_ms` or earlier."""
        self._before_ms = before_ms
        self._finished: list[RemoteLogSegmentMetadata] = []
        self._stuck: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._superseded: set[UUID] = set()

    def see(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Take a segment into account; its start offset is not below that of the one before."""
        start = metadata.start_offset
        self._finished = [each for each in self._finished if each.end_offset >= start]
        if is_stuck(metadata, self._before_ms):
            self._stuck[metadata.remote_log_segment_id.id] = metadata
            for each in self._finished:
                self._compare(each, metadata)
        elif metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._finished.append(metadata)
            for each in self._stuck.values():
                if each.start_offset == start:
                    self._compare(metadata, each)

    def found(self) -> Iterator[tuple[CopyKind, RemoteLogSegmentMetadata]]:
        """Yield each copy; SUPERSEDED_COPY if a finished one has all its offsets and epochs."""
        for segment_id, each in self._stuck.items():
            is_superseded = segment_id in self._superseded
            yield CopyKind.SUPERSEDED_COPY if is_superseded else CopyKind.STUCK_COPY, each

    def _compare(self, finished: RemoteLogSegmentMetadata, stuck: RemoteLogSegmentMetadata) -> None:
        if covers(finished, stuck):
            self._superseded.add(stuck.remote_log_segment_id.id)
