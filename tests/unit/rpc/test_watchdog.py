"""Which calls are ended, and when: on a clock of the test's own."""

import time
from typing import cast

import grpc
import pytest

from services.rpc.server.watchdog import CallGroup, ServedCall, Watchdog
from tests.harness.eventually import eventually


class Cancellable:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def a_call() -> tuple[ServedCall, Cancellable]:
    """It works."""
    context = Cancellable()
    call = ServedCall(cast(grpc.ServicerContext, context), "ipv4:1.2.3.4")
    call.work()
    return call, context


def test_a_call_whose_peer_does_nothing_is_ended_once() -> None:
    group = CallGroup(lambda call, waiting: 60.0)
    call, context = a_call()
    group.add(call)
    call.waiting_since = 1000.0
    group.end_overdue(1060.0)
    assert (context.cancelled, call.ended_because) == (0, "")
    group.end_overdue(1060.5)
    group.end_overdue(1061.5)
    assert context.cancelled == 1
    assert call.ended_because == "the peer has done nothing for 60.5 s"


def test_a_call_that_works_may_take_its_time() -> None:
    group = CallGroup(lambda call, waiting: 0.001)
    call, context = a_call()
    group.add(call)
    call.wait_for_peer()
    call.work()
    group.end_overdue(time.monotonic() + 1_000_000)
    assert context.cancelled == 0


def test_a_call_is_ended_when_it_is_due_whatever_it_does() -> None:
    group = CallGroup(lambda call, waiting: 1_000_000.0)
    call, context = a_call()
    call.due_at = 1030.0
    group.add(call)
    group.end_overdue(1030.0)
    assert context.cancelled == 0
    group.end_overdue(1030.1)
    assert context.cancelled == 1
    assert "deadline" in call.ended_because


def test_a_call_that_is_over_is_not_ended() -> None:
    group = CallGroup(lambda call, waiting: 1.0)
    call, context = a_call()
    call.due_at = 1.0
    call.wait_for_peer()
    group.add(call)
    group.remove(call)
    group.end_overdue(time.monotonic() + 1000)
    assert context.cancelled == 0


def test_patience_depends_on_how_many_wait() -> None:
    group = CallGroup(lambda call, waiting: 1.0 if waiting > 2 else 60.0)
    calls = [a_call() for _ in range(4)]
    for call, _ in calls:
        group.add(call)
    for call, _ in calls[:2]:
        call.waiting_since = 1000.0
    group.end_overdue(1002.0)
    assert sum(context.cancelled for _, context in calls) == 0
    calls[2][0].waiting_since = 1001.5
    group.end_overdue(1002.0)
    assert [context.cancelled for _, context in calls] == [1, 1, 0, 0]


def test_it_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: ServedCall, waiting: int) -> float:
        raise KeyError(call.address)

    broken, sound = CallGroup(fail), CallGroup(lambda call, waiting: 0.0)
    watchdog = Watchdog()
    watchdog.watch(broken)
    watchdog.watch(sound)
    for group in (broken, sound):
        call, context = a_call()
        call.wait_for_peer()
        group.add(call)
    with watchdog:
        eventually(lambda: context.cancelled)
    assert "the watchdog failed, and goes on" in caplog.messages
