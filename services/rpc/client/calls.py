"""Make calls: deadlines, request ids, our own errors, and one repeat of a lost call."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from secrets import token_hex
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from services.api.calls import IN_PROCESS, current_call
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.common.threads import end_without
from services.common.tracing import call_headers
from services.rpc.client.timeouts import (
    SLOW_CALLS,
    TIMEOUT_WATCH,
    Source,
    StreamTimeout,
    Wait,
)
from services.rpc.statuses import Peer, is_lost, is_unanswered, map_rpc_errors

REQUEST_ID_KEY = "x-request-id"

Response_co = TypeVar("Response_co", covariant=True)
Response = TypeVar("Response")
Metadata: TypeAlias = list[tuple[str, str]]

UNARY_TIMEOUT_S = 30.0

# The longest wait for a thread. Sixteen copies may wait behind eight (RSM's defaults): if each is 1
# GiB, they finish in this time if the store accepts 14 MiB/s.
COPY_QUEUE_TIMEOUT_S = 1800.0

# The time for which our own clients of RLM wait for data that RLM reads from RSM (FETCH_TIMEOUT_S).
READ_QUEUE_TIMEOUT_S = 300.0

# A repeat then finds the connection closed by the server that stops, and another one open.
REPEAT_PAUSE_S = 0.05


class Unary(Protocol[Response_co]):
    """A generated method with one response, for one message or an iterator of messages."""

    def __call__(self, request: Any, /, *, timeout: float, metadata: Any) -> Response_co: ...


def call_once(
    method: Unary[Response],
    request: object,
    peer: Peer | str,
    timeout_s: float = UNARY_TIMEOUT_S,
    *,
    is_idempotent: bool = True,
) -> Response:
    """Call and wait for the response; raise the error's class of services.api.errors.

    A call that was lost with its connection, or that a server ended because it stops, is repeated
    once if it is idempotent.
    """
    metadata, ends_at = _call_metadata(), time.monotonic() + timeout_s
    with map_rpc_errors(peer, timeout_s), SLOW_CALLS.watched(peer):
        try:
            return method(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as e:
            left_s = ends_at - time.monotonic() - REPEAT_PAUSE_S
            if not is_idempotent or not is_lost(e) or left_s <= 0:
                raise
            lost = e
        time.sleep(REPEAT_PAUSE_S)
        with _repeating(lost):
            return method(request, timeout=left_s, metadata=metadata)


@contextmanager
def _repeating(lost: grpc.RpcError) -> Iterator[None]:
    """Raise `lost` if the repeat only waited in vain: the first attempt says what is wrong.

    So it is if this client has closed the channel, which ended the first attempt too.
    """
    try:
        yield
    except ValueError:
        raise lost from None
    except grpc.RpcError as e:
        if is_unanswered(e) and not is_lost(e):
            raise lost from None
        raise


def call_with_stream(
    method: Any,
    messages: Iterable[object],
    peer: Peer | str,
    progress_timeout_s: float,
    queue_timeout_s: float = COPY_QUEUE_TIMEOUT_S,
) -> Any:
    """Stream `messages` to the peer and return its response, however long that takes.

    Raises:
        RetriableRemoteStorageError: for `progress_timeout_s` the peer has read no message, or has
            not responded after the last one; or it has not begun to serve the call within
            `queue_timeout_s`.
        Exception: the error of `messages`, which also ends the call.
    """
    source = Source(messages)
    with map_rpc_errors(peer):
        call = begin_stream(partial(method.future, iter(source), metadata=_call_metadata()))
        stall_timeout = StreamTimeout(
            call, source.idle_s, progress_timeout_s, queue_timeout_s, "has made no progress", peer
        )
        try:
            TIMEOUT_WATCH.add(stall_timeout)
            # The metadata arrive when the server begins to serve the call, or when the call is
            # over.
            call.initial_metadata()
            stall_timeout.record_start()
            return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if source.error is not None:
                raise source.error from None
            _raise_if(stall_timeout.cancel_reason, peer)
            raise
        finally:
            TIMEOUT_WATCH.remove(stall_timeout)
            call.cancel()


def call_stream(
    method: Callable[..., Any],
    request: object,
    peer: Peer | str,
    timeout_s: float,
    queue_timeout_s: float = READ_QUEUE_TIMEOUT_S,
) -> Iterator[Any]:
    """Yield the messages of a server stream; leaving the iterator early cancels the call.

    The call may last for as long as its reader wants. It is repeated as call_once repeats calls
    if it was lost before its first message.

    Raises:
        RetriableRemoteStorageError: the reader has waited for `timeout_s` for the next message, or
            for `queue_timeout_s` until the peer began to serve the call.
    """
    metadata, began = _call_metadata(), False
    with map_rpc_errors(peer):
        try:
            first = _messages(method, request, peer, timeout_s, queue_timeout_s, metadata)
            with closing(first):
                for message in first:
                    began = True
                    yield message
            return
        except grpc.RpcError as e:
            if began or not is_lost(e):
                raise
            lost = e
        time.sleep(REPEAT_PAUSE_S)
        with _repeating(lost):
            again = _messages(method, request, peer, timeout_s, queue_timeout_s, metadata)
            yield from again


def _messages(
    method: Callable[..., Any],
    request: object,
    peer: Peer | str,
    timeout_s: float,
    queue_timeout_s: float,
    metadata: Metadata,
) -> Generator[Any, None, None]:
    call = begin_stream(partial(method, request, metadata=metadata))
    wait = Wait()
    idle_timeout = StreamTimeout(
        call, wait.idle_s, timeout_s, queue_timeout_s, "has sent nothing", peer, listens=True
    )
    try:
        TIMEOUT_WATCH.add(idle_timeout)
        for message in call:
            wait.end()
            idle_timeout.record_start()
            yield message
            wait.begin()
    except grpc.RpcError:
        _raise_if(idle_timeout.cancel_reason, peer)
        raise
    finally:
        TIMEOUT_WATCH.remove(idle_timeout)
        call.cancel()


def begin_stream(begin: Callable[[], Any]) -> Any:
    """Begin a streamed call; if gRPC can start no thread for it, its channel is lost.

    gRPC counts the stream nevertheless, and starts no thread again for the events of later ones:
    they would wait for ever. So would the channel's end if an exception of a signal came between
    the two: commands let it come later (services/cli/interrupts.py).
    """
    try:
        return begin()
    except RuntimeError as e:
        end_without("a connection", e)
        raise RemoteStorageError(
            f"no thread could be started for a call: {e}; raise the limit of processes (ulimit -u, "
            "pids.max)"
        ) from e


def _raise_if(cancel_reason: str, peer: Peer | str) -> None:
    """Raise the reason for which we cancelled a call; gRPC only reports the cancellation."""
    if cancel_reason:
        raise RetriableRemoteStorageError(f"{peer}: {cancel_reason}") from None


def _call_metadata() -> Metadata:
    """Pass on the id of the served call, so that logs can be joined by it, and its trace."""
    request_id = current_call().request_id
    if request_id == IN_PROCESS.request_id:
        request_id = token_hex(16)
    return [(REQUEST_ID_KEY, request_id), *call_headers()]
