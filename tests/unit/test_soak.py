"""Test the rule by which a soak finds what a process does not give back."""

import pytest

from tests.soak.flatness import ALLOWED, MIB, growths


def samples(figure: str, values: list[float]) -> list[dict[str, float]]:
    return [{**dict.fromkeys(ALLOWED, 100.0), figure: value} for value in values]


@pytest.mark.parametrize(
    ("figure", "step"),
    [("rss_bytes", 4.0 * MIB), ("threads", 1.0), ("descriptors", 2.0), ("connections", 1.0)],
)
def test_what_grows_all_the_time_is_not_flat(figure: str, step: float) -> None:
    found = growths("rlm", samples(figure, [10 * step + i * step for i in range(60)]))
    assert [growth.figure for growth in found if not growth.is_flat] == [figure]


def test_what_fills_at_first_is_flat() -> None:
    values = [min(i, 15) * 10.0 * MIB for i in range(60)]
    assert all(growth.is_flat for growth in growths("rlm", samples("rss_bytes", values)))
