"""Test that concurrent callers share one result, and what is cached of it."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest
from cachetools import LRUCache, TTLCache

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.common.single_flight import SingleFlight
from tests.harness.eventually import eventually


class Work:
    """Returns how often it ran; waits for `gate` first."""

    def __init__(self) -> None:
        self.runs = 0
        self.fails = 0
        self.gate = Event()
        self.gate.set()

    def __call__(self) -> int:
        self.runs += 1
        run = self.runs
        assert self.gate.wait(60)
        if run <= self.fails:
            raise OSError(f"run {run}")
        return run


def together(
    flights: SingleFlight[str, int], work: Work, pool: ThreadPoolExecutor, callers: int = 4
) -> list["Future[tuple[int, bool]]"]:
    work.gate.clear()
    answers = [pool.submit(flights.run, "key", work) for _ in range(callers)]
    eventually(lambda: work.runs == 1)
    return answers


@pytest.mark.parametrize("cache", [None, LRUCache[str, int](9)], ids=["no cache", "a cache"])
def test_concurrent_callers_share_one_run(cache: LRUCache[str, int] | None) -> None:
    flights, work = SingleFlight(cache), Work()
    with ThreadPoolExecutor(4) as pool:
        answers = together(flights, work, pool)
        # Those that have begun to wait when it ends; a late one finds it in the cache, or runs it.
        work.gate.set()
        results = [each.result(60) for each in answers]
    ran = sum(is_mine for _, is_mine in results)
    assert ran == work.runs
    assert cache is None or ran == 1
    assert flights.run("key", work) == ((ran + 1, True) if cache is None else (1, False))


def test_one_key_does_not_wait_for_another() -> None:
    flights, work = SingleFlight[str, int](), Work()
    with ThreadPoolExecutor(1) as pool:
        (answer,) = together(flights, work, pool, callers=1)
        assert flights.run("another", lambda: 7) == (7, True)
        work.gate.set()
        assert answer.result(60) == (1, True)


def test_a_caller_does_not_wait_for_ever() -> None:
    flights, work = SingleFlight[str, int](), Work()
    with ThreadPoolExecutor(1) as pool:
        together(flights, work, pool, callers=1)
        with pytest.raises(RetriableRemoteStorageError, match=r"fetching key for over 0\.01 s"):
            flights.run("key", work, wait_s=0.01)
        work.gate.set()


def test_an_error_is_not_cached() -> None:
    flights, work = SingleFlight(LRUCache[str, int](9)), Work()
    work.fails = 1
    with pytest.raises(OSError, match="run 1"):
        flights.run("key", work)
    assert flights.run("key", work) == (2, True)
    assert flights.run("key", work) == (2, False)


def test_a_caller_that_left_does_not_fail_the_others() -> None:
    flights, work, has_left = SingleFlight(LRUCache[str, int](9)), Work(), Event()
    work.fails = 1
    work.gate.clear()

    def run(call: Call) -> tuple[int, bool]:
        with serving(call):
            return flights.run("key", work)

    with ThreadPoolExecutor(5) as pool:
        leaving = pool.submit(run, Call("somebody", "1", is_active=lambda: not has_left.is_set()))
        eventually(lambda: work.runs == 1)
        staying = [pool.submit(run, Call("another", "2")) for _ in range(4)]
        has_left.set()
        work.gate.set()
        with pytest.raises(OSError, match="run 1"):
            leaving.result(60)
        assert {each.result(60)[0] for each in staying} == {2}


def test_results_end_with_their_time_and_with_a_discard() -> None:
    now_s, work = 0.0, Work()
    flights = SingleFlight(TTLCache[str, int](9, 5, timer=lambda: now_s))
    flights.run("key", work)
    now_s = 4.9
    assert flights.cached("key") == 1
    now_s = 5.0
    assert flights.cached("key") is None
    assert flights.run("key", work) == (2, True)
    flights.discard(["key", "unknown"])
    assert flights.current_keys() == []
    assert flights.run("key", work) == (3, True)


def test_a_result_that_was_discarded_while_it_was_computed_is_not_kept() -> None:
    flights, work = SingleFlight(LRUCache[str, int](9)), Work()
    with ThreadPoolExecutor(1) as pool:
        (answer,) = together(flights, work, pool, callers=1)
        assert flights.current_keys() == ["key"]
        flights.discard(["key"])
        work.gate.set()
        assert answer.result(60) == (1, True)
    assert flights.cached("key") is None


def test_a_result_that_is_larger_than_the_cache_is_not_kept() -> None:
    flights = SingleFlight(LRUCache[str, str](3, getsizeof=len))
    assert flights.run("key", lambda: "long") == ("long", True)
    assert flights.run("key", lambda: "it") == ("it", True)
    assert flights.run("key", lambda: "new") == ("it", False)
