"""What a proxy should do wrong, and to which requests; switchable while it runs."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock


class Direction(Enum):
    REQUEST = auto()
    RESPONSE = auto()


@dataclass(frozen=True)
class Answer:
    """Answer the request ourselves with this HTTP status; it never reaches the server."""

    status: int


@dataclass(frozen=True)
class Cut:
    """End both connections after exactly this many bytes of a body, or of a plain TCP stream."""

    after_bytes: int
    direction: Direction


@dataclass(frozen=True)
class Delay:
    """Wait before the request, or the connection, goes on."""

    delay_ms: int


Fault = Answer | Cut | Delay


@dataclass
class _Rule:
    fault: Fault
    operation: str | None
    skip: int
    times: int


class Faults:
    """Rules in order; a request takes the first that has something left for it. Thread-safe.

    An operation of None matches every request. Plain TCP connections are operation "connection".
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = Lock()
        self._random = random.Random(seed)
        self._rules: list[_Rule] = []
        self._share = 0.0

    def add(
        self, fault: Fault, *, operation: str | None = None, times: int = 1, skip: int = 0
    ) -> None:
        """Let `skip` matching requests pass, then do it to the next `times`."""
        with self._lock:
            self._rules.append(_Rule(fault, operation, skip, times))

    def fail_share(self, share: float) -> None:
        """Answer 503 to this share of requests, drawn from the seeded generator; 0 ends it."""
        with self._lock:
            self._share = share

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()
            self._share = 0.0

    def take(self, operation: str) -> Fault | None:
        """The fault for this request, which is used up by asking."""
        with self._lock:
            for rule in self._rules:
                if rule.times == 0 or rule.operation not in (None, operation):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
            if self._share and self._random.random() < self._share:
                return Answer(503)
            return None


class CutError(ConnectionError):
    """A fault ends this connection."""


def cutting(send: Callable[[bytes], None], after_bytes: int) -> Callable[[bytes], None]:
    """A `send` that passes on exactly `after_bytes` bytes and then raises CutError."""
    left = after_bytes

    def send_until_cut(data: bytes) -> None:
        nonlocal left
        send(data[:left])
        left -= min(left, len(data))
        if left == 0:
            raise CutError(f"cut after {after_bytes} bytes")

    return send_until_cut
