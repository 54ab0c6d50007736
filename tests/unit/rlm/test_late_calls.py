"""Test the count of calls that no request waits for any more."""

from concurrent.futures import Future
from dataclasses import replace

from services.rlm.fetch.tier_calls import LateCalls
from tests.unit.rlm.kafka_bytes import NAME


def test_a_partition_may_have_two_late_calls_and_others_theirs() -> None:
    late, calls = LateCalls(), [Future[int](), Future[int]()]
    for call in calls:
        assert not late.are_too_many(NAME)
        late.add(NAME, call)
    assert late.are_too_many(NAME)
    assert not late.are_too_many(replace(NAME, partition=NAME.partition + 1))
    calls[0].set_result(1)
    assert not late.are_too_many(NAME)


def test_a_call_that_has_ended_meanwhile_does_not_count() -> None:
    late = LateCalls()
    for _ in range(3):
        call = Future[int]()
        call.set_result(1)
        late.add(NAME, call)
    assert not late.are_too_many(NAME)
