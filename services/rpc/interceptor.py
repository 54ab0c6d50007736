"""Wraps every method: unary calls, streams in and streams out each in places of their own.

For gRPC all of them are handlers of streams of unparsed messages. So a call is known to the
watchdog before its request is there, and what cannot be parsed is refused as any bad request is.
"""

import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar

import grpc

from services.api.errors import ThrottledError
from services.rpc.admission import Admission
from services.rpc.peers import address_of
from services.rpc.places import Places
from services.rpc.served_calls import (
    Parse,
    PeerLeftError,
    each_request,
    one_call,
    refused,
    the_request,
)
from services.rpc.watchdog import CallGroup, ServedCall

# gRPC says how much time is left where there is no deadline, too: some 300 thousand million years.
_NO_DEADLINE_S = 1e12

# gRPC's own types for handlers differ for each of the four kinds; this code treats them alike.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[[Any, grpc.ServicerContext], Any]
Send = Callable[[Any], None]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class UnaryCalls:
    """How calls with one request and one answer are served.

    Attributes:
        places: their threads, and those that wait for one.
        group: of those under way.
        default_deadline_s: of a call that names none.
    """

    places: Places
    group: CallGroup
    default_deadline_s: float


@dataclass(frozen=True)
class Streams:
    """How streams of one kind are served: their threads, and those under way."""

    places: Places
    group: CallGroup


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in stubs only
    """Runs each handler inside `one_call`, each of the three kinds in threads apart.

    A stream holds its thread for as long as its peer likes. Unary calls must not wait behind it,
    nor what we stream out behind what callers stream in.
    """

    def __init__(self, unary: UnaryCalls, streams_in: Streams, streams_out: Streams) -> None:
        """`streams_in` serves client streams; `streams_out` those of the server and of both."""
        self._unary = unary
        self._streams_in = streams_in
        self._streams_out = streams_out
        self._wrapped: dict[str, Handler | None] = {}

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        # gRPC asks for each call anew. What it does not serve is not kept: callers make such up.
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is not None:
            return known
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: "Handler", method: str) -> "Handler":
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(
                _unary(method, handler.unary_unary, _parser_of(handler), self._unary),
                response_serializer=handler.response_serializer,
            )
        streams = self._streams_out if handler.response_streaming else self._streams_in
        return grpc.stream_stream_rpc_method_handler(
            _stream(_StreamMethod.of(handler, method), streams),
            response_serializer=handler.response_serializer,
        )


@dataclass(frozen=True)
class _StreamMethod:
    name: str
    behavior: Behavior
    parse: Parse
    many_requests: bool
    many_answers: bool

    @classmethod
    def of(cls, handler: "Handler", name: str) -> Self:
        behavior = handler.stream_unary or handler.unary_stream or handler.stream_stream
        if behavior is None:
            raise TypeError(f"{name}: no function serves it")
        parse, many_requests = _parser_of(handler), handler.request_streaming
        return cls(name, behavior, parse, many_requests, handler.response_streaming)


def _parser_of(handler: "Handler") -> Parse:
    return handler.request_deserializer or bytes


def _unary(method: str, behavior: Behavior, parse: Parse, calls: UnaryCalls) -> Behavior:
    group, default_deadline_s = calls.group, calls.default_deadline_s

    def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        has_deadline = context.time_remaining() < _NO_DEADLINE_S
        served = ServedCall(context, "", math.inf if has_deadline else default_deadline_s)
        with one_call(method, context, group, served):
            return behavior(the_request(served, requests, parse), context)

    def refuse(error: ThrottledError, requests: object, context: grpc.ServicerContext) -> Any:
        with one_call(method, context, group, ServedCall(context, "")):
            raise error

    # As below.
    setattr(call, "experimental_thread_pool", Admission(calls.places, refuse))  # noqa: B010
    return call


def _stream(method: _StreamMethod, streams: Streams) -> Any:
    """Let a stream in, or refuse it, at once: in gRPC's own thread, which must not wait."""
    places = streams.places

    def begin(requests: Iterator[bytes], context: grpc.ServicerContext, send: Send) -> None:
        peer = context.peer()
        serve = partial(_serve, method, streams.group, peer, requests, context, send)
        try:
            place = places.take(address_of(peer), serve)
        except ThrottledError as e:
            refused(method.name, e, context, ServedCall(context, peer))
            send(None)
            return
        if not context.add_callback(partial(places.withdraw, place)):
            places.withdraw(place)

    # grpcio looks for these attributes on a handler's function. The latter: the answers are sent
    # by `send`, from any thread, and None says that there is no other.
    setattr(begin, "experimental_thread_pool", _AT_ONCE)  # noqa: B010
    setattr(begin, "experimental_non_blocking", True)  # noqa: B010
    return begin


def _serve(
    method: _StreamMethod,
    group: CallGroup,
    peer: str,
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
    send: Send,
) -> None:
    """A stream, in its own thread."""
    served = ServedCall(context, peer)
    # What ends a stream early has set its status, and is raised only to get here.
    with suppress(Exception), one_call(method.name, context, group, served):
        _answer(method, served, requests, context, send)
    served.tell_no_more()
    if context.is_active():
        send(None)


def _answer(
    method: _StreamMethod,
    served: ServedCall,
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
    send: Send,
) -> None:
    if not context.is_active():
        raise PeerLeftError
    # So the caller knows that its turn has come: while the stream waits in its place nothing does.
    if method.many_answers:
        # With the first of them, which is there sooner so.
        served.tell_if_it_takes_long()
    else:
        context.send_initial_metadata(())
    take = each_request if method.many_requests else the_request
    answers = method.behavior(take(served, requests, method.parse), context)
    if not method.many_answers:
        _hand_over(answers, served, context, send)
        return
    try:
        for answer in answers:
            _hand_over(answer, served, context, send)
    finally:
        if isinstance(answers, Generator):
            answers.close()


def _hand_over(answer: Any, served: ServedCall, context: grpc.ServicerContext, send: Send) -> None:
    """Send it; returns when the peer has room for it."""
    served.wait_for_peer()
    send(answer)
    served.work()
    if not context.is_active():
        raise PeerLeftError


class _AtOnce(ThreadPoolExecutor):
    """Runs what it is given in the thread that gives it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as e:  # noqa: BLE001 - as every executor does
            done.set_exception(e)
        return done


_AT_ONCE = _AtOnce(1)
