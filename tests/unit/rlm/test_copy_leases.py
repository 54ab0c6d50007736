"""Test leases as their holder sees them: by its own clock, and by RLMM's responses."""

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from threading import Event, Thread
from threading import enumerate as threads
from typing import cast
from uuid import uuid4

import pytest

from services.api.errors import (
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, RenewOutcome
from services.rlm.copy.leases import CopyLeases, LeaseLostError
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import NAME

LEASE_MS = 60_000
RENEWED_EACH_SECOND_MS = 3_000
"""By the real clock; with a stopped clock the lease lasts, however slow the machine is."""
BROKER = 7


class Renewals:
    """The part of RLMM that renews leases: gives the set responses, and counts."""

    def __init__(self) -> None:
        self.asked: list[list[RemoteLogSegmentId]] = []
        self.refused: dict[RemoteLogSegmentId, RenewOutcome] = {}
        self.is_away = False
        self.meanwhile: Callable[[], None] = lambda: None

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        assert broker_id == BROKER
        self.asked.append(list(segment_ids))
        self.meanwhile()
        if self.is_away:
            raise RetriableRemoteStorageError("away")
        return [self.refused.get(segment_id) for segment_id in segment_ids]

    @property
    def as_rlmm(self) -> RemoteLogMetadataManager:
        return cast(RemoteLogMetadataManager, self)


@pytest.fixture
def rlmm() -> Renewals:
    return Renewals()


@pytest.fixture
def leases(rlmm: Renewals, clock: Clock) -> CopyLeases:
    return CopyLeases(rlmm.as_rlmm, BROKER, LEASE_MS, clock)


def a_copy() -> RemoteLogSegmentId:
    return RemoteLogSegmentId(NAME, uuid4())


def renewers() -> int:
    return sum(thread.name == "copy-leases" for thread in threads())


def test_a_lease_is_held_until_it_ends_by_our_clock(leases: CopyLeases, clock: Clock) -> None:
    with leases.of(a_copy()) as lease:
        clock.now_s += 59.9
        lease.require_held()
        clock.now_s += 0.1
        with pytest.raises(LeaseLostError, match="expired before it was renewed"):
            lease.require_held()


def test_a_renewal_counts_from_when_it_was_asked_for(
    leases: CopyLeases, rlmm: Renewals, clock: Clock
) -> None:
    def answer_late() -> None:
        clock.now_s += 10

    rlmm.meanwhile = answer_late
    with leases.of(a_copy()) as lease:
        leases.begin_renewal(lease)
        clock.now_s += 20
        assert leases.renew()
        clock.now_s += 49.9
        assert lease.is_held()
        clock.now_s += 0.1
        assert not lease.is_held()


def test_one_call_renews_all_that_are_registered(leases: CopyLeases, rlmm: Renewals) -> None:
    with leases.of(a_copy()) as first, leases.of(a_copy()) as second, leases.of(a_copy()):
        leases.begin_renewal(first)
        leases.begin_renewal(second)
        assert leases.renew()
    assert rlmm.asked == [[first.segment_id, second.segment_id]]
    assert leases.renew()
    assert len(rlmm.asked) == 1


@pytest.mark.parametrize("error", [InvalidStateTransitionError, RemoteResourceNotFoundError])
def test_a_refused_renewal_ends_that_copy_alone(
    leases: CopyLeases, rlmm: Renewals, error: type[RemoteStorageError]
) -> None:
    with leases.of(a_copy()) as first, leases.of(a_copy()) as second:
        leases.begin_renewal(first)
        leases.begin_renewal(second)
        rlmm.refused[first.segment_id] = error("its copy is over")
        assert leases.renew()
        with pytest.raises(LeaseLostError, match="its copy is over"):
            first.require_held()
        second.require_held()
        assert leases.renew()
    assert rlmm.asked[1] == [second.segment_id]


@pytest.mark.parametrize(
    "error", [RetriableRemoteStorageError, RemoteStorageError, InvalidRequestError]
)
def test_another_error_of_one_copy_is_tried_again_while_its_lease_lasts(
    leases: CopyLeases, rlmm: Renewals, clock: Clock, error: type[RemoteStorageError]
) -> None:
    with leases.of(a_copy()) as first, leases.of(a_copy()) as second:
        leases.begin_renewal(first)
        leases.begin_renewal(second)
        rlmm.refused[first.segment_id] = error("its partition's lock is not free")
        clock.now_s += 50
        assert not leases.renew()
        first.require_held()
        clock.now_s += 9.9
        rlmm.refused.clear()
        assert leases.renew()
        clock.now_s += 59.9
        first.require_held()
        second.require_held()


def test_an_outage_shorter_than_the_lease_costs_nothing(
    leases: CopyLeases, rlmm: Renewals, clock: Clock
) -> None:
    with leases.of(a_copy()) as lease:
        leases.begin_renewal(lease)
        rlmm.is_away = True
        clock.now_s += 59
        assert not leases.renew()
        lease.require_held()
        rlmm.is_away = False
        assert leases.renew()
        clock.now_s += 59
        lease.require_held()


def test_a_lease_that_has_ended_is_not_renewed_any_more(
    leases: CopyLeases, rlmm: Renewals, clock: Clock
) -> None:
    with leases.of(a_copy()) as lease:
        leases.begin_renewal(lease)
        clock.now_s += 61
        assert leases.renew()
        assert rlmm.asked == []
        clock.now_s -= 61
        assert not lease.is_held()


def test_lease_that_expired_before_its_renewal_was_answered_is_lost(
    leases: CopyLeases, rlmm: Renewals, clock: Clock
) -> None:
    def answer_too_late() -> None:
        clock.now_s += 15

    rlmm.meanwhile = answer_too_late
    with leases.of(a_copy()) as lease:
        leases.begin_renewal(lease)
        clock.now_s += 50
        assert leases.renew()
        with pytest.raises(LeaseLostError, match="expired before it was renewed"):
            lease.require_held()


def test_a_lease_ends_while_the_machine_is_suspended(
    rlmm: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = {time.CLOCK_BOOTTIME: 1_000.0}
    monkeypatch.setattr(time, "clock_gettime", now_s.__getitem__)
    with CopyLeases(rlmm.as_rlmm, BROKER, LEASE_MS).of(a_copy()) as lease:
        lease.require_held()
        now_s[time.CLOCK_BOOTTIME] += 61
        assert not lease.is_held()


@pytest.mark.deep
def test_copies_are_forgotten_when_their_leases_have_ended(
    leases: CopyLeases, clock: Clock
) -> None:
    def end_one() -> "weakref.ref[object]":
        copy = a_copy()
        with leases.of(copy):
            return weakref.ref(copy.id)

    ended = end_one()
    gc.collect()
    assert ended() is not None
    clock.now_s += 60
    end_one()
    gc.collect()
    assert ended() is None


def test_a_copy_is_ours_for_as_long_as_it_may_be_leased(leases: CopyLeases, clock: Clock) -> None:
    copy = a_copy()
    assert not leases.is_ours(copy.id)
    with leases.of(copy):
        clock.now_s += 600
        assert leases.is_ours(copy.id)
    clock.now_s += 59
    assert leases.is_ours(copy.id)
    clock.now_s += 1
    assert not leases.is_ours(copy.id)


def test_the_renewing_thread_is_one_and_ends_with_the_last_copy(
    rlmm: Renewals, clock: Clock
) -> None:
    leases = CopyLeases(rlmm.as_rlmm, BROKER, RENEWED_EACH_SECOND_MS, clock)
    eventually(lambda: renewers() == 0, 60_000)
    with leases.of(a_copy()) as first:
        leases.begin_renewal(first)
        with leases.of(a_copy()) as second:
            leases.begin_renewal(second)
            eventually(lambda: [first.segment_id, second.segment_id] in rlmm.asked, 60_000)
            assert renewers() == 1
    eventually(lambda: renewers() == 0, 60_000)
    with leases.of(a_copy()) as third:
        leases.begin_renewal(third)
        eventually(lambda: [third.segment_id] in rlmm.asked, 60_000)
    eventually(lambda: renewers() == 0, 60_000)


@pytest.mark.parametrize("error", [RetriableRemoteStorageError("away"), KeyError("a bug")])
def test_renewing_thread_survives_any_error(
    rlmm: Renewals, clock: Clock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failed = Event()

    def fail_once() -> None:
        if not failed.is_set():
            failed.set()
            raise error

    rlmm.meanwhile = fail_once
    leases = CopyLeases(rlmm.as_rlmm, BROKER, RENEWED_EACH_SECOND_MS, clock)
    with leases.of(a_copy()) as lease:
        leases.begin_renewal(lease)
        eventually(lambda: len(rlmm.asked) > 1, 60_000)
    assert "not renewed" in caplog.text


def test_a_copy_does_not_begin_while_there_is_no_thread_to_renew_its_lease(
    rlmm: Renewals, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    leases = CopyLeases(rlmm.as_rlmm, BROKER, RENEWED_EACH_SECOND_MS, clock)
    copy = a_copy()
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", no_thread)
        with (
            pytest.raises(RetriableRemoteStorageError, match="can't start new thread"),
            leases.of(copy),
        ):
            pass
    assert not leases.is_ours(copy.id)
    with leases.of(copy) as lease:
        leases.begin_renewal(lease)
        eventually(lambda: [copy] in rlmm.asked, 60_000)
