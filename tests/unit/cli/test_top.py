"""Test the screens of `sediment top`."""

from services.cli.top import TopicLine, screen


def test_a_screen_fits_and_says_how_many_topics_it_leaves_out() -> None:
    topics = [
        TopicLine("x" * 249, 5 << 50, 1_234_567, 3 << 40, 123_456, 1_000, 2.5e9),
        *(TopicLine(f"topic-{number}", number) for number in range(40)),
    ]
    lines = list(screen(topics, 24, 0))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("1970-01-01T00:00:00+00:00  ")
    assert lines[-1] == "and 21 topics more"
    cells = ["5120.0", "TiB", "1,234,567", "2.3", "GiB", "3.0", "TiB", "123,456", "1,000"]
    assert lines[3].split()[1:] == cells
    assert all(len(line) <= 80 for line in screen([], 1, 0))
