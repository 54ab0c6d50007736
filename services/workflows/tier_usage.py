"""Count what segments of the tier cost: objects, ages, growth and the requests that wrote them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import SegmentScan
from services.api.segments import RemoteLogSegmentState

DAY_MS = 86_400_000
GIB = 1 << 30
DAYS = (1, 7, 30)
OBJECTS_PER_SEGMENT = 3
"""Log, indexes and manifest."""

DEFAULT_PART_BYTES = 8 * 1024 * 1024
"""The default of RSM_PART_SIZE_BYTES."""


def writes_of_copy(size_bytes: int, part_bytes: int) -> int:
    """Return the requests with which RSM writes a segment: a log of one part is one of them.

    A log of several parts takes one request for each, and two to begin and complete the upload.
    """
    parts = -(-size_bytes // part_bytes)
    return OBJECTS_PER_SEGMENT + (parts + 1 if parts > 1 else 0)


@dataclass
class Ages:
    """The finished bytes by age, read by a scan of the segments.

    Attributes:
        by_age: by the newest record's age: under 1, 7 and 30 days, and older; each byte once.
        copied: copied within the last 1, 7 and 30 days, and still there.
        writes: the requests that wrote them.
    """

    by_age: list[int] = field(default_factory=lambda: [0] * (len(DAYS) + 1))
    copied: list[int] = field(default_factory=lambda: [0] * len(DAYS))
    writes: list[int] = field(default_factory=lambda: [0] * len(DAYS))

    def count(
        self, now_ms: int, max_timestamp_ms: int, copied_at_ms: int, size: int, part_bytes: int
    ) -> None:
        """Count a segment; one whose records have no time is as old as its copy."""
        newest_ms = copied_at_ms if max_timestamp_ms < 0 else max_timestamp_ms
        is_younger = [now_ms - newest_ms < days * DAY_MS for days in DAYS]
        size = max(size, 0)  # -1 is an unknown one
        self.by_age[[*is_younger, True].index(True)] += size
        for place, days in enumerate(DAYS):
            if now_ms - copied_at_ms < days * DAY_MS:
                self.copied[place] += size
                self.writes[place] += writes_of_copy(size, part_bytes)

    def add(self, other: "Ages") -> None:
        self.by_age = [a + b for a, b in zip(self.by_age, other.by_age, strict=True)]
        self.copied = [a + b for a, b in zip(self.copied, other.copied, strict=True)]
        self.writes = [a + b for a, b in zip(self.writes, other.writes, strict=True)]


def finished_segments(
    rlmm: RemoteLogMetadataManager, topic: str
) -> Iterator[tuple[str, int, int, int]]:
    """Scan the finished segments of topics with this name; "" for all.

    Yields topic id, newest record's time, time of the copy (ms), and size of the log (bytes).
    """
    columns = ("topic_id", "max_timestamp_ms", "event_timestamp_ms", "segment_size_in_bytes")
    states = (RemoteLogSegmentState.COPY_SEGMENT_FINISHED,)
    scan = SegmentScan(states=states, topic=topic, columns=columns)
    for batch in rlmm.scan_remote_log_segments(scan):
        with pa.ipc.open_stream(batch.arrow_ipc) as stream:
            for part in stream:
                yield from zip(*(part.column(name).to_pylist() for name in columns), strict=True)
