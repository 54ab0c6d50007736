"""Let signals end a command, but not while it starts a thread or a streamed call.

An exception there leaves a thread half known, which ends with a traceback, or a call for which gRPC
has started no thread: closing the channel waits for ever then.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType

from services.rpc.client.calls import begin_stream

_STARTS = (threading.Thread.start.__code__, begin_stream.__code__)


def end_on(number: signal.Signals, end: Callable[[int], None]) -> None:
    """Call `end` with the number when this signal comes, or soon after what then starts."""

    def handle(_: int, frame: FrameType | None) -> None:
        if any(each.f_code in _STARTS for each, _ in walk_stack(frame)):
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            end(number)

    signal.signal(number, handle)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt the block so, if it would end the process."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    end_on(signal.SIGINT, lambda number: signal.default_int_handler(number, None))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
