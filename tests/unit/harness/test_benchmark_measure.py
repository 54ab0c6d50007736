"""Test which costs count to which side of a benchmark."""

import time

from benchmarks.measure import ratio

ROUNDS = 2
BESIDE_CPU_S = 0.2


def test_work_beside_the_measurement_counts_to_neither_side() -> None:
    done: list[str] = []

    def side(name: str) -> float:
        done.append(name)
        return 1.0

    def beside() -> None:
        done.append("beside")
        end = time.process_time() + BESIDE_CPU_S
        while time.process_time() < end:
            pass

    result = ratio(
        "test",
        ROUNDS,
        ("a", lambda: side("a")),
        ("b", lambda: side("b")),
        {},
        {},
        beside=beside,
    )
    assert done == ["a", "b", "beside"] * ROUNDS
    for each in (result.numerator, result.denominator):
        assert max(each.cpu_seconds) < BESIDE_CPU_S / 2
