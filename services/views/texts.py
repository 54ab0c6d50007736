"""Format names, counts, sizes, ages, times, states and epochs for people."""

from collections.abc import Iterable
from datetime import UTC, datetime

from services.api.ids import TopicIdPartition
from services.api.segments import SegmentLeaderEpoch
from services.common.quantities import counted


def partition_text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"


def epochs_text(epochs: Iterable[SegmentLeaderEpoch]) -> str:
    """Format leader epochs with their start offsets."""
    return " ".join(f"{each.leader_epoch}:{each.start_offset}" for each in epochs)


def sized(count: int, size_bytes: int, noun: str = "segment") -> str:
    """Format a count with the size of all: "2,290 segments (143 MiB)"."""
    return f"{counted(count, noun)} ({size_text(size_bytes)})"


def state_text(state: str) -> str:
    """Shorten a state: COPY_SEGMENT_FINISHED is FINISHED, DELETE_SEGMENT_STARTED DELETE_STARTED."""
    shortened = state.replace("_SEGMENT", "").replace("_PARTITION", "")
    return "FINISHED" if shortened == "COPY_FINISHED" else shortened


def size_text(size_bytes: float) -> str:
    """Format a size: 1536 is "1.5 KiB", 150,000,000 is "143 MiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    # As it is rounded: 1,048,575 is "1.0 MiB".
    while round(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or round(size, 1) >= 100 else 1
    return f"{size:.{digits}f} {units[0]}"


def age_text(age_ms: float) -> str:
    """Format an age or a duration in its largest unit: 200,000 ms is "3 min"."""
    age_s = max(int(age_ms), 0) // 1_000
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= size_s:
            return f"{age_s // size_s} {unit}"
    return f"{age_s} s"


def time_text(timestamp_ms: int, timespec: str = "seconds") -> str:
    """Format a time in UTC: 2026-01-31T12:00:00Z; "-" for -1, if the records have no time."""
    if timestamp_ms < 0:
        return "-"
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms, after the year 9999"
    return f"{at.isoformat(timespec=timespec)}Z"
