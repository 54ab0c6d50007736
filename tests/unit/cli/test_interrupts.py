"""Test how signals end commands."""

import signal
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from services.cli.interrupts import interruptible
from services.cli.output import CommandError
from services.cli.ship import _cancelled_by_signals
from services.rpc.client.calls import call_stream

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


class SignalledEvent(Event):
    """Gets a signal while a thread that is being started is waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return super().wait(timeout)


@pytest.mark.usefixtures("handlers")
def test_a_signal_within_the_start_of_a_thread_ends_the_command_after_it() -> None:
    cancelled, ended = _cancelled_by_signals(), Event()
    thread = Thread(target=ended.set)
    vars(thread)["_started"] = SignalledEvent()
    thread.start()
    with pytest.raises(CommandError, match="interrupted") as raised:
        Event().wait(10)
    assert cancelled.is_set()
    assert raised.value.exit_code == 128 + signal.SIGTERM
    assert ended.wait(10)


class EndlessCall(Event):
    """A streamed call whose first message does not come; set once it was cancelled."""

    def __iter__(self) -> Iterator[object]:
        assert not self.wait(10)
        yield object()

    def cancel(self) -> None:
        self.set()


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_within_the_start_of_a_streamed_call_comes_after_it() -> None:
    """The channel would wait for ever for a call that was begun and is not known."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    call, begun = EndlessCall(), Event()

    def begin(request: object, metadata: object) -> EndlessCall:
        signal.raise_signal(signal.SIGINT)
        begun.set()
        return call

    with pytest.raises(KeyboardInterrupt), interruptible():
        next(call_stream(begin, None, "rlm", 10))
    assert begun.is_set()
    assert call.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("handlers")
def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
