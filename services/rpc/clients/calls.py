"""What every client does the same way: deadline, request id, errors, streams closed early."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import grpc

from services.api.calls import IN_PROCESS, current_call
from services.api.errors import RetriableRemoteStorageError
from services.rpc.clients.silence import SILENCE_WATCH, Silence, Standstill
from services.rpc.clients.sources import Message, Source
from services.rpc.served_calls import REQUEST_ID_KEY
from services.rpc.statuses import rpc_errors_as_ours

Response_co = TypeVar("Response_co", covariant=True)
Response = TypeVar("Response")

UNARY_TIMEOUT_S = 30.0
# Of the wait for a thread. Twelve copies of one address may wait behind six (RSM's defaults): of
# 1 GiB each they are through in this time where the store takes 10 MiB/s.
COPY_TURN_TIMEOUT_S = 1800.0
# As long as our own callers of a service wait for what it reads elsewhere: FETCH_TIMEOUT_S of RLM.
READ_TURN_TIMEOUT_S = 300.0


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
    method: Any,
    messages: Iterable[Message | bytes],
    peer: str,
    progress_timeout_s: float,
    turn_timeout_s: float = COPY_TURN_TIMEOUT_S,
) -> Any:
    """Stream `messages` to the peer and wait for its one answer, for as long as the peer goes on.

    Raises:
        RetriableRemoteStorageError: for `progress_timeout_s` the peer has taken no message, or has
            not answered after the last one; or it has not taken the call up for `turn_timeout_s`.
        Exception: with which `messages` failed; the call ends with it.
    """
    source = Source(messages)
    with rpc_errors_as_ours(peer):
        call = method.future(iter(source), metadata=_call_metadata())
        standstill = Standstill(call, source, progress_timeout_s, turn_timeout_s)
        try:
            SILENCE_WATCH.add(standstill)
            # They are there once the call has been taken up, or is over.
            call.initial_metadata()
            standstill.taken_up()
            return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if source.error is not None:
                raise source.error from None
            _raise_if(standstill.ended_because, peer)
            raise
        finally:
            SILENCE_WATCH.remove(standstill)
            call.cancel()


def call_stream(
    method: Callable[..., Any],
    request: object,
    peer: str,
    timeout_s: float,
    turn_timeout_s: float = READ_TURN_TIMEOUT_S,
) -> Iterator[Any]:
    """The messages of a server stream; leaving the iterator early cancels the call.

    It may last for as long as its reader likes.

    Raises:
        RetriableRemoteStorageError: the reader has waited for `timeout_s` for the next message, or
            for `turn_timeout_s` until the peer took the call up.
    """
    with rpc_errors_as_ours(peer):
        call: Any = method(request, metadata=_call_metadata())
        silence = Silence(call, timeout_s, turn_timeout_s)
        try:
            SILENCE_WATCH.add(silence)
            for message in call:
                silence.end()
                yield message
                silence.begin()
        except grpc.RpcError:
            _raise_if(silence.ended_because, peer)
            raise
        finally:
            SILENCE_WATCH.remove(silence)
            call.cancel()


def _raise_if(ended_because: str, peer: str) -> None:
    """The reason for which we ended a call of ours; gRPC only says that it was cancelled."""
    if ended_because:
        raise RetriableRemoteStorageError(f"{peer}: {ended_because}") from None


def _call_metadata() -> list[tuple[str, str]]:
    """Passes on the id of the call that is being served, so that the logs of all can be joined."""
    call = current_call()
    return [(REQUEST_ID_KEY, uuid4().hex if call is IN_PROCESS else call.request_id)]
