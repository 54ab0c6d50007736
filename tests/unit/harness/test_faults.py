"""Test which request gets which fault."""

from collections.abc import Sequence
from itertools import count

import pytest

from tests.harness.faults import (
    Answer,
    Cut,
    Delay,
    Direction,
    Fault,
    Faults,
    Throttle,
    through,
)

SLOW_DOWN = Answer(503)


def taken(faults: Faults, operations: Sequence[str]) -> list[Fault | None]:
    return [faults.take(operation) for operation in operations]


def test_a_storm_hits_its_share_of_requests_the_same_ones_for_the_same_seed() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.storm(SLOW_DOWN, 0.3)
        return [fault is not None for fault in taken(faults, ["get"] * 1_000)]

    assert hits(seed=1) == hits(seed=1)
    assert hits(seed=1) != hits(seed=2)
    assert sum(hits(seed=1)) == pytest.approx(300, abs=60)


@pytest.mark.parametrize(
    ("operations", "times", "hit"),
    [(["get", "put"], None, [True, False, True]), (None, 2, [True, True, False])],
)
def test_a_storm_hits_its_operations_so_many_times(
    operations: list[str] | None, times: int | None, hit: list[bool]
) -> None:
    faults = Faults()
    faults.storm(SLOW_DOWN, 1, operations=operations, times=times)
    assert taken(faults, ["get", "delete", "put"]) == [SLOW_DOWN if h else None for h in hit]


def test_a_storm_is_over_after_a_time() -> None:
    clock = count(100.0, 1.0)  # a second passes at each look
    faults = Faults(clock=lambda: next(clock))
    faults.storm(SLOW_DOWN, 1, for_ms=2_500)
    assert taken(faults, ["get"] * 4) == [SLOW_DOWN, SLOW_DOWN, None, None]


def test_request_spared_by_a_storm_takes_the_next_rule() -> None:
    faults = Faults()
    faults.storm(SLOW_DOWN, 1, operations=["get"], times=1)
    faults.add(Delay(5), times=None)
    assert taken(faults, ["get", "get", "put"]) == [SLOW_DOWN, Delay(5), Delay(5)]


def test_a_delay_with_jitter_is_drawn_again_for_each_request() -> None:
    faults = Faults(seed=3)
    faults.add(Delay(100, jitter_ms=50), times=None)
    delays = [fault.delay_ms for fault in taken(faults, ["get"] * 200) if isinstance(fault, Delay)]
    assert len(delays) == 200
    assert 100 <= min(delays) < 105
    assert 145 < max(delays) <= 150


def test_a_throttled_stream_passes_unchanged_at_its_rate() -> None:
    sent: list[bytes] = []
    waited: list[float] = []
    send = through(Throttle(1_000), Direction.REQUEST, sent.append, waited.append)
    for piece in (b"a" * 300, b"b" * 1_200):
        send(piece)
    assert b"".join(sent) == b"a" * 300 + b"b" * 1_200
    assert sum(waited) == pytest.approx(1.5)
    assert max(waited) < 0.1, "smooth, not by the second"


def test_an_ending_touches_only_its_direction() -> None:
    sent: list[bytes] = []
    send = through(Cut(1, Direction.REQUEST), Direction.RESPONSE, sent.append, float)
    send(b"ping")
    assert sent == [b"ping"]
