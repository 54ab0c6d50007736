"""Test how durations and sizes are read and written."""

import pytest

from services.common.quantities import DURATION_MS, DURATION_S, SIZE_BYTES


@pytest.mark.parametrize(
    ("text", "ms", "written"),
    [
        ("8d", 691_200_000, "8d"),
        ("1h", 3_600_000, "1h"),
        ("1.5h", 5_400_000, "90m"),
        ("2min", 120_000, "2m"),
        ("500 ms", 500, "500ms"),
        ("10", 10_000, "10s"),
        ("0.0001", 0, "0"),
        ("0", 0, "0"),
    ],
)
def test_a_duration_is_read_in_ms_and_written_in_its_largest_unit(
    text: str, ms: int, written: str
) -> None:
    assert (DURATION_MS(text), DURATION_MS.text(ms)) == (ms, written)
    assert isinstance(DURATION_MS(text), int)


def test_a_duration_is_read_in_seconds_too() -> None:
    assert [*map(DURATION_S, ("0.5", "500ms", "10m"))] == [0.5, 0.5, 600]
    assert [*map(DURATION_S.text, (0.5, 600.0))] == ["500ms", "10m"]


@pytest.mark.parametrize(
    ("text", "size_bytes", "written"),
    [
        ("1M", 1_048_576, "1MiB"),
        ("64kib", 65_536, "64KiB"),
        ("32MiB/s", 33_554_432, "32MiB"),
        ("1.5GiB", 1_610_612_736, "1536MiB"),
        ("33554433", 33_554_433, "33554433B"),
    ],
)
def test_a_size_is_read_and_written(text: str, size_bytes: int, written: str) -> None:
    assert (SIZE_BYTES(text), SIZE_BYTES.text(size_bytes)) == (size_bytes, written)


@pytest.mark.parametrize("text", ["", "soon", "-5", "1X", "1 MB", "1_0", "\u0661", "1e3", "inf"])
def test_what_is_no_quantity_is_refused_with_the_rule(text: str) -> None:
    for kind in (DURATION_MS, SIZE_BYTES):
        with pytest.raises(ValueError, match=kind.rule):
            kind(text)
