"""Wrap every call: admission, identity, rights, request id, deadline, errors, log line, metrics."""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from secrets import token_hex
from typing import Any, TypeAlias

import grpc
from grpc_status import rpc_status
from prometheus_client import Histogram

from services.api.calls import Call, serving
from services.api.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    RemoteStorageError,
    UnauthenticatedError,
)
from services.common.tracing import begin_call
from services.rpc.client.calls import REQUEST_ID_KEY
from services.rpc.server.access import Access
from services.rpc.server.admission import AdmissionQueue, ServedCall
from services.rpc.server.identity import ANONYMOUS, UNAUTHENTICATED, Caller
from services.rpc.statuses import status_code, status_of

RPC_SECONDS = Histogram(
    "sediment_rpc_seconds",
    "Duration of the calls served, by method and status code, seconds.",
    ["method", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
MAX_REQUEST_ID_LENGTH = 128
REFUSAL_THREADS = 2

# gRPC's own types for handlers differ for each of the four kinds; this code treats all alike.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[[Any, grpc.ServicerContext], Any]
Parse = Callable[[bytes], Any]
_LEVELS = {
    grpc.StatusCode.OK: logging.DEBUG,
    grpc.StatusCode.UNAUTHENTICATED: logging.WARNING,
    grpc.StatusCode.PERMISSION_DENIED: logging.WARNING,
}
_log = logging.getLogger("sediment.rpc")


@dataclass(frozen=True, slots=True)
class CallKinds:
    """The queue of each kind of call.

    A stream occupies its thread for as long as its peer wants. Unary calls must not wait behind
    streams, nor streams to clients behind streams from clients. A watch is a stream to a client
    that lasts for as long as both sides run.

    Attributes:
        watch_methods: the methods that are watches, as gRPC names them.
    """

    unary: AdmissionQueue
    streams_in: AdmissionQueue
    streams_out: AdmissionQueue
    watches: AdmissionQueue
    watch_methods: Collection[str] = ()

    def of(self, name: str, handler: "Handler") -> AdmissionQueue:
        if name in self.watch_methods:
            return self.watches
        if handler.response_streaming:
            return self.streams_out
        return self.streams_in if handler.request_streaming else self.unary


@dataclass(frozen=True, slots=True)
class _Method:
    """A served method: the function that serves an admitted call, and the one that refuses a
    call.
    """

    queue: AdmissionQueue
    serving: "Handler"
    refusing: "Handler"


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in stubs only
    """Serve each call in a thread of its kind, or refuse it if its kind has no room.

    All methods are registered with a stream of requests. gRPC would not call the function of a
    unary method before the request has arrived: its thread would wait without any timer, and a call
    that is cancelled then would never leave the queue. gRPC always calls a function with a stream.
    """

    def __init__(
        self, kinds: CallKinds, refusals: ThreadPoolExecutor, access: Access | None = None
    ) -> None:
        """Create the interceptor.

        Args:
            refusals: its threads answer refused calls.
            access: decides who may call what; None lets everyone in as "anonymous".
        """
        self._kinds = kinds
        self._refusals = refusals
        self._access = access
        self._methods: dict[str, _Method] = {}

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        name = handler_call_details.method
        method = self._methods.get(name)
        if method is None:
            handler = continuation(handler_call_details)
            if handler is None:
                return None  # Not cached, because clients may invent any number of names.
            method = self._methods[name] = self._wrap(name, handler)
        return method.serving if method.queue.try_enter() else method.refusing

    def _wrap(self, name: str, handler: "Handler") -> _Method:
        queue, access = self._kinds.of(name, handler), self._access
        if handler.response_streaming:
            serving = grpc.stream_stream_rpc_method_handler(
                _in_pool(_serve_answers(name, handler, queue, access), queue.pool),
                response_serializer=handler.response_serializer,
            )
        else:
            serving = grpc.stream_unary_rpc_method_handler(
                _in_pool(_serve_one_answer(name, handler, queue, access), queue.pool),
                response_serializer=handler.response_serializer,
            )

        def refuse(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            _end_if_over(name, queue, requests, context)
            with one_call(name, context, queue, access, refusal=queue.refuse()):
                pass

        refusing = grpc.stream_unary_rpc_method_handler(_in_pool(refuse, self._refusals))
        return _Method(queue, serving, refusing)


def _in_pool(behavior: Behavior, pool: ThreadPoolExecutor) -> Behavior:
    """Set the attribute by which grpcio calls `behavior` in a thread of `pool`."""
    setattr(behavior, "experimental_thread_pool", pool)  # noqa: B010
    return behavior


def _serve_one_answer(
    name: str, handler: "Handler", queue: AdmissionQueue, access: Access | None
) -> Behavior:
    behavior, parse = _behavior_of(handler), handler.request_deserializer or bytes
    read = each_request if handler.request_streaming else the_request

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        try:
            _end_if_over(name, queue, requests, context)
            with one_call(name, context, queue, access) as served:
                if handler.request_streaming:
                    # Until the metadata arrive, the client takes the call for a waiting one.
                    context.send_initial_metadata(())
                return behavior(read(served, requests, parse), context)
        finally:
            queue.leave()

    return serve


def _serve_answers(
    name: str, handler: "Handler", queue: AdmissionQueue, access: Access | None
) -> Behavior:
    behavior, parse = _behavior_of(handler), handler.request_deserializer or bytes
    read = each_request if handler.request_streaming else the_request

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            _end_if_over(name, queue, requests, context)
            with one_call(name, context, queue, access) as served:
                context.send_initial_metadata(())
                answers = behavior(read(served, requests, parse), context)
                try:
                    for answer in answers:
                        served.wait_for_peer()
                        yield answer  # Returns when the peer has room for more.
                        served.work()
                finally:
                    if isinstance(answers, Generator):
                        answers.close()
        finally:
            queue.leave()

    return serve


def _end_if_over(
    name: str, queue: AdmissionQueue, requests: Iterator[bytes], context: grpc.ServicerContext
) -> None:
    """End a call that its client gave up before it got a thread, at little cost."""
    if not context.is_active():
        queue.retain(context)
        _rpc_seconds(name, grpc.StatusCode.CANCELLED).observe(0)
        next(requests, None)  # Raises gRPC's own error.


def _behavior_of(handler: "Handler") -> Behavior:
    found = handler.unary_unary or handler.stream_unary
    found = found or handler.unary_stream or handler.stream_stream
    if found is None:
        raise TypeError("a method without a function that serves it")
    return found


@contextmanager
def one_call(
    method: str,
    context: grpc.ServicerContext,
    queue: AdmissionQueue,
    access: Access | None = None,
    refusal: RemoteStorageError | None = None,
) -> Iterator[ServedCall]:
    """Serve one call inside the block; any exception ends the call with the status that it maps
    to.

    Args:
        refusal: ends the call at once, with its identity in the log.
    """
    # gRPC does not know the peer of a call that is over.
    peer = context.peer()
    served = queue.start(context)
    caller = Caller(ANONYMOUS)
    if access is not None:
        try:
            caller = access.caller_of(method, context)
        except UnauthenticatedError as e:
            caller, refusal = Caller(UNAUTHENTICATED), e
    headers = _text_headers(context)
    span = begin_call(method.removeprefix("/"), headers)
    call = Call(
        caller.identity,
        _request_id(headers),
        served.is_active,
        served.left_s,
        served.require_topic,
        trace=None if span is None else span.trace,
    )
    with serving(call):
        code, why = grpc.StatusCode.OK, ""
        try:
            if refusal is not None:
                raise refusal
            if access is not None:
                served.permit = access.permit(caller, method)
            with queue.turn_of(caller.identity, method, served):
                yield served
        except GeneratorExit:
            # The peer left while a stream was sent to it.
            code = grpc.StatusCode.CANCELLED
            raise
        except RemoteStorageError as e:
            code = status_code(e)
            if isinstance(e, UnauthenticatedError | PermissionDeniedError):
                why = str(e)
            context.abort_with_status(rpc_status.to_status(status_of(e)))
        except Exception as e:  # the process boundary: no exception may pass unmapped
            if isinstance(e, grpc.RpcError) and not context.is_active():
                # The stream of requests raised it; grpcio recognizes its own error. If the peer is
                # still connected, the error comes from a call that we made.
                code = grpc.StatusCode.CANCELLED
                raise
            code = grpc.StatusCode.INTERNAL
            error = RemoteStorageError(repr(e))
            error.__cause__ = e
            context.abort_with_status(rpc_status.to_status(status_of(error)))
        finally:
            queue.end(served)
            if not served.has_request and not context.is_active():
                queue.retain(context)
            if served.cancel_reason:
                code, why = served.code, served.cancel_reason
            _record(method, code, call, served, peer, why)
            if span is not None:
                is_failed = code is not grpc.StatusCode.OK
                span.end(_described(method, code, call), why or code.name if is_failed else "")


def the_request(served: ServedCall, requests: Iterator[bytes], parse: Parse) -> Any:
    """Read the request of a call that has one."""
    message = next(requests, None)
    if message is None:
        served.has_request = True
        raise InvalidRequestError("request: the call ended without one")
    return _received(served, message, parse)


def each_request(served: ServedCall, requests: Iterable[bytes], parse: Parse) -> Iterator[Any]:
    """Read the requests of a stream as they arrive."""
    for message in requests:
        yield _received(served, message, parse)
        served.wait_for_peer()
    served.work()


def _received(served: ServedCall, message: bytes, parse: Parse) -> Any:
    """Parse and check a request that has arrived."""
    served.has_request = True
    served.work()
    try:
        request = parse(message)
    except Exception as e:
        # If grpcio parsed it, such a request would be INTERNAL, with a traceback in the log.
        raise InvalidRequestError("request: not a message of this call") from e
    if served.permit is not None:
        served.permit.check_request(request)
    return request


def _record(
    method: str, code: grpc.StatusCode, call: Call, served: ServedCall, peer: str, why: str
) -> None:
    """Count the call; log it if it failed."""
    seconds = time.monotonic() - served.started
    _rpc_seconds(method, code).observe(seconds)
    level = _LEVELS.get(code, logging.INFO)
    if not _log.isEnabledFor(level):
        return
    details: dict[str, object] = {
        "method": method,
        "code": code.name,
        "ms": round(seconds * 1000, 3),
        "request_id": call.request_id,
        "actor": call.actor,
        "peer": peer,
    }
    if why:
        details["why"] = why
    # Each method and code has a limit of lines of its own.
    _log.log(level, f"rpc {method}: {code.name}", extra=details)


@cache
def _rpc_seconds(method: str, code: grpc.StatusCode) -> Histogram:
    """Return the histogram of a served method: the number of methods is bounded."""
    return RPC_SECONDS.labels(method, code.name)


def _described(method: str, code: grpc.StatusCode, call: Call) -> dict[str, str | int]:
    """Return what a call's span says, in OpenTelemetry's names where it has them."""
    service, _, name = method.removeprefix("/").partition("/")
    return {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": name,
        "rpc.grpc.status_code": code.value[0],
        "sediment.request_id": call.request_id,
        "sediment.actor": call.actor,
    }


def _text_headers(context: grpc.ServicerContext) -> list[tuple[str, str]]:
    return [(key, text) for key, text in context.invocation_metadata() if isinstance(text, str)]


def _request_id(headers: Iterable[tuple[str, str]]) -> str:
    """Return the client's id for this call if it is short and printable, else a new id."""
    for key, text in headers:
        if key == REQUEST_ID_KEY and text.isprintable() and 0 < len(text) <= MAX_REQUEST_ID_LENGTH:
            return text
    return token_hex(16)
