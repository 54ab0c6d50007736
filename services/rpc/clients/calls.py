"""What every client does the same way: deadline, request id, errors, streams closed early."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from services.api.calls import IN_PROCESS, current_call
from services.rpc.interceptor import REQUEST_ID_KEY
from services.rpc.statuses import rpc_errors_as_ours

Response_co = TypeVar("Response_co", covariant=True)
Response = TypeVar("Response")

UNARY_TIMEOUT_S = 30.0


class Unary(Protocol[Response_co]):
    """A generated method that answers once, to one message or to an iterator of them."""

    def __call__(self, request: Any, /, *, timeout: float, metadata: Any) -> Response_co: ...


def call_once(
    method: Unary[Response], request: object, peer: str, timeout_s: float = UNARY_TIMEOUT_S
) -> Response:
    """Call and wait for the answer; a failed call raises its class of services.api.errors."""
    with rpc_errors_as_ours(peer):
        return method(request, timeout=timeout_s, metadata=_call_metadata())


def call_stream(
    method: Callable[..., Any], request: object, peer: str, timeout_s: float
) -> Iterator[Any]:
    """The messages of a server stream; leaving the iterator early cancels the call."""
    call: Any = method(request, timeout=timeout_s, metadata=_call_metadata())
    try:
        with rpc_errors_as_ours(peer):
            yield from call
    finally:
        call.cancel()


def _call_metadata() -> list[tuple[str, str]]:
    """Passes on the id of the call that is being served, so that the logs of all can be joined."""
    call = current_call()
    return [(REQUEST_ID_KEY, uuid4().hex if call is IN_PROCESS else call.request_id)]
