"""Find one order of a partition's operations that explains all that its clients saw.

This is the search of Wing and Gong with Lowe's memory of visited states. Three rules keep it short:

* Replies carry revisions: if a reply names the next revision, only its operation can come next.
* An operation that changes nothing (a read, a refusal, a repeat) is placed as soon as its reply is
  the model's: it does not affect what follows, and a repeat never becomes a change later. The
  exception is an announcement beside a reset of the leader epoch: its reply is empty, and after the
  reset the same announcement may be a change.
* Lost operations matter only if they changed something, at any time after they were invoked.

A client retries by itself when an answer is lost. Without a request id the answer is then that
of a repeat, though it was the first attempt that made the revision.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.api.calls import MutationOutcome
from tests.deep.histories.history import Record
from tests.deep.histories.operations import (
    Change,
    Lead,
    MoveBatch,
    Operation,
    ResetLeaderEpoch,
    as_python,
    changes_in,
    outcomes_in,
    revision_read,
)
from tests.deep.histories.partition import Event, Partition
from tests.deep.histories.space import Space
from tests.deep.histories.step import Step, step, unknown_partition

MAX_NODES = 200_000
"""Most branches of one search; beyond it the search is undecided, which no test accepts."""


class NotLinearizableError(AssertionError):
    """No order explains the history.

    Attributes:
        unexplained: the operations one of which had to come next in the longest order found.
    """

    def __init__(self, message: str, unexplained: Sequence[Record] = ()) -> None:
        super().__init__(message)
        self.unexplained = tuple(unexplained)


class UndecidedError(Exception):
    """The search was stopped: too many operations were lost at the same time."""


@dataclass(frozen=True, slots=True)
class Order:
    """Attributes:
    changes: the mutations that changed something, in their order.
    final: the partition after them.
    nodes: how many branches the search looked at.
    """

    changes: tuple[Record, ...]
    final: Partition
    nodes: int


@dataclass(frozen=True, slots=True)
class _Node:
    """Where the search is. Bits of `done` are places in `answered`, of `used` places in `lost`."""

    partition: Partition
    done: int = 0
    used: int = 0
    first: int = 0
    changes: tuple[Record, ...] = ()
    branched: bool = False

    def key(self) -> tuple[object, ...]:
        return (self.done, self.used, self.partition.key())


class Search:
    """Search for an order of one partition's operations."""

    def __init__(
        self,
        space: Space,
        records: Sequence[Record],
        holds: Mapping[str, tuple[int, int]],
        trail: Sequence[Event] | None,
    ) -> None:
        self._space = space
        by_time = sorted(records, key=lambda record: record.invoked_ns)
        self._answered = [record for record in by_time if not record.is_lost]
        self._lost = [each for each in by_time if each.is_lost and each.operation.is_mutation]
        self._trail = trail
        self._claims = _claims(self._answered)
        self._unsettled = _meeting_a_reset(self._answered, self._lost)
        self._nodes = 0
        [tp] = {tp for record in records for tp in record.operation.tps}
        self._furthest = self._start = _Node(unknown_partition(space, tp, holds))

    def order(self) -> Order:
        """Raise NotLinearizableError if there is none, UndecidedError if the search was stopped."""
        waiting, seen = [self._start], set[tuple[object, ...]]()
        while waiting:
            node = self._settled(waiting.pop())
            if self._is_end(node):
                return Order(node.changes, node.partition, self._nodes)
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise UndecidedError(f"no order found in {MAX_NODES} branches")
            if node.done.bit_count() >= self._furthest.done.bit_count():
                self._furthest = node
            if node.branched:
                if node.key() in seen:
                    continue
                seen.add(node.key())
            following = list(self._following(node))
            branched = node.branched or len(following) > 1
            waiting += [replace(each, branched=branched) for each in reversed(following)]
        raise self._failure()

    def _is_end(self, node: _Node) -> bool:
        is_complete = self._trail is None or node.partition.revision == len(self._trail)
        return is_complete and node.first == len(self._answered)

    def _open(self, node: _Node) -> tuple[list[int], int]:
        """The answered operations of which any may come next: none was invoked after another of
        them, or any other that is left, had completed. And that time, for the lost ones."""
        places, horizon_ns = [], 2**63
        for place in range(node.first, len(self._answered)):
            record = self._answered[place]
            if record.invoked_ns > horizon_ns:
                break
            if not node.done >> place & 1:
                places.append(place)
                horizon_ns = min(horizon_ns, record.completed_ns)
        return places, horizon_ns

    def _settled(self, node: _Node) -> _Node:
        """Return the node after everything that changes nothing and fits here."""
        done, first = node.done, node.first
        while True:
            before = done
            for place in self._open(replace(node, done=done, first=first))[0]:
                fits = self._fits_unchanged(node.partition, self._answered[place])
                if fits and place not in self._unsettled:
                    done |= 1 << place
            while done >> first & 1:
                first += 1
            if done == before:
                return replace(node, done=done, first=first)

    def _following(self, node: _Node) -> Iterator[_Node]:
        """Yield the nodes after one more change, or after one more unsettled operation."""
        places, horizon_ns = self._open(node)
        for place in self._unsettled.intersection(places):
            if self._fits_unchanged(node.partition, self._answered[place]):
                yield replace(node, done=node.done | 1 << place)
        for place in places:
            record = self._answered[place]
            change = self._change(node.partition, record)
            if change is None or not self._agrees(change, record):
                continue
            if change.reply == record.reply:
                yield self._after(node, change, record, done=1 << place)
            elif _may_be_a_repeat(record):
                yield self._after(node, change, record)  # its reply is still to be explained
        for place, record in enumerate(self._lost):
            if record.invoked_ns > horizon_ns:
                break
            change = None if node.used >> place & 1 else self._change(node.partition, record)
            if change and self._agrees(change, record):
                yield self._after(node, change, record, used=1 << place)

    def _after(
        self, node: _Node, change: Step, record: Record, done: int = 0, used: int = 0
    ) -> _Node:
        return replace(
            node,
            partition=change.partition,
            done=node.done | done,
            used=node.used | used,
            changes=(*node.changes, record),
        )

    def _agrees(self, change: Step, record: Record) -> bool:
        """Return whether other replies and the audit trail agree about these revisions."""
        for event in change.events:
            claimers = self._claims.get(event.revision)
            if claimers and record.number not in claimers and event.request_id not in claimers:
                return False
            if self._trail is not None:
                reported = event.revision <= len(self._trail) and self._trail[event.revision - 1]
                if reported != event:
                    return False
        return True

    def _fits_unchanged(self, partition: Partition, record: Record) -> bool:
        """Return whether the model gives this reply here and changes nothing."""
        # The revision alone is cheaper than the model's answer.
        if revision_read(record.reply) not in (None, partition.revision):
            return False
        if _last_revision(record.reply) > partition.revision:
            return False
        same = step(partition, record.operation, self._space)
        return not same.events and same.reply == record.reply

    def _change(self, partition: Partition, record: Record) -> Step | None:
        """Return the change; None if there is none here, or if the reply has none."""
        may_change = (
            record.reply is None
            or record.is_lost
            or _last_revision(record.reply) > partition.revision
        )
        if not may_change or not record.operation.is_mutation:
            return None
        changed = step(partition, record.operation, self._space)
        return changed if changed.events else None

    def _failure(self) -> NotLinearizableError:
        node = self._furthest
        left = [self._answered[place] for place in self._open(node)[0]]
        lines = [f"no order explains this at revision {node.partition.revision}:"]
        for record in left:
            reply = step(node.partition, record.operation, self._space).reply
            lines += [f"  {record}", f"    the model's answer: {as_python(reply)}"]
        if not left:
            lines.append("  every reply is explained; the audit trail continues with")
            reported = self._trail or ()
            lines += [f"    {event}" for event in reported[node.partition.revision :][:3]]
        if node.changes:
            lines.append("  the last changes before it:")
            lines += [f"    {record}" for record in node.changes[-5:]]
        return NotLinearizableError("\n".join(lines), left)


def _meeting_a_reset(answered: Sequence[Record], lost: Sequence[Record]) -> frozenset[int]:
    """The places of announcements during which a leader epoch may have been reset."""
    resets = [each for each in (*answered, *lost) if isinstance(each.operation, ResetLeaderEpoch)]
    return frozenset(
        place
        for place, record in enumerate(answered)
        if isinstance(record.operation, Lead)
        and any(
            reset.invoked_ns < record.completed_ns
            and (reset.is_lost or record.invoked_ns < reset.completed_ns)
            for reset in resets
        )
    )


def _claims(records: Sequence[Record]) -> dict[int, set[int | str]]:
    """Return who may have made each revision that replies name: numbers of the records that do, and
    their request ids, under which an earlier attempt may have done it whose answer was lost."""
    claims = defaultdict[int, set[int | str]](set)
    for record in records:
        request_ids = _request_ids(record.operation)
        for outcome, request_id in zip(outcomes_in(record.reply), request_ids, strict=False):
            if isinstance(outcome, MutationOutcome) and outcome.applied:
                claims[outcome.revision] |= {record.number} | (
                    set() if request_id is None else {request_id}
                )
    return claims


def _request_ids(operation: Operation) -> list[str | None]:
    """Return the request id of each outcome."""
    match operation:
        case MoveBatch(moves):
            return [move.why.request_id for move in moves]
        case Change(why=why):
            return [why.request_id]
    return []


def _may_be_a_repeat(record: Record) -> bool:
    """Return whether a reply may be of a second attempt, of which the first made the change.

    It then applies nothing but what has a request id: of that it repeats the first answer.
    """
    outcomes = zip(outcomes_in(record.reply), _request_ids(record.operation), strict=False)
    return not any(
        isinstance(outcome, MutationOutcome) and outcome.applied and request_id is None
        for outcome, request_id in outcomes
    )


def _last_revision(reply: object) -> int:
    return max((outcome.revision for outcome in changes_in(reply)), default=0)
