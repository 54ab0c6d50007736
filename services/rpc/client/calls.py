"""Make calls: deadlines, request ids, our own errors, and limits on stalls."""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import grpc

from services.api.calls import IN_PROCESS, current_call
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.common.retry import timely_rounds
from services.common.threads import end_without
from services.common.tracing import call_headers
from services.rpc.client.channel import CHUNK_BYTES
from services.rpc.statuses import Peer, is_lost, map_rpc_errors

REQUEST_ID_KEY = "x-request-id"

Metadata: TypeAlias = list[tuple[str, str]]

# gRPC requests the next message once all but 64 KiB of the last are on their way, and a peer that
# reads nothing has room for "grpc.http2.lookahead_bytes".
_UNREAD_AT_MOST_BYTES = 2 * CHUNK_BYTES


class Message(Protocol):
    """A message that protobuf generated."""

    def ByteSize(self) -> int: ...


T = TypeVar("T", bound=Message | bytes)


class Source(Generic[T]):
    """Iterate once over `items` and record errors and progress.

    gRPC requests the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: the error of `items`; gRPC only reports that the stream was cancelled.
        was_read: gRPC took more than it buffers, so the server must have read some of it.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._handed_out_at: float | None = time.monotonic()
        self._taken_bytes = 0
        self.error: BaseException | None = None
        self.was_read = False

    def __iter__(self) -> Iterator[T]:
        try:
            self._handed_out_at = None
            for item in self._items:
                self._handed_out_at = time.monotonic()
                yield item
                self._handed_out_at = None
                self._count(item)
        except Exception as e:
            self.error = e
            raise
        finally:
            self._handed_out_at = time.monotonic()

    def _count(self, taken: T) -> None:
        # protobuf writes a message to find its size, so the size is computed only while it is
        # needed.
        if not self.was_read:
            size_bytes = len(taken) if isinstance(taken, bytes) else taken.ByteSize()
            self._taken_bytes += size_bytes
            self.was_read = self._taken_bytes > _UNREAD_AT_MOST_BYTES

    def idle_s(self) -> float:
        """Return how long gRPC has not requested the next item; 0 while `items` makes one."""
        handed_out_at = self._handed_out_at
        return 0.0 if handed_out_at is None else time.monotonic() - handed_out_at


_LISTEN_AFTER_S = 0.5
_log = logging.getLogger("sediment.rpc")


class Cancellable(Protocol):
    """A call; its waiting thread gets an error when the call is cancelled."""

    def cancel(self) -> object: ...


class StreamedCall(Cancellable, Protocol):
    """A call with many responses."""

    def initial_metadata(self) -> object:
        """Wait for the metadata, or for the end of the call."""


class Watched(Protocol):
    """A timeout that a TimeoutWatch checks."""

    def cancel_if_overdue(self) -> None: ...


class ReadIdleTimeout:
    """Cancel a streamed call whose next message does not arrive in time.

    A call may wait in the server's queue: until the server is known to serve it, another limit
    holds.

    Attributes:
        cancel_reason: why the call was cancelled; empty if it was not.
    """

    __slots__ = (
        "_call",
        "_limit_s",
        "_listens",
        "_queue_limit_s",
        "_served_since",
        "_waiting_since",
        "cancel_reason",
    )

    def __init__(self, call: StreamedCall, limit_s: float, queue_limit_s: float) -> None:
        """Start the wait for the first message.

        `queue_limit_s` holds until the server is known to serve the call.
        """
        self._call = call
        self._limit_s = limit_s
        self._queue_limit_s = queue_limit_s
        self._waiting_since: float | None = time.monotonic()
        self._served_since: float | None = None
        self._listens = False
        self.cancel_reason = ""

    def begin(self) -> None:
        """Start the wait for another message."""
        self._waiting_since = time.monotonic()

    def end(self) -> None:
        """End the wait: the server is not responsible for the time that the reader keeps a
        message.
        """
        if self._served_since is None:
            self._served_since = self._waiting_since
        self._waiting_since = None

    def cancel_if_overdue(self) -> None:
        since = self._waiting_since
        if since is None or self.cancel_reason:
            return
        now = time.monotonic()
        if self._served_since is None:
            if now - since > self._queue_limit_s:
                self._end(_not_served(self._queue_limit_s))
            elif now - since > _LISTEN_AFTER_S and not self._listens:
                Thread(target=self._listen, name="note-served", daemon=True).start()
                self._listens = True
        elif now - max(since, self._served_since) > self._limit_s:
            self._end(f"has sent nothing for {self._limit_s} s")

    def _listen(self) -> None:
        # gRPC passes the metadata only to a thread that waits for them. If the reader waited for
        # them, it would get its first message later, and that message usually arrives at once.
        with suppress(grpc.RpcError):
            self._call.initial_metadata()
        self._served_since = time.monotonic()

    def _end(self, reason: str) -> None:
        self.cancel_reason = reason
        self._call.cancel()


class SendStallTimeout:
    """Cancel a call whose client streams if the server reads nothing for too long.

    Attributes:
        cancel_reason: why the call was cancelled; empty if it was not.
    """

    __slots__ = ("_call", "_limit_s", "_queue_limit_s", "_served_since", "_source", "cancel_reason")

    def __init__(
        self, call: Cancellable, source: Source[Any], limit_s: float, queue_limit_s: float
    ) -> None:
        """Start to watch a call.

        `queue_limit_s` holds until the server is known to serve the call: from its initial
        metadata, or because it reads.
        """
        self._call = call
        self._source = source
        self._limit_s = limit_s
        self._queue_limit_s = queue_limit_s
        self._served_since: float | None = None
        self.cancel_reason = ""

    def note_served(self) -> None:
        self._served_since = time.monotonic()

    def cancel_if_overdue(self) -> None:
        served_since, idle_s = self._served_since, self._source.idle_s()
        if served_since is not None:
            idle_s = min(idle_s, time.monotonic() - served_since)
        elif not self._source.was_read:
            self._end_if(idle_s > self._queue_limit_s, _not_served(self._queue_limit_s))
            return
        self._end_if(idle_s > self._limit_s, f"has made no progress for {self._limit_s} s")

    def _end_if(self, too_long: bool, reason: str) -> None:
        if too_long and not self.cancel_reason:
            self.cancel_reason = reason
            self._call.cancel()


def _not_served(limit_s: float) -> str:
    return f"has not begun to serve the call within {limit_s} s; retry later"


class TimeoutWatch:
    """Check all calls of a process periodically, in a thread that runs while there are any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a watch whose rounds follow `clock`."""
        self._clock = clock
        self._lock = Lock()
        self._watched: set[Watched] = set()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            # In a forked process the thread of the parent is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="timeout-watch", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        for _ in timely_rounds(Event().wait, self._clock):
            with self._lock:
                all_watched = list(self._watched)
                if not all_watched:
                    self._thread = None
                    return
            for watched in all_watched:
                try:
                    watched.cancel_if_overdue()
                except Exception:  # noqa: BLE001 - logged below
                    # A possible cause is that no thread could be started. The others must still be
                    # checked.
                    _log.exception("the timeout of a call could not be checked; checking it again")


TIMEOUT_WATCH = TimeoutWatch()
Response_co = TypeVar("Response_co", covariant=True)
Response = TypeVar("Response")
UNARY_TIMEOUT_S = 30.0

# The longest wait for a thread. Sixteen copies may wait behind eight (RSM's defaults): if each is 1
# GiB, they finish in this time if the store accepts 14 MiB/s.
COPY_QUEUE_TIMEOUT_S = 1800.0

# The time for which our own clients of RLM wait for data that RLM reads from RSM (FETCH_TIMEOUT_S).
READ_QUEUE_TIMEOUT_S = 300.0


class Unary(Protocol[Response_co]):
    """A generated method with one response, for one message or an iterator of messages."""

    def __call__(self, request: Any, /, *, timeout: float, metadata: Any) -> Response_co: ...


# A repeat then finds the connection closed by the server that stops, and another one open.
REPEAT_PAUSE_S = 0.05


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
    with map_rpc_errors(peer):
        try:
            return method(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as e:
            left_s = ends_at - time.monotonic() - REPEAT_PAUSE_S
            if not is_idempotent or not is_lost(e) or left_s <= 0:
                raise
            lost = e
        time.sleep(REPEAT_PAUSE_S)
        with _still_open(lost):
            return method(request, timeout=left_s, metadata=metadata)


@contextmanager
def _still_open(lost: grpc.RpcError) -> Iterator[None]:
    """Raise `lost` if this client has closed the channel, which ended the first attempt too."""
    try:
        yield
    except ValueError:
        raise lost from None


def call_with_stream(
    method: Any,
    messages: Iterable[Message | bytes],
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
        with threads_for_stream():
            call = method.future(iter(source), metadata=_call_metadata())
        stall_timeout = SendStallTimeout(call, source, progress_timeout_s, queue_timeout_s)
        try:
            TIMEOUT_WATCH.add(stall_timeout)
            # The metadata arrive when the server begins to serve the call, or when the call is
            # over.
            call.initial_metadata()
            stall_timeout.note_served()
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
        with _still_open(lost):
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
    with threads_for_stream():
        call: Any = method(request, metadata=metadata)
    read_idle_timeout = ReadIdleTimeout(call, timeout_s, queue_timeout_s)
    try:
        TIMEOUT_WATCH.add(read_idle_timeout)
        for message in call:
            read_idle_timeout.end()
            yield message
            read_idle_timeout.begin()
    except grpc.RpcError:
        _raise_if(read_idle_timeout.cancel_reason, peer)
        raise
    finally:
        TIMEOUT_WATCH.remove(read_idle_timeout)
        call.cancel()


@contextmanager
def threads_for_stream() -> Iterator[None]:
    """Begin a stream inside the block; if gRPC can start no thread for it, its channel is lost.

    gRPC counts the stream nevertheless, and starts no thread again for the events of later ones:
    they would wait for ever.
    """
    try:
        yield
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
        request_id = uuid4().hex
    return [(REQUEST_ID_KEY, request_id), *call_headers()]
