"""What is done around each call, whatever its kind: who calls, errors to statuses, time, log line,
metrics."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from uuid import uuid4

import grpc
from grpc_status import rpc_status
from prometheus_client import Histogram

from services.api.calls import Call, serving
from services.api.errors import InvalidRequestError, RemoteStorageError
from services.rpc.log_lines import LineBudget
from services.rpc.metrics import RPC_SECONDS
from services.rpc.statuses import status_of
from services.rpc.watchdog import CallGroup, ServedCall

REQUEST_ID_KEY = "x-request-id"
MAX_REQUEST_ID_LENGTH = 128
Parse = Callable[[bytes], Any]
_log = logging.getLogger("sediment.rpc")
_failed_lines = LineBudget()


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
            code = e.status
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
    record(method, error.status, 0.0, call, served)


def record(
    method: str, code: grpc.StatusCode, seconds: float, call: Call, served: ServedCall
) -> None:
    """Count the call; log it where it failed, as far as its kind has not filled the log already."""
    _rpc_seconds(method, code).observe(seconds)
    level = logging.DEBUG if code is grpc.StatusCode.OK else logging.INFO
    if not _log.isEnabledFor(level):
        return
    not_logged: int | None = 0
    if code is not grpc.StatusCode.OK:
        not_logged = _failed_lines.line((method, code))
    if not_logged is None:
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
    if not_logged:
        details["not_logged"] = not_logged
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
