"""Define the faults of a proxy and the requests they apply to; switchable while it runs."""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from threading import Event, Lock

from tests.harness.http_messages import Send


class Direction(Enum):
    REQUEST = auto()
    RESPONSE = auto()


@dataclass(frozen=True)
class Answer:
    """Answer the request with this HTTP status; it never reaches the server.

    Attributes:
        page: of HTML; empty for the error that S3 clients expect.
        location: the target of a redirect.
        etag: of an object that the store pretends to keep.
        kind: Content-Type of the page.
    """

    status: int
    page: str = ""
    location: str = ""
    etag: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Delay:
    """Delay the request, or the connection, by a fixed time and up to a random `jitter_ms` more."""

    delay_ms: int
    jitter_ms: int = 0


@dataclass(frozen=True)
class Throttle:
    """Pass bodies, or the bytes of a plain TCP stream, at this rate; each direction has its own."""

    bytes_per_s: int


@dataclass(frozen=True)
class BlackHole:
    """Read everything that the client sends and never respond; nothing reaches the server."""


@dataclass(frozen=True, eq=False)
class Late:
    """Read the whole request and hang up; it reaches the server when no client waits for it any
    more.

    Attributes:
        taken: set once the connection to the client is closed.
        let: set by a test, so that the request continues.
        done: set once the server has responded.
    """

    taken: Event = field(default_factory=Event)
    let: Event = field(default_factory=Event)
    done: Event = field(default_factory=Event)


@dataclass(frozen=True)
class Corrupt:
    """Change one byte of a body, or of a plain TCP stream; the first is 0."""

    at_byte: int
    direction: Direction


@dataclass(frozen=True)
class Truncate:
    """End an HTTP response in order after this many bytes of its body; its head has the same
    length.
    """

    after_bytes: int


@dataclass(frozen=True)
class Padding:
    """Send these bytes before the body of an HTTP response, as a store does that works on it."""

    content: bytes


@dataclass(frozen=True)
class Etag:
    """Give an HTTP response another ETag."""

    etag: str


@dataclass(frozen=True)
class Ending:
    """The event after exactly this many bytes of a body, or of a plain TCP stream.

    HTTP: None is before the head, too, so that nothing at all passes in this direction. If a
    response is withheld, the server has sent it: the request has been carried out.
    """

    after_bytes: int | None
    direction: Direction


class Cut(Ending):
    """End both connections in order."""


class Reset(Ending):
    """End both connections by RST; bytes in flight may be lost."""


class Stall(Ending):
    """Stop sending in this direction; the connections stay until the client hangs up."""


class HalfClose(Ending):
    """End this direction in order; bytes from the other direction still pass."""


Fault = Answer | Delay | Throttle | BlackHole | Late | Corrupt | Truncate | Padding | Etag | Ending


@dataclass
class _Rule:
    fault: Fault
    operations: Collection[str] | None
    skip: int = 0
    times: int | None = None
    share: float = 1.0
    until: float | None = None


class Faults:
    """Holds rules in order; a request gets the first matching rule that is not used up.
    Thread-safe.

    An operation of None matches every request. Plain TCP connections are operation "connection".
    """

    def __init__(self, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = Lock()
        self._random = random.Random(seed)
        self._clock = clock
        self._rules: list[_Rule] = []

    def add(
        self,
        fault: Fault,
        *,
        operation: str | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Let `skip` matching requests pass, then apply the fault to the next `times`; None for
        all.
        """
        operations = None if operation is None else [operation]
        with self._lock:
            self._rules.append(_Rule(fault, operations, skip, times))

    def storm(
        self,
        fault: Fault,
        share: float,
        *,
        operations: Collection[str] | None = None,
        times: int | None = None,
        for_ms: int | None = None,
    ) -> None:
        """Apply the fault to this share of requests, drawn from the seeded generator.

        Ends after it has hit `times` requests, or after `for_ms`, or when cleared.
        """
        until = None if for_ms is None else self._clock() + for_ms / 1000
        with self._lock:
            self._rules.append(_Rule(fault, operations, times=times, share=share, until=until))

    def fail_share(self, share: float) -> None:
        """Answer 503 to this share of requests until cleared."""
        self.storm(Answer(503), share)

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, operation: str) -> Fault | None:
        """Take the fault for this request, which uses it up."""
        with self._lock:
            for rule in self._rules:
                if self._hits(rule, operation):
                    return self._drawn(rule.fault)
            return None

    def _hits(self, rule: _Rule, operation: str) -> bool:
        if rule.times == 0 or (rule.until is not None and self._clock() >= rule.until):
            return False
        if rule.operations is not None and operation not in rule.operations:
            return False
        if rule.skip > 0:
            rule.skip -= 1
            return False
        if rule.share < 1 and self._random.random() >= rule.share:
            return False
        if rule.times is not None:
            rule.times -= 1
        return True

    def _drawn(self, fault: Fault) -> Fault:
        if isinstance(fault, Delay) and fault.jitter_ms:
            more_ms = self._random.randint(0, fault.jitter_ms)
            return replace(fault, delay_ms=fault.delay_ms + more_ms, jitter_ms=0)
        return fault


class FaultError(ConnectionError):
    """A fault ends, or silences, this connection."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(str(ending))
        self.ending = ending


class CutError(ConnectionError):
    """A fault ends this connection in order."""


Wait = Callable[[float], object]
"""Waits so many seconds, or until the wait is no longer needed."""

_SLICES_PER_S = 50


def through(fault: Fault | None, direction: Direction, send: Send, wait: Wait) -> Send:
    """Return `send` as the fault changes it in this direction."""
    if isinstance(fault, Ending) and fault.direction is direction:
        return _ending(send, fault)
    if isinstance(fault, Corrupt) and fault.direction is direction:
        return _corrupting(send, fault.at_byte)
    if isinstance(fault, Throttle):
        return _throttled(send, fault.bytes_per_s, wait)
    return send


def _ending(send: Send, fault: Ending) -> Send:
    """Return a `send` that passes on exactly `after_bytes` bytes and then raises FaultError."""
    left = fault.after_bytes or 0

    def send_until_the_end(data: bytes) -> None:
        nonlocal left
        send(data[:left])
        left -= min(left, len(data))
        if left == 0:
            raise FaultError(fault)

    return send_until_the_end


def _corrupting(send: Send, at_byte: int) -> Send:
    passed = 0

    def send_corrupted(data: bytes) -> None:
        nonlocal passed
        place = at_byte - passed
        passed += len(data)
        if 0 <= place < len(data):
            data = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        send(data)

    return send_corrupted


def _throttled(send: Send, bytes_per_s: int, wait: Wait) -> Send:
    slice_bytes = max(1, bytes_per_s // _SLICES_PER_S)

    def send_slowly(data: bytes) -> None:
        for start in range(0, len(data), slice_bytes):
            piece = data[start : start + slice_bytes]
            wait(len(piece) / bytes_per_s)
            send(piece)

    return send_slowly
