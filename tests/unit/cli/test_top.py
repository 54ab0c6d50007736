"""Test the screens of `sediment top`."""

from uuid import UUID

from services.api.partitions import SegmentTotals
from services.cli.top import screen
from services.views.topics import TopicFigures


def figures(number: int, name: str, finished_bytes: int, segments: int = 0) -> TopicFigures:
    totals = SegmentTotals(finished_segments=segments, finished_bytes=finished_bytes)
    return TopicFigures(UUID(int=number), name, totals=totals)


def test_a_screen_fits_and_says_how_many_topics_it_leaves_out() -> None:
    long = figures(100, "x" * 249, 5 << 50, 1_234_567)
    long.lag_bytes, long.lag_segments, long.blocked_partitions = 3 << 40, 123_456, 1_000
    topics = [*(figures(number, f"topic-{number}", number) for number in range(40)), long]
    lines = list(screen(topics, {long.topic_id: 2.5e9}, 24, 0))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("1970-01-01T00:00:00Z  ")
    assert lines[-1] == "and 21 topics more"
    cells = ["5.0", "PiB", "2.3", "GiB", "3.0", "TiB", "1,000"]
    assert lines[3].split()[1:] == cells
    assert all(len(line) <= 80 for line in screen([], {}, 1, 0))
