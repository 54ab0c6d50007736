"""The time that a failed copy has to take back what it wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from math import inf

from services.api.calls import current_call, serving
from services.rsm.waiting import Waiting, outlasting_close

CLEAN_UP_S = 10.0
"""Of each of the two steps: to end an unfinished upload, and to delete objects. All that a step
asks of the store falls within it, whether or not a caller waits: it holds a thread all the
while."""

_end_s: ContextVar[float] = ContextVar("end_s", default=inf)


@contextmanager
def asking_until(end_s: float) -> Iterator[None]:
    """Inside, no request of this thread to a store lasts longer."""
    before = _end_s.set(end_s)
    try:
        yield
    finally:
        _end_s.reset(before)


@contextmanager
def cleaning_up(waiting: Waiting) -> Iterator[None]:
    """Inside, the current call is wanted for CLEAN_UP_S and no longer, whoever made it, and whether
    or not the service stops: many copies fail because it does."""
    end_s = waiting.now() + CLEAN_UP_S

    def left_s() -> float:
        return end_s - waiting.now()

    call = replace(current_call(), is_active=lambda: left_s() > 0, left_s=left_s)
    with asking_until(end_s), serving(call), outlasting_close():
        yield


def left_s(waiting: Waiting) -> float:
    """How long a request of this thread to a store may last, s; infinite: nothing bounds it."""
    return _end_s.get() - waiting.now()
