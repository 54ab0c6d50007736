"""Test the buffers that all copies of a process share."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.rsm.upload import PartBuffers

MORE_THAN_THERE_IS = 2**62
"""Bytes."""


def test_a_buffer_given_back_is_taken_before_a_new_one_is_made() -> None:
    buffers = PartBuffers(2, 8, wait_timeout_ms=1000)
    first = buffers.acquire()
    buffers.release(first)
    assert buffers.acquire() is first


def test_there_are_never_more_buffers_than_the_number_given() -> None:
    buffers = PartBuffers(2, 8, wait_timeout_ms=1)
    taken = [buffers.acquire(), buffers.acquire()]
    with pytest.raises(RetriableRemoteStorageError, match="too many part buffers"):
        buffers.acquire()
    buffers.release(taken[0])
    assert buffers.acquire() is taken[0]


def test_a_caller_without_a_buffer_waits_for_one() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=10_000)
    only = buffers.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffers.acquire)
        buffers.release(only)
        assert waiting.result(timeout=10) is only


def test_a_buffer_has_the_size_of_a_part() -> None:
    assert len(PartBuffers(1, 123, wait_timeout_ms=1).acquire()) == 123


def test_a_buffer_for_which_there_is_no_memory_stays_free() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=1)
    for _ in range(2):
        with pytest.raises(MemoryError):
            buffers.acquire(MORE_THAN_THERE_IS)
    first = buffers.acquire()
    buffers.release(first)
    with pytest.raises(MemoryError):
        buffers.acquire(MORE_THAN_THERE_IS)
    assert buffers.acquire() is first


class Taker:
    """A copy that asks for a buffer, in a thread of its own."""

    def __init__(self, buffers: PartBuffers, pool: ThreadPoolExecutor) -> None:
        self._buffers = buffers
        self._waits = Event()
        self._gone = Event()
        self.taken: Future[memoryview] = pool.submit(self._take)
        assert self._waits.wait(60), "it has a buffer, or no place in the queue"

    def give_up(self) -> None:
        self._gone.set()

    def _take(self) -> memoryview:
        with serving(Call("copy", "-", self._is_active)):
            return self._buffers.acquire()

    def _is_active(self) -> bool:
        """Asked of those who wait."""
        self._waits.set()
        return not self._gone.is_set()


def test_buffers_are_handed_out_in_the_order_of_asking() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=60_000)
    buffer = buffers.acquire()
    with ThreadPoolExecutor(5) as pool:
        takers = [Taker(buffers, pool) for _ in range(5)]
        for number, taker in enumerate(takers):
            buffers.release(buffer)
            assert taker.taken.result(60) is buffer
            assert not any(later.taken.done() for later in takers[number + 1 :])


@pytest.mark.deep
def test_a_caller_that_retries_comes_after_waiting_callers() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=10_000)
    buffer = buffers.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = Taker(buffers, pool)
        buffers.release(buffer)
        with pytest.raises(RetriableRemoteStorageError, match="too many part buffers"):
            buffers.acquire()
        assert waiting.taken.result(60) is buffer


def test_a_caller_that_leaves_is_skipped() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=60_000)
    buffer = buffers.acquire()
    with ThreadPoolExecutor(2) as pool:
        first, second = Taker(buffers, pool), Taker(buffers, pool)
        first.give_up()
        with pytest.raises(RetriableRemoteStorageError, match="the caller stopped waiting"):
            first.taken.result(60)
        buffers.release(buffer)
        assert second.taken.result(60) is buffer
