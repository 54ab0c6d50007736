"""Test that a server's stream lasts as long as it makes progress, even if its reader is slow."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from services.api.errors import RetriableRemoteStorageError
from services.rpc.client.calls import call_stream
from services.rpc.client.timeouts import StreamTimeout, TimeoutWatch, Wait
from tests.harness.eventually import eventually
from tests.harness.served import served
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

NAME = "tieredstorage.v1.RemoteStorageManager"
NEVER_S = 300.0
SIXTY_FOUR_KIB = bytes(64 * 1024)
# For a busy machine: until the call is taken up, and its first messages are there.
SHORT_S = 5.0


class Sender:
    """Sends messages without end; stops before the one numbered `stalls`."""

    def __init__(self) -> None:
        self.stalls = 0
        self.goes_on = threading.Event()
        self.ended = threading.Event()

    def send(
        self, request: pb.FetchIndexRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchIndexResponse]:
        context.add_callback(self.ended.set)
        for number in range(1, 1_000_000):
            if number == self.stalls:
                self.goes_on.wait(NEVER_S)
            yield pb.FetchIndexResponse(data=SIXTY_FOUR_KIB)  # a few fill the window


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def method(sender: Sender) -> Iterator[Any]:
    def add_to(server: grpc.Server) -> None:
        handler = grpc.unary_stream_rpc_method_handler(
            sender.send,
            pb.FetchIndexRequest.FromString,
            pb.FetchIndexResponse.SerializeToString,
        )
        handlers = {"FetchIndex": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    with served(add_to, NAME) as (channel, _):
        yield pb_grpc.RemoteStorageManagerStub(channel).FetchIndex
        sender.goes_on.set()


def stream(method: Any, timeout_s: float) -> Any:
    return call_stream(method, pb.FetchIndexRequest(), "sender", timeout_s, NEVER_S)


@pytest.mark.deep
@pytest.mark.parametrize("stalls", [1, 3])
def test_a_server_that_falls_silent_is_abandoned(method: Any, sender: Sender, stalls: int) -> None:
    sender.stalls = stalls
    messages = stream(method, SHORT_S)
    for _ in range(stalls - 1):
        next(messages)
    with pytest.raises(RetriableRemoteStorageError, match=r"^sender: has sent nothing for 5.0 s"):
        next(messages)
    assert sender.ended.wait(60)


@pytest.mark.deep
def test_a_reader_may_take_longer_than_the_server(method: Any, sender: Sender) -> None:
    messages = stream(method, SHORT_S)
    next(messages)
    assert not sender.ended.wait(2 * SHORT_S)
    for _ in range(100):
        next(messages)


def test_leaving_the_stream_early_ends_the_call(method: Any, sender: Sender) -> None:
    messages = stream(method, NEVER_S)
    next(messages)
    messages.close()
    assert sender.ended.wait(60)


class Ended:
    """A call that no thread serves, and that notes its cancellation."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def initial_metadata(self) -> None:
        self.cancelled.wait(60)


def idle_timeout(
    call: Ended, limit_s: float, queue_limit_s: float, wait: Wait | None = None
) -> StreamTimeout:
    idle_s = (wait or Wait()).idle_s
    return StreamTimeout(call, idle_s, limit_s, queue_limit_s, "has sent nothing", listens=True)


def watching() -> int:
    return sum(thread.name == "timeout-watch" for thread in threading.enumerate())


def test_one_thread_watches_all_calls_while_there_are_any() -> None:
    eventually(lambda: watching() == 0, deadline_ms=60_000)
    watch, calls = TimeoutWatch(), [Ended() for _ in range(5)]
    silences = [idle_timeout(call, NEVER_S, 0.1) for call in calls]
    for silence in silences[1:]:
        watch.add(silence)
    assert watching() == 1
    for call in calls[1:]:
        assert call.cancelled.wait(60)
    for silence in silences[1:]:
        watch.remove(silence)
    eventually(lambda: watching() == 0, deadline_ms=60_000)
    watch.add(silences[0])
    assert calls[0].cancelled.wait(60)
    watch.remove(silences[0])


def test_a_reader_that_has_a_message_waits_for_none() -> None:
    call = Ended()
    wait = Wait()
    silence = idle_timeout(call, 0.0, NEVER_S, wait)

    def is_ended() -> bool:
        silence.cancel_if_overdue()
        return call.cancelled.is_set()

    wait.end()
    silence.record_start()
    assert not is_ended()
    wait.begin()
    eventually(is_ended)
    assert silence.cancel_reason == "has sent nothing for 0.0 s"


class JumpingClock:
    """Each look at it is long after the last, as where the process was stopped in between."""

    def __init__(self) -> None:
        self.jumps = True
        self.looks = 0
        self._now_s = 0.0

    def __call__(self) -> float:
        self.looks += 1
        self._now_s += 10.0 if self.jumps else 0.2
        return self._now_s


def test_late_round_of_the_watchdog_cancels_no_call() -> None:
    clock, call = JumpingClock(), Ended()
    watch, silence = TimeoutWatch(clock), idle_timeout(call, 0.0, 0.0)
    watch.add(silence)
    eventually(lambda: clock.looks >= 8, deadline_ms=60_000)
    assert not call.cancelled.is_set()
    clock.jumps = False
    assert call.cancelled.wait(60)
    watch.remove(silence)
