"""Define the context of a request: the caller, the request id, and the reason of a change."""

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


def _any_topic(topic: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Call:
    """Describe the call that this thread serves.

    Attributes:
        actor: the caller as the transport authenticated it; "anonymous" while TLS is off.
        request_id: names this call in logs and in error messages, including those of the services
            that are called on its behalf.
        is_active: returns whether the caller still waits for the response. After False it stays
            False: the deadline passed, the caller cancelled, or the connection broke.
        left_s: returns the seconds until the caller's deadline; infinite if it has none.
        require_topic: raises PermissionDeniedError if the caller may not make this call for the
            topic. A service calls it with the name that it stored, if the request has only an id.
        has_own_thread: a thread of this caller serves the call, so that a wait holds up no other.
        trace: the trace that work for this call continues; opaque, None if there is none.
    """

    actor: str
    request_id: str
    is_active: Callable[[], bool] = _always
    left_s: Callable[[], float] = _for_ever
    require_topic: Callable[[str], None] = _any_topic
    has_own_thread: bool = False
    trace: object = None


IN_PROCESS = Call(actor="in-process", request_id="-")
_current: ContextVar[Call] = ContextVar("call", default=IN_PROCESS)


def current_call() -> Call:
    """Return the call being served; IN_PROCESS if no transport is between caller and service."""
    return _current.get()


@contextmanager
def serving(call: Call) -> Iterator[None]:
    """Make `call` the `current_call()` inside the block."""
    before = _current.get()
    _current.set(call)
    try:
        yield
    finally:
        _current.set(before)


@dataclass(frozen=True, slots=True)
class MutationContext:
    """Describe the reason and the conditions of a change; the audit trail records it.

    Attributes:
        request_id: chosen by the caller, one per intended change of a partition. If the partition
            had it within a day, the call changes nothing and returns the outcome of the first call;
            with another body it fails with InvalidRequestError. Refused calls are not stored. None:
            the state alone decides.
        reason: a word or a sentence for people ("copy", "retention.ms breached").
        rule_detail: the figures that a rule compared.
        plan_id: the sweep that planned this change.
        broker_leader_epoch: of the leader that the caller knows; an older one than the partition's
            is refused with FencedLeaderEpochError if the contract requires it. None: no fence.
        expected_revision: of the partition before this call; another one is a
            ConcurrentUpdateError. A repeated request id is recognized first, and may expect another
            revision. None for any revision.
        expected_config_revision: the same, of the topic's settings.
        retention_owner: the one for whom a retention rule deletes the segment; None counts as the
            broker. DeletionRefusedError if the topic has another.
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
        require(self.request_id != "", "request_id", "must not be empty if it is set")
        if self.broker_leader_epoch is not None:
            require_int32(self.broker_leader_epoch, "broker_leader_epoch")
        for field in ("expected_revision", "expected_config_revision"):
            revision = getattr(self, field)
            if revision is not None:
                require_int64(revision, field)


NO_CONTEXT = MutationContext()


@dataclass(frozen=True, slots=True)
class MutationOutcome:
    """Describe a change that is in effect now.

    Attributes:
        applied: True if this call made the change, or an earlier one with its request id, or of
            its sweep and segment; False if another one did (a repeat). A deletion stays the sweep's
            that marked it if a caller without a plan finishes it.
        revision: the partition's revision that carries the change.
        custom_metadata: of a segment that moves to DELETE_SEGMENT_STARTED, or has moved: names the
            objects to delete. None if it has none, and for every other change.
        kept_until_ms: of an update: the segment's kept_until_ms now.
    """

    applied: bool
    revision: int
    custom_metadata: bytes | None = None
    kept_until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AtRevision(Generic[T]):
    """A value, and the revision of the partition at which it was read."""

    value: T
    revision: int
