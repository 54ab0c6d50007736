"""Test who repeats a request to the store, and how often, on a clock that only pauses move."""

import logging
from collections.abc import Generator
from itertools import pairwise

import pytest
from minio.credentials.credentials import Credentials
from urllib3 import Retry
from urllib3.exceptions import ProtocolError

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.local.process import LOOPBACK
from services.rsm.backends.protocol import CHUNK_BYTES
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_credentials import FixedCredentials
from services.rsm.backends.s3_http import S3Target, http_pool
from services.rsm.backends.s3_retry import BrokenBodyError, resumed
from tests.harness.clocks import Clock
from tests.harness.local_servers import free_ports


class BrokenStore:
    """Breaks every body off before its first byte; knows when it was asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked_s: list[float] = []

    def get(self, position: int, retries: Retry) -> Generator[bytes, None, None]:
        self.asked_s.append(self._clock.now_s)
        raise BrokenBodyError("cut", retries)
        yield b""

    def read(self, retries: Retry, start: int = 0) -> None:
        list(resumed(self.get, start, retries, "what"))


def retries_of(clock: Clock, most: int) -> Retry:
    """Return what RSM_RETRIES=`most` allows a request."""
    retries = http_pool(1, 1000, 1000, most, clock.waiter).connection_pool_kw["retries"]
    assert isinstance(retries, Retry)
    return retries


def test_pauses_grow_and_are_bounded(clock: Clock) -> None:
    store = BrokenStore(clock)
    with pytest.raises(RetriableRemoteStorageError, match="what: the body broke off at byte 7"):
        store.read(retries_of(clock, 8), start=7)
    pauses = [after - before for before, after in pairwise(store.asked_s)]
    assert pauses[0] == 0
    assert 0.4 <= pauses[1] <= 0.6
    assert len(pauses) == 8
    assert all(1.0 <= pause <= 2.1 for pause in pauses[5:])


def test_the_end_of_the_service_ends_a_pause(clock: Clock) -> None:
    store = BrokenStore(clock)
    clock.waiter.close()
    with pytest.raises(RetriableRemoteStorageError, match=r"broke off .*the service is stopping"):
        store.read(retries_of(clock, 8))
    assert len(store.asked_s) == 1


def test_cancelled_call_ends_the_pause_before_a_retry(clock: Clock) -> None:
    store = BrokenStore(clock)
    began_s = clock.now_s
    with (
        serving(Call("reader", "-", is_active=lambda: clock.now_s == began_s)),
        pytest.raises(RetriableRemoteStorageError, match=r"broke off .*the client has left"),
    ):
        store.read(retries_of(clock, 8))
    assert clock.now_s - began_s < 0.2


def test_breaks_that_bring_a_mebibyte_each_do_not_fill_the_log(
    clock: Clock, limited_log: pytest.LogCaptureFixture
) -> None:
    chunks, size = 1000, CHUNK_BYTES

    def get(position: int, retries: Retry) -> Generator[bytes, None, None]:
        yield bytes(size)
        if position < (chunks - 1) * size:
            raise BrokenBodyError("cut", retries)

    with limited_log.at_level(logging.INFO):
        read = sum(map(len, resumed(get, 0, retries_of(clock, 1), "what")))
    assert read == chunks * size
    assert len([line for line in limited_log.messages if "requesting the rest" in line]) < 100


def test_failed_requests_and_breaks_share_the_retries(clock: Clock) -> None:
    asked: list[int | bool | None] = []

    def get(position: int, retries: Retry) -> Generator[bytes, None, None]:
        """Answer 503 once, then break off."""
        left = retries.increment("GET", error=ProtocolError("503"))
        asked.append(left.total)
        yield b"1"
        raise BrokenBodyError("cut", left)

    with pytest.raises(RetriableRemoteStorageError, match="broke off at byte 2 "):
        list(resumed(get, 0, retries_of(clock, 3), "what"))
    assert asked == [2, 0]


def test_the_http_client_leaves_the_retries_of_deletes_to_their_owner(clock: Clock) -> None:
    (port,) = free_ports(1)
    keys = FixedCredentials(Credentials("key", "secret"))
    target = S3Target(f"{LOOPBACK}:{port}", False, "us-east-1", "tier", keys, False)
    store = S3Storage(http_pool(1, 1000, 1000, 3, clock.waiter), target)
    began_s = clock.now_s
    failures = store.delete(["a"])
    assert isinstance(failures["a"], RetriableRemoteStorageError)
    assert clock.now_s == began_s, "no pause: it was sent once"
    with pytest.raises(RetriableRemoteStorageError):
        store.get("a")
    assert clock.now_s - began_s > 1
