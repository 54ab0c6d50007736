"""Answering a call before its caller has left: what was done counts for nothing if it never hears
of it, and repeats all of it."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from services.api.calls import current_call, serving
from services.api.errors import RetriableRemoteStorageError
from services.rsm.clean_up import asking_until
from services.rsm.waiting import Waiting

ANSWER_S = 1.0
"""Before its deadline a call begins nothing more, so that its answer arrives; a tenth of its time
where it has less than ten seconds."""

MOST_LOOKED_FOR = 30
"""Things that each take requests of their own before they can be deleted together."""

T = TypeVar("T")


@contextmanager
def in_time(waiting: Waiting) -> Iterator[None]:
    """Inside, the current call is wanted until ANSWER_S before its deadline. What is asked of the
    store by then may take half of that yet."""
    call = current_call()
    answer_s = min(ANSWER_S, call.left_s() / 10)

    def left_s() -> float:
        return call.left_s() - answer_s

    def is_active() -> bool:
        return left_s() > 0 and call.is_active()

    end_s = waiting.now() + left_s() + answer_s / 2
    with asking_until(end_s), serving(replace(call, is_active=is_active, left_s=left_s)):
        yield


def require_wanted() -> None:
    """Raise RetriableRemoteStorageError where the current call is not to begin anything more."""
    call = current_call()
    if call.left_s() <= 0:
        raise RetriableRemoteStorageError("the time ran out before this was done; repeat it")
    if not call.is_active():
        raise RetriableRemoteStorageError("nobody waits for it any more")


def next_slice(todo: deque[T]) -> Iterator[T]:
    """Take what is to be looked for before what was found is deleted: one at least, MOST_LOOKED_FOR
    at most, and none after a third of the time that is left. The last one may take another third,
    and the third one is for deleting."""
    enough_s = current_call().left_s() * 2 / 3
    for _ in range(min(MOST_LOOKED_FOR, len(todo))):
        yield todo.popleft()
        if current_call().left_s() < enough_s:
            return
