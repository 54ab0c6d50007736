"""What travels beside a request: who calls, under which id, and why something is changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from services.api.topic_config import RetentionOwner
from services.api.validation import require, require_int32, require_int64

MAX_TEXT_LENGTH = 256
T = TypeVar("T")


def _always() -> bool:
    return True


def _for_ever() -> float:
    return inf


@dataclass(frozen=True, slots=True)
class Call:
    """The call that is being served in this thread.

    Attributes:
        actor: who calls, as the transport authenticated it; "anonymous" while TLS is off.
        request_id: names this one call in logs and in error messages, also those of the services
            that are called on its behalf.
        is_active: whether the caller still waits for the answer. Once False it stays False: the
            deadline passed, the caller cancelled, or the connection broke.
        left_s: how long the caller waits yet, s, if it does not leave before; infinite where it
            named no end.
    """

    actor: str
    request_id: str
    is_active: Callable[[], bool] = _always
    left_s: Callable[[], float] = _for_ever


IN_PROCESS = Call(actor="in-process", request_id="-")
_current: ContextVar[Call] = ContextVar("call", default=IN_PROCESS)


def current_call() -> Call:
    """The call being served; IN_PROCESS where no transport is between caller and service."""
    return _current.get()


@contextmanager
def serving(call: Call) -> Iterator[None]:
    """`current_call()` is `call` inside."""
    before = _current.get()
    _current.set(call)
    try:
        yield
    finally:
        _current.set(before)


@dataclass(frozen=True, slots=True)
class MutationContext:
    """Why something is changed; goes into the audit trail with the change.

    Attributes:
        request_id: chosen by the caller, one per intended change of a partition. Seen before in
            that partition within a day, it is answered with its applied outcome and changes
            nothing; with another body it is an InvalidRequestError. A refused call is not
            remembered. None: the call is judged by state alone.
        reason: a word or a sentence for people ("copy", "retention.ms breached").
        rule_detail: the figures by which a rule decided.
        plan_id: the sweep that planned this change.
        broker_leader_epoch: the caller's view of who leads; older than the partition's is
            refused with FencedLeaderEpochError where the contract says so. None: no fence.
        expected_revision: of the partition before this call; another is a ConcurrentUpdateError.
            A repeat is judged before it, and it may differ between calls of one request id.
            None: not looked at.
        expected_config_revision: the same, of the topic's settings.
        retention_owner: for whom a segment is deleted by a rule of retention; None: not said,
            which counts as the broker. DeletionRefusedError where the topic has another.
    """

    request_id: str | None = None
    reason: str = ""
    rule_detail: str | None = None
    plan_id: str | None = None
    broker_leader_epoch: int | None = None
    expected_revision: int | None = None
    expected_config_revision: int | None = None
    retention_owner: RetentionOwner | None = None

    def __post_init__(self) -> None:
        for field in ("request_id", "reason", "rule_detail", "plan_id"):
            text = getattr(self, field) or ""
            require(len(text) <= MAX_TEXT_LENGTH, field, f"over {MAX_TEXT_LENGTH} characters")
        require(self.request_id != "", "request_id", "must not be empty where it is given")
        if self.broker_leader_epoch is not None:
            require_int32(self.broker_leader_epoch, "broker_leader_epoch")
        for field in ("expected_revision", "expected_config_revision"):
            revision = getattr(self, field)
            if revision is not None:
                require_int64(revision, field)


NO_CONTEXT = MutationContext()


@dataclass(frozen=True, slots=True)
class MutationOutcome:
    """The answer to a mutation that holds now.

    Attributes:
        applied: True: this call made the change. False: it was so before (a repeat).
        revision: the partition's revision that carries the change.
    """

    applied: bool
    revision: int


@dataclass(frozen=True, slots=True)
class AtRevision(Generic[T]):
    """An answer and the revision of the partition that it is true for."""

    value: T
    revision: int
