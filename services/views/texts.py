"""Format sizes, ages and times."""

from datetime import UTC, datetime

from services.api.ids import TopicIdPartition


def partition_text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"


def size_text(size_bytes: int) -> str:
    """Format a size: 1536 is "1.5 KiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def age_text(age_ms: int) -> str:
    """Format an age in its largest unit: 200,000 ms is "3 min"."""
    age_s = max(age_ms, 0) // 1_000
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= size_s:
            return f"{age_s // size_s} {unit}"
    return f"{age_s} s"


def time_text(timestamp_ms: int, timespec: str = "milliseconds") -> str:
    """Format a time in UTC; "-" for -1, the time of a segment whose records have none."""
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms, after the year 9999"
