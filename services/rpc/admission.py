"""Lets a unary call in, or refuses it, when it comes: in gRPC's own thread, which must not wait."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc._server import _Context

from services.api.errors import ThrottledError
from services.rpc.peers import address_of
from services.rpc.places import Places

Refuse = Callable[[ThrottledError, Any, grpc.ServicerContext], Any]


class Admission(ThreadPoolExecutor):
    """What grpcio takes for the threads of a method with one answer; it has none of its own.

    A handler's function knows who calls, but is called in a thread, and what waits for one must be
    counted before. So this takes grpcio's work as it comes, and has it done in a place.
    """

    def __init__(self, places: Places, refuse: Refuse) -> None:
        """`refuse` is called instead of the handler's function, and ends the call."""
        super().__init__(1)
        self._places = places
        self._refuse = refuse

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # Not public: what grpcio does with a call, for which event of its core, with which state,
        # by which function.
        work, event, state, behavior, *more = args
        context = _Context(event, state, None)
        serve = partial(fn, work, event, state, behavior, *more, **kwargs)
        try:
            place = self._places.take(address_of(context.peer()), serve)
        except ThrottledError as e:
            fn(work, event, state, partial(self._refuse, e), *more, **kwargs)
            return _DONE
        # Told of the end of each call, gRPC's thread would meet the call's own at the lock.
        if place.waits and not context.add_callback(partial(self._places.withdraw, place)):
            self._places.withdraw(place)
        return _DONE


# gRPC asks for no more of it than to be told of the end, which it needs for a limit of its own.
_DONE: Future[Any] = Future()
_DONE.set_result(None)
