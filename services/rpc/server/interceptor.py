"""Wrap every call: identity, errors to statuses, time, log line, metrics."""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar
from uuid import uuid4

import grpc
from grpc_status import rpc_status
from prometheus_client import Histogram

from services.api.calls import Call, serving
from services.api.errors import InvalidRequestError, RemoteStorageError, ThrottledError
from services.rpc.channels import REQUEST_ID_KEY
from services.rpc.server.admission import Admission, Places, address_of
from services.rpc.server.metrics import RPC_SECONDS
from services.rpc.server.watchdog import CallGroup, ServedCall
from services.rpc.statuses import status_code, status_of

MAX_REQUEST_ID_LENGTH = 128
Parse = Callable[[bytes], Any]
_log = logging.getLogger("sediment.rpc")


class PeerLeftError(Exception):
    """Nobody is there any more to be answered. Stays within services.rpc."""


@contextmanager
def one_call(
    method: str, context: grpc.ServicerContext, group: CallGroup, served: ServedCall
) -> Iterator[None]:
    """Serve one call inside. Whatever is raised ends the call with the status that it maps to."""
    call = Call(
        "anonymous",
        _request_id(context),
        partial(_is_active, context, served),
        partial(_left_s, context, served),
    )
    group.add(served)
    with serving(call):
        code = grpc.StatusCode.OK
        try:
            yield
        except PeerLeftError:
            code = grpc.StatusCode.CANCELLED
            raise
        except RemoteStorageError as e:
            code = status_code(e)
            context.abort_with_status(rpc_status.to_status(status_of(e)))
        except Exception as e:  # the process boundary: nothing may pass unmapped
            if isinstance(e, grpc.RpcError) and not context.is_active():
                # From the stream of requests; grpcio knows its own error again. While the peer is
                # there, it is one of a call of ours.
                code = grpc.StatusCode.CANCELLED
                raise
            code = grpc.StatusCode.INTERNAL
            error = RemoteStorageError(repr(e))
            error.__cause__ = e
            context.abort_with_status(rpc_status.to_status(status_of(error)))
        finally:
            group.remove(served)
            if served.ended_because:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
            record(method, code, time.monotonic() - served.started, call, served)


def _is_active(context: grpc.ServicerContext, served: ServedCall) -> bool:
    """Whether its caller waits still. gRPC's own word hangs on an event that may come late."""
    return not served.ended_because and context.time_remaining() > 0 and context.is_active()


def _left_s(context: grpc.ServicerContext, served: ServedCall) -> float:
    return min(context.time_remaining(), served.due_at - time.monotonic())


def the_request(served: ServedCall, requests: Iterator[bytes], parse: Parse) -> Any:
    """The one message of a call that has one."""
    message = next(requests, None)
    served.work()
    if message is None:
        raise InvalidRequestError("request: the call ended without one")
    try:
        return parse(message)
    except Exception as e:
        raise _not_a_message() from e


def each_request(served: ServedCall, requests: Iterable[bytes], parse: Parse) -> Iterator[Any]:
    """The messages of a stream, as they come."""
    for message in requests:
        served.work()
        try:
            request = parse(message)
        except Exception as e:
            raise _not_a_message() from e
        yield request
        served.wait_for_peer()
    served.work()


def _not_a_message() -> InvalidRequestError:
    # Where grpcio parses, such a request is INTERNAL, and costs a traceback in the log.
    return InvalidRequestError("request: not a message of this call")


def refused(
    method: str, error: RemoteStorageError, context: grpc.ServicerContext, served: ServedCall
) -> None:
    """Give a call that is not served its status; the caller of this sends it."""
    status = rpc_status.to_status(status_of(error))
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)
    call = Call("anonymous", _request_id(context), context.is_active)
    record(method, status_code(error), 0.0, call, served)


def record(
    method: str, code: grpc.StatusCode, seconds: float, call: Call, served: ServedCall
) -> None:
    """Count the call; log it if it failed."""
    _rpc_seconds(method, code).observe(seconds)
    level = logging.DEBUG if code is grpc.StatusCode.OK else logging.INFO
    if not _log.isEnabledFor(level):
        return
    details: dict[str, object] = {
        "method": method,
        "code": code.name,
        "ms": round(seconds * 1000, 3),
        "request_id": call.request_id,
        "actor": call.actor,
        "peer": served.peer(),
    }
    if served.ended_because:
        details["why"] = served.ended_because
    # Each method and code has a limit of lines of its own.
    _log.log(level, f"rpc {method}: {code.name}", extra=details)


@cache
def _rpc_seconds(method: str, code: grpc.StatusCode) -> Histogram:
    """Of a method that is served: their number is bounded."""
    return RPC_SECONDS.labels(method, code.name)


def _request_id(context: grpc.ServicerContext) -> str:
    """The caller's id for this call where it is short and printable, else one of our own."""
    for key, value in context.invocation_metadata():
        text = value if isinstance(value, str) else ""
        if key == REQUEST_ID_KEY and text.isprintable() and 0 < len(text) <= MAX_REQUEST_ID_LENGTH:
            return text
    return uuid4().hex


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
