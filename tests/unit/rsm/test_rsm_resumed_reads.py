"""Test the pauses before a broken body is requested again, on a clock that only they move."""

import logging
from collections.abc import Generator
from itertools import pairwise

import pytest

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.rsm.backends.protocol import CHUNK_BYTES
from services.rsm.backends.s3_http import BrokenBodyError, Resumes
from tests.harness.moved_clock import MovedClock


class BrokenStore:
    """Breaks every body off before its first byte; knows when it was asked."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock
        self.asked_s: list[float] = []

    def get(self, position: int) -> Generator[bytes, None, None]:
        self.asked_s.append(self._clock.now_s)
        raise BrokenBodyError("cut")
        yield b""


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


def test_pauses_grow_and_are_bounded(clock: MovedClock) -> None:
    store = BrokenStore(clock)
    with pytest.raises(RetriableRemoteStorageError, match="what: the body broke off at byte 7"):
        list(Resumes(8, clock.waiting).resumed(store.get, 7, "what"))
    pauses = [after - before for before, after in pairwise(store.asked_s)]
    assert pauses[0] == 0
    assert 0.2 <= pauses[1] <= 0.5
    assert all(1.0 <= pause <= 2.1 for pause in pauses[5:])


def test_the_end_of_the_service_ends_a_pause(clock: MovedClock) -> None:
    store = BrokenStore(clock)
    clock.waiting.close()
    with pytest.raises(RetriableRemoteStorageError, match=r"broke off .*the service is stopping"):
        list(Resumes(8, clock.waiting).resumed(store.get, 0, "what"))
    at_once_and_once_more = 2
    assert len(store.asked_s) == at_once_and_once_more


def test_a_caller_who_leaves_in_a_pause_ends_it(clock: MovedClock) -> None:
    store = BrokenStore(clock)
    began_s = clock.now_s
    with (
        serving(Call("reader", "-", is_active=lambda: clock.now_s == began_s)),
        pytest.raises(RetriableRemoteStorageError, match=r"broke off .*stopped waiting"),
    ):
        list(Resumes(8, clock.waiting).resumed(store.get, 0, "what"))
    assert clock.now_s - began_s < 0.2


def test_breaks_that_bring_a_mebibyte_each_do_not_fill_the_log(
    clock: MovedClock, limited_log: pytest.LogCaptureFixture
) -> None:
    chunks, size = 1000, CHUNK_BYTES

    def get(position: int) -> Generator[bytes, None, None]:
        yield bytes(size)
        if position < (chunks - 1) * size:
            raise BrokenBodyError("cut")

    with limited_log.at_level(logging.INFO):
        read = sum(map(len, Resumes(1, clock.waiting).resumed(get, 0, "what")))
    assert read == chunks * size
    assert len([line for line in limited_log.messages if "asking for the rest" in line]) < 100
