"""The buffers that all copies of a process share."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.rsm.parts import PartBuffers


def test_a_buffer_given_back_is_taken_before_a_new_one_is_made() -> None:
    buffers = PartBuffers(2, 8, wait_timeout_ms=1000)
    first = buffers.take()
    buffers.give_back(first)
    assert buffers.take() is first


def test_there_are_never_more_buffers_than_the_number_given() -> None:
    buffers = PartBuffers(2, 8, wait_timeout_ms=1)
    taken = [buffers.take(), buffers.take()]
    with pytest.raises(RetriableRemoteStorageError, match="no part buffer"):
        buffers.take()
    buffers.give_back(taken[0])
    assert buffers.take() is taken[0]


def test_who_finds_no_buffer_waits_for_one() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=10_000)
    only = buffers.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffers.take)
        buffers.give_back(only)
        assert waiting.result(timeout=10) is only


def test_a_buffer_has_the_size_of_a_part() -> None:
    assert len(PartBuffers(1, 123, wait_timeout_ms=1).take()) == 123
