"""Wraps every call once: who calls, errors to statuses, time, log line, metrics."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias
from uuid import uuid4

import grpc
from grpc_status import rpc_status
from prometheus_client import Histogram

from services.api.calls import Call, serving
from services.api.errors import RemoteStorageError
from services.rpc.metrics import RPC_SECONDS
from services.rpc.statuses import status_of

REQUEST_ID_KEY = "x-request-id"
MAX_REQUEST_ID_LENGTH = 128
_log = logging.getLogger("sediment.rpc")

# gRPC's own types for handlers differ for each of the four kinds; this code treats them alike.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[[Any, grpc.ServicerContext], Any]


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in stubs only
    """Runs each handler inside `_one_call`, and streams on thread pools of their own.

    A stream holds its thread for as long as its peer likes. Unary calls must not wait behind it,
    nor what we stream out behind what callers stream in.
    """

    def __init__(self, streams_in: ThreadPoolExecutor, streams_out: ThreadPoolExecutor) -> None:
        """`streams_in` serves client streams; `streams_out` those of the server and of both."""
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

    def _wrap(self, handler: "Handler", method: str) -> "Handler | None":
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _answering_once(handler.unary_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(
                _on(self._streams_in, _answering_once(handler.stream_unary, method)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _on(self._streams_out, _answering_many(handler.unary_stream, method)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream:  # None of our contracts; gRPC's own reflection is one.
            return grpc.stream_stream_rpc_method_handler(
                _on(self._streams_out, _answering_many(handler.stream_stream, method)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return None


def _on(pool: ThreadPoolExecutor, behavior: Behavior) -> Behavior:
    # grpcio looks for this attribute on a handler's function.
    setattr(behavior, "experimental_thread_pool", pool)  # noqa: B010
    return behavior


def _answering_once(behavior: Behavior, method: str) -> Behavior:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        with _one_call(method, context):
            return behavior(request, context)

    return call


def _answering_many(behavior: Behavior, method: str) -> Behavior:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _one_call(method, context):
            yield from behavior(request, context)

    return call


@contextmanager
def _one_call(method: str, context: grpc.ServicerContext) -> Iterator[None]:
    call = Call("anonymous", _request_id(context), context.is_active)
    started = time.monotonic()
    with serving(call):
        code = grpc.StatusCode.OK
        try:
            yield
        except GeneratorExit:
            # The peer left in the middle of a stream: nobody is there to be answered.
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.RpcError:
            # From the stream of requests: the peer left before it had sent them all. grpcio knows
            # its own error again.
            code = grpc.StatusCode.CANCELLED
            raise
        except RemoteStorageError as e:
            code = e.status
            context.abort_with_status(rpc_status.to_status(status_of(e)))
        except Exception as e:  # noqa: BLE001 - the process boundary: nothing may pass unmapped
            code = grpc.StatusCode.INTERNAL
            error = RemoteStorageError(repr(e))
            error.__cause__ = e
            context.abort_with_status(rpc_status.to_status(status_of(error)))
        finally:
            _record(method, code, time.monotonic() - started, call, context)


def _record(
    method: str,
    code: grpc.StatusCode,
    seconds: float,
    call: Call,
    context: grpc.ServicerContext,
) -> None:
    _rpc_seconds(method, code).observe(seconds)
    level = logging.DEBUG if code is grpc.StatusCode.OK else logging.INFO
    if not _log.isEnabledFor(level):
        return
    details = {
        "method": method,
        "code": code.name,
        "ms": round(seconds * 1000, 3),
        "request_id": call.request_id,
        "actor": call.actor,
        "peer": context.peer(),
    }
    _log.log(level, "rpc", extra=details)


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
