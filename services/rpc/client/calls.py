"""What every client does the same way: deadline, request id, errors, streams that stall."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

import grpc

from services.api.calls import IN_PROCESS, current_call
from services.api.errors import RetriableRemoteStorageError
from services.common.retry import rounds_in_time
from services.rpc.channels import CHUNK_BYTES, REQUEST_ID_KEY
from services.rpc.statuses import rpc_errors_as_ours

# gRPC asks for the next message once all but 64 KiB of the last are on their way, and a peer that
# reads nothing has room for "grpc.http2.lookahead_bytes".
_UNREAD_AT_MOST_BYTES = 2 * CHUNK_BYTES


class Message(Protocol):
    """What protobuf generates."""

    def ByteSize(self) -> int: ...


T = TypeVar("T", bound=Message | bytes)


class Source(Generic[T]):
    """Iterates once over `items`, and keeps what became of that.

    gRPC asks for the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: with which `items` failed; gRPC only says that the stream was cancelled.
        was_read: more was taken than fits in between, so that somebody must have read of it.
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
        # protobuf writes a message to find its size, so not for longer than anybody asks.
        if not self.was_read:
            size_bytes = len(taken) if isinstance(taken, bytes) else taken.ByteSize()
            self._taken_bytes += size_bytes
            self.was_read = self._taken_bytes > _UNREAD_AT_MOST_BYTES

    def idle_s(self) -> float:
        """For how long nobody has asked for the next item; 0 while `items` makes one."""
        handed_out_at = self._handed_out_at
        return 0.0 if handed_out_at is None else time.monotonic() - handed_out_at


_LISTEN_AFTER_S = 0.5
_log = logging.getLogger("sediment.rpc")


class Cancellable(Protocol):
    """A call; once it is cancelled, who waits for it hears of that."""

    def cancel(self) -> object: ...


class StreamedCall(Cancellable, Protocol):
    """A call with many answers."""

    def initial_metadata(self) -> object:
        """Waits for them, or for the end of the call."""


class Watched(Protocol):
    """What a SilenceWatch looks at."""

    def end_call_if_too_long(self) -> None: ...


class Silence:
    """Of one call: how long its reader has waited for the next message, the first in its turn.

    Attributes:
        ended_because: why the call was ended; empty: it was not.
    """

    __slots__ = (
        "_call",
        "_limit_s",
        "_listens",
        "_taken_up_at",
        "_turn_limit_s",
        "_waiting_since",
        "ended_because",
    )

    def __init__(self, call: StreamedCall, limit_s: float, turn_limit_s: float) -> None:
        """The reader waits for the first message. `turn_limit_s` is for the time until the server
        is known to have taken the call up."""
        self._call = call
        self._limit_s = limit_s
        self._turn_limit_s = turn_limit_s
        self._waiting_since: float | None = time.monotonic()
        self._taken_up_at: float | None = None
        self._listens = False
        self.ended_because = ""

    def begin(self) -> None:
        """The reader waits for another message."""
        self._waiting_since = time.monotonic()

    def end(self) -> None:
        """It has one, and the server nothing to do with how long it keeps it."""
        if self._taken_up_at is None:
            self._taken_up_at = self._waiting_since
        self._waiting_since = None

    def end_call_if_too_long(self) -> None:
        since = self._waiting_since
        if since is None or self.ended_because:
            return
        now = time.monotonic()
        if self._taken_up_at is None:
            if now - since > self._turn_limit_s:
                self._end(_not_taken_up(self._turn_limit_s))
            elif now - since > _LISTEN_AFTER_S and not self._listens:
                Thread(target=self._listen, name="taken-up", daemon=True).start()
                self._listens = True
        elif now - max(since, self._taken_up_at) > self._limit_s:
            self._end(f"has sent nothing for {self._limit_s} s")

    def _listen(self) -> None:
        # gRPC tells it only to who waits for it. A reader that did would have its first message
        # later, and as a rule that comes at once.
        with suppress(grpc.RpcError):
            self._call.initial_metadata()
        self._taken_up_at = time.monotonic()

    def _end(self, because: str) -> None:
        self.ended_because = because
        self._call.cancel()


class Standstill:
    """Of one call to which its caller streams: how long the server has taken nothing.

    Attributes:
        ended_because: why the call was ended; empty: it was not.
    """

    __slots__ = ("_call", "_limit_s", "_source", "_taken_up_at", "_turn_limit_s", "ended_because")

    def __init__(
        self, call: Cancellable, source: Source[Any], limit_s: float, turn_limit_s: float
    ) -> None:
        """`turn_limit_s` is for the time until the server is known to have taken the call up: by
        its word, or because it reads."""
        self._call = call
        self._source = source
        self._limit_s = limit_s
        self._turn_limit_s = turn_limit_s
        self._taken_up_at: float | None = None
        self.ended_because = ""

    def taken_up(self) -> None:
        self._taken_up_at = time.monotonic()

    def end_call_if_too_long(self) -> None:
        taken_up_at, idle_s = self._taken_up_at, self._source.idle_s()
        if taken_up_at is not None:
            idle_s = min(idle_s, time.monotonic() - taken_up_at)
        elif not self._source.was_read:
            self._end_if(idle_s > self._turn_limit_s, _not_taken_up(self._turn_limit_s))
            return
        self._end_if(idle_s > self._limit_s, f"has made no progress for {self._limit_s} s")

    def _end_if(self, too_long: bool, because: str) -> None:
        if too_long and not self.ended_because:
            self.ended_because = because
            self._call.cancel()


def _not_taken_up(limit_s: float) -> str:
    return f"has not taken the call up for {limit_s} s"


class SilenceWatch:
    """Looks at all calls of a process again and again, in a thread that is there while any is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is that of its rounds."""
        self._clock = clock
        self._lock = Lock()
        self._watched: set[Watched] = set()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            # In a process that was forked the thread of its parent is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="silence-watch", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        for _ in rounds_in_time(Event().wait, self._clock):
            with self._lock:
                all_watched = list(self._watched)
                if not all_watched:
                    self._thread = None
                    return
            for watched in all_watched:
                try:
                    watched.end_call_if_too_long()
                except Exception:  # noqa: BLE001 - logged below
                    # Such as no thread to listen. All others must be watched still.
                    _log.exception("a call could not be looked at, and will be again")


SILENCE_WATCH = SilenceWatch()
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
