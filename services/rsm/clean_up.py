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
def cleaning_up(waiting: Waiting) -> Iterator[None]:
    """Inside, the current call is wanted for CLEAN_UP_S and no longer, whoever made it, and whether
    or not the service stops: many copies fail because it does."""
    end_s = waiting.now() + CLEAN_UP_S
    before = _end_s.set(end_s)
    try:
        call = replace(current_call(), is_active=lambda: waiting.now() < end_s)
        with serving(call), outlasting_close():
            yield
    finally:
        _end_s.reset(before)


def left_s(waiting: Waiting) -> float:
    """What is left to the clean-up in this thread, s; infinite where there is none."""
    return _end_s.get() - waiting.now()
