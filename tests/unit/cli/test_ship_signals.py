"""Test how a signal ends `sediment ship`."""

import signal
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from services.cli.output import CommandError
from services.cli.ship import _cancelled_by_signals

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
    assert cancelled.is_set()
    with pytest.raises(CommandError, match="interrupted") as raised:
        Event().wait(10)
    assert raised.value.exit_code == 128 + signal.SIGTERM
    assert ended.wait(10)
