"""Find copies that began long ago and never finished, and those that a finished copy replaces."""

from collections.abc import Iterator
from enum import Enum
from uuid import UUID

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import covers

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class CopyKind(Enum):
    """The kind of a copy that began and did not finish."""

    STUCK_COPY = "STUCK_COPY"
    SUPERSEDED_COPY = "SUPERSEDED_COPY"


def line_about(kind: CopyKind, metadata: RemoteLogSegmentMetadata) -> str:
    """Describe a copy that never finished."""
    offsets = f"offsets {metadata.start_offset} to {metadata.end_offset}"
    return f"{kind.value} {metadata.remote_log_segment_id}: {offsets}, broker {metadata.broker_id}"


class UnfinishedCopies:
    """Find the unfinished copies of a partition, whose segments are added by start offset."""

    def __init__(self, before_ms: int) -> None:
        """Consider copies that began at `before_ms` or earlier."""
        self._before_ms = before_ms
        self._finished: list[RemoteLogSegmentMetadata] = []
        self._stuck: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._superseded: set[UUID] = set()

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a segment, whose start offset is not below that of the one before."""
        start = metadata.start_offset
        self._finished = [each for each in self._finished if each.end_offset >= start]
        is_idle = metadata.state is _STARTED and not metadata.copy_leased
        if is_idle and metadata.event_timestamp_ms <= self._before_ms:
            self._stuck[metadata.remote_log_segment_id.id] = metadata
            for each in self._finished:
                self._compare(each, metadata)
        elif metadata.state is _FINISHED:
            self._finished.append(metadata)
            for each in self._stuck.values():
                if each.start_offset == start:
                    self._compare(metadata, each)

    def unfinished(self) -> Iterator[tuple[CopyKind, RemoteLogSegmentMetadata]]:
        """Yield each copy; SUPERSEDED_COPY if a finished one has all its offsets and epochs."""
        for segment_id, each in self._stuck.items():
            is_superseded = segment_id in self._superseded
            yield CopyKind.SUPERSEDED_COPY if is_superseded else CopyKind.STUCK_COPY, each

    def _compare(self, finished: RemoteLogSegmentMetadata, stuck: RemoteLogSegmentMetadata) -> None:
        if covers(finished, stuck):
            self._superseded.add(stuck.remote_log_segment_id.id)
