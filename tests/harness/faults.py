"""What a proxy should do wrong, and to which requests; switchable while it runs."""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from threading import Event, Lock


class Direction(Enum):
    REQUEST = auto()
    RESPONSE = auto()


@dataclass(frozen=True)
class Answer:
    """Answer the request ourselves with this HTTP status; it never reaches the server.

    Attributes:
        page: of HTML; empty: the error that S3 clients expect.
        location: where a redirect leads.
    """

    status: int
    page: str = ""
    location: str = ""


@dataclass(frozen=True)
class Delay:
    """Wait before the request, or the connection, goes on: up to `jitter_ms` more, drawn."""

    delay_ms: int
    jitter_ms: int = 0


@dataclass(frozen=True)
class Throttle:
    """Pass bodies, or the bytes of a plain TCP stream, at this rate; each direction has its own."""

    bytes_per_s: int


@dataclass(frozen=True)
class BlackHole:
    """Take all that the client sends and stay silent; nothing reaches the server."""


@dataclass(frozen=True, eq=False)
class Late:
    """Take the whole request and hang up; it reaches the server when nobody waits for it any more.

    Attributes:
        taken: set once the client has been hung up on.
        let: a test sets it, and the request goes on.
        done: set once the server has answered.
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
    """HTTP: end a response in order after this many bytes of its body; its head says as many."""

    after_bytes: int


@dataclass(frozen=True)
class Ending:
    """What comes after exactly this many bytes of a body, or of a plain TCP stream.

    HTTP: None is before the head, too, so that nothing at all passes in this direction. A response
    that is kept back was given by the server: the request has been carried out.
    """

    after_bytes: int | None
    direction: Direction


class Cut(Ending):
    """End both connections in order."""


class Reset(Ending):
    """End both connections by RST; what was under way may be lost."""


class Stall(Ending):
    """Fall silent in this direction; the connections stay until the client hangs up."""


class HalfClose(Ending):
    """End this direction in order; what comes the other way is still taken."""


Fault = Answer | Delay | Throttle | BlackHole | Late | Corrupt | Truncate | Ending


@dataclass
class _Rule:
    fault: Fault
    operations: Collection[str] | None
    skip: int = 0
    times: int | None = None
    share: float = 1.0
    until: float | None = None


class Faults:
    """Rules in order; a request takes the first that has something for it. Thread-safe.

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
        """Let `skip` matching requests pass, then do it to the next `times`; None: to all."""
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
        """Do it to this share of requests, drawn from the seeded generator.

        It is over after it has hit `times` requests, or after `for_ms`, or when cleared.
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
        """The fault for this request, which is used up by asking."""
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
