"""Test which calls are cancelled, and when, on a clock of the test's own."""

import math
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol, cast

import grpc
import pytest

from services.common.settings import whole_of
from services.rpc.server.admission import RETAINED_S, AdmissionQueue, ServedCall, Watchdog
from tests.harness.eventually import eventually


class Context:
    def __init__(self, left_s: float = 1e17) -> None:
        self.left_s = left_s
        self.cancelled = 0

    def time_remaining(self) -> float:
        return self.left_s

    def cancel(self) -> None:
        self.cancelled += 1


class MakesQueues(Protocol):
    def __call__(
        self, idle_timeout_s: float, default_deadline_s: float = math.inf
    ) -> AdmissionQueue: ...


@pytest.fixture
def a_queue() -> Iterator[MakesQueues]:
    with ExitStack() as pools:

        def make(idle_timeout_s: float, default_deadline_s: float = math.inf) -> AdmissionQueue:
            queue = AdmissionQueue("test", 1, 1, idle_timeout_s, default_deadline_s)
            pools.enter_context(queue.pool)
            return queue

        yield make


def start(queue: AdmissionQueue, context: Context) -> ServedCall:
    return queue.start(cast(grpc.ServicerContext, context))


def test_call_with_an_idle_peer_is_cancelled_once(a_queue: MakesQueues) -> None:
    queue, context = a_queue(idle_timeout_s=60.0), Context()
    call = start(queue, context)
    call.waiting_since = 1000.0
    queue.cancel_overdue(1060.0)
    assert (context.cancelled, call.cancel_reason) == (0, "")
    queue.cancel_overdue(1060.5)
    queue.cancel_overdue(1061.5)
    assert context.cancelled == 1
    assert call.cancel_reason == "the peer was idle for 60.5 s"


def test_a_call_that_works_may_take_its_time(a_queue: MakesQueues) -> None:
    queue, context = a_queue(idle_timeout_s=0.001), Context()
    call = start(queue, context)
    call.wait_for_peer()
    call.work()
    queue.cancel_overdue(call.started + 1_000_000)
    assert context.cancelled == 0


def test_a_call_without_a_deadline_is_cancelled_at_the_default_one(a_queue: MakesQueues) -> None:
    queue, context = a_queue(idle_timeout_s=1_000_000.0, default_deadline_s=30.0), Context()
    call = start(queue, context)
    call.work()
    queue.cancel_overdue(call.started + 29.9)
    assert context.cancelled == 0
    queue.cancel_overdue(call.started + 30.1)
    assert context.cancelled == 1
    assert "deadline" in call.cancel_reason


def test_a_call_with_a_deadline_keeps_it(a_queue: MakesQueues) -> None:
    queue, context = a_queue(idle_timeout_s=60.0, default_deadline_s=30.0), Context(left_s=3600.0)
    call = start(queue, context)
    call.work()
    queue.cancel_overdue(call.started + 3000)
    assert context.cancelled == 0


def test_a_call_that_is_over_is_not_cancelled(a_queue: MakesQueues) -> None:
    queue, context = a_queue(idle_timeout_s=1.0, default_deadline_s=1.0), Context()
    call = start(queue, context)
    queue.end(call)
    queue.cancel_overdue(call.started + 1000)
    assert context.cancelled == 0


def test_calls_beyond_threads_and_queue_are_not_let_in(a_queue: MakesQueues) -> None:
    queue = a_queue(idle_timeout_s=1.0)
    assert [queue.try_enter() for _ in range(4)] == [True, True, False, False]
    queue.leave()
    assert [queue.try_enter() for _ in range(2)] == [True, False]


def test_the_watchdog_continues_after_a_failure(
    a_queue: MakesQueues, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Context):
        def cancel(self) -> None:
            raise KeyError

    broken, sound, context = a_queue(0.0), a_queue(0.0), Context()
    start(broken, Broken())
    start(sound, context)
    with Watchdog([broken, sound]):
        eventually(lambda: context.cancelled)
    assert "the watchdog failed; it continues with the next round" in caplog.messages


def test_a_call_given_up_is_kept_for_a_second(a_queue: MakesQueues) -> None:
    """gRPC counts it meanwhile, and refuses further ones of its connection by itself."""
    queue, context = a_queue(idle_timeout_s=1.0), Context()
    queue.cancel_overdue(0.0)
    queue.retain(cast(grpc.ServicerContext, context))
    kept = weakref.ref(context)
    del context
    queue.cancel_overdue(RETAINED_S - 0.1)
    assert kept() is not None
    queue.cancel_overdue(RETAINED_S)
    assert kept() is None


def test_no_more_calls_are_kept_than_memory_allows(a_queue: MakesQueues) -> None:
    queue = a_queue(idle_timeout_s=1.0)
    contexts = [Context() for _ in range(5_000)]
    for context in contexts:
        queue.retain(cast(grpc.ServicerContext, context))
    references = [weakref.ref(context) for context in contexts]
    del contexts, context
    assert sum(reference() is not None for reference in references) < 2_000


def test_all_calls_have_room_beside_the_share_of_one_identity() -> None:
    assert [whole_of(8, percent) for percent in (100, 75, 50, 1)] == [8, 11, 16, 800]
