"""What every client does the same way: deadline, request id, errors, streams closed early."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import grpc

from services.api.calls import IN_PROCESS, current_call
from services.api.errors import RetriableRemoteStorageError
from services.rpc.clients.sources import Source
from services.rpc.served_calls import REQUEST_ID_KEY
from services.rpc.statuses import rpc_errors_as_ours

Response_co = TypeVar("Response_co", covariant=True)
Response = TypeVar("Response")

UNARY_TIMEOUT_S = 30.0
_WATCH_INTERVAL_S = 1.0


class Unary(Protocol[Response_co]):
    """A generated method that answers once, to one message or to an iterator of them."""

    def __call__(self, request: Any, /, *, timeout: float, metadata: Any) -> Response_co: ...


def call_once(
    method: Unary[Response], request: object, peer: str, timeout_s: float = UNARY_TIMEOUT_S
) -> Response:
    """Call and wait for the answer; a failed call raises its class of services.api.errors."""
    with rpc_errors_as_ours(peer):
        return method(request, timeout=timeout_s, metadata=_call_metadata())


def call_with_stream(
    method: Any, messages: Iterable[object], peer: str, progress_timeout_s: float
) -> Any:
    """Stream `messages` to the peer and wait for its one answer, for as long as the peer goes on.

    Raises:
        RetriableRemoteStorageError: for `progress_timeout_s` the peer has taken no message, or has
            not answered after the last one.
        Exception: with which `messages` failed; the call ends with it.
    """
    source = Source(messages)
    with rpc_errors_as_ours(peer):
        call = method.future(iter(source), metadata=_call_metadata())
        try:
            while source.idle_s() <= progress_timeout_s:
                try:
                    return call.result(timeout=_WATCH_INTERVAL_S)
                except grpc.FutureTimeoutError:
                    continue
                except grpc.RpcError:
                    if source.error is not None:
                        raise source.error from None
                    raise
        finally:
            call.cancel()
    raise RetriableRemoteStorageError(f"{peer}: has made no progress for {progress_timeout_s} s")


def call_stream(
    method: Callable[..., Any], request: object, peer: str, timeout_s: float
) -> Iterator[Any]:
    """The messages of a server stream; leaving the iterator early cancels the call."""
    with rpc_errors_as_ours(peer):
        call: Any = method(request, timeout=timeout_s, metadata=_call_metadata())
        try:
            yield from call
        finally:
            call.cancel()


def _call_metadata() -> list[tuple[str, str]]:
    """Passes on the id of the call that is being served, so that the logs of all can be joined."""
    call = current_call()
    return [(REQUEST_ID_KEY, uuid4().hex if call is IN_PROCESS else call.request_id)]
