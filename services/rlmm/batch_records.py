"""What a batch writes down: an event for each change, repeats, and answers to request ids.

events.record, events.count_repeat and outcomes.applied_once for many: one statement each.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import Call, MutationContext, MutationOutcome
from services.api.ids import RemoteLogSegmentId
from services.rlmm.json_rows import PartitionKey, partition_row, run, segment_row, when_needed
from services.rlmm.outcomes import REMEMBERED_FOR, Body, body_digest, require_same_body
from services.rlmm.partition_view import PartitionView
from services.rlmm.rows import AnyRow

REMEMBERED = """
    SELECT o.topic_id, o.partition, o.request_id, o.body_digest, o.revision
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int, request_id text)
    JOIN request_outcomes AS o USING (topic_id, partition, request_id)
    WHERE o.at > now() - %(for)s"""

RECORD = """
    INSERT INTO events (
        kind, actor, call_id, topic_id, partition, revision, from_state, to_state, segment_id, key,
        request_id, reason, rule_detail, plan_id, broker_id, broker_leader_epoch)
    SELECT 'SEGMENT', changed.*
    FROM json_to_recordset(%(rows)s) AS changed (
        actor text, call_id text, topic_id uuid, partition int, revision bigint, from_state text,
        to_state text, segment_id uuid, key text, request_id text, reason text, rule_detail text,
        plan_id text, broker_id int, broker_leader_epoch int)"""

# A row with such an id can only be one that is too old to count.
REMEMBER = """
    INSERT INTO request_outcomes (topic_id, partition, request_id, body_digest, revision)
    SELECT topic_id, partition, request_id, decode(body_digest, 'hex'), revision
    FROM json_to_recordset(%(rows)s) AS answered (
        topic_id uuid, partition int, request_id text, body_digest text, revision bigint)
    ON CONFLICT (topic_id, partition, request_id) DO UPDATE SET
        body_digest = excluded.body_digest, revision = excluded.revision, at = clock_timestamp()"""

COUNT_REPEATS = """
    UPDATE events AS e SET repeat_count = e.repeat_count + repeated.times
    FROM json_to_recordset(%(rows)s) AS repeated (
        topic_id uuid, partition int, revision bigint, times bigint)
    WHERE e.topic_id = repeated.topic_id AND e.partition = repeated.partition
        AND e.revision = repeated.revision"""


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """A change of a segment, as the audit trail has it."""

    segment_id: RemoteLogSegmentId
    from_state: str | None
    to_state: str
    key: str
    broker_id: int
    broker_leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class _Record:
    call: Call
    event: SegmentEvent
    context: MutationContext
    revision: int


@dataclass(frozen=True, slots=True)
class _Answer:
    body_digest: bytes
    revision: int


_RequestKey: TypeAlias = tuple[PartitionKey, str | None]


class BatchRecords:
    """Of one transaction, whose partitions are locked. Nothing is written before `write`."""

    def __init__(
        self, session: Session, calls: Iterable[tuple[PartitionKey, MutationContext]]
    ) -> None:
        """`calls`: of all items, with the partition of each."""
        self._session = session
        remembered = self._ask_for_answers(calls)
        self._answers = when_needed(lambda: _answers(remembered))
        self._records: list[_Record] = []
        self._new_answers: dict[_RequestKey, _Answer] = {}
        self._repeats: Counter[tuple[PartitionKey, int]] = Counter()

    def answered_before(
        self, partition: PartitionView, body: Body, context: MutationContext
    ) -> MutationOutcome | None:
        """What the context's request id was answered with, in this batch or before it.

        Raises:
            InvalidRequestError: the request id came with another body before.
        """
        if context.request_id is None:
            return None
        key = (partition.topic_id, partition.partition)
        answer = self._answers().get((key, context.request_id))
        if answer is None:
            return None
        require_same_body(context.request_id, answer.body_digest, body_digest(body, context))
        self._repeats[key, answer.revision] += 1
        return MutationOutcome(applied=True, revision=answer.revision)

    def repeat(self, partition: PartitionView, revision: int) -> MutationOutcome:
        """The item asks for what the event of `revision` had done."""
        self._repeats[(partition.topic_id, partition.partition), revision] += 1
        return MutationOutcome(applied=False, revision=revision)

    def change(
        self,
        partition: PartitionView,
        event: SegmentEvent,
        body: Body,
        context: MutationContext,
        call: Call,
    ) -> MutationOutcome:
        """Give the partition its next revision, carried by `event`; `call` asked for it."""
        partition.revision += 1
        revision = partition.revision
        self._records.append(_Record(call, event, context, revision))
        if context.request_id is not None:
            key = (partition.topic_id, partition.partition), context.request_id
            answer = _Answer(body_digest(body, context), revision)
            self._answers()[key] = self._new_answers[key] = answer
        return MutationOutcome(applied=True, revision=revision)

    def write(self) -> None:
        connection = self._session.connection()
        if self._records:
            run(connection, RECORD, [_event_row(record) for record in self._records])
        if self._new_answers:
            run(connection, REMEMBER, [_answer_row(*each) for each in self._new_answers.items()])
        if self._repeats:
            # In one order, as everybody who changes several events: the purge too.
            repeats = sorted(self._repeats.items())
            run(connection, COUNT_REPEATS, [_repeat_row(*each) for each in repeats])

    def _ask_for_answers(
        self, calls: Iterable[tuple[PartitionKey, MutationContext]]
    ) -> Iterable[AnyRow]:
        wanted = [
            {**partition_row(key), "request_id": context.request_id}
            for key, context in calls
            if context.request_id is not None
        ]
        if not wanted:
            return ()
        return run(self._session.connection(), REMEMBERED, wanted, {"for": REMEMBERED_FOR})


def _answers(rows: Iterable[AnyRow]) -> dict[_RequestKey, _Answer]:
    return {
        ((row.topic_id, row.partition), row.request_id): _Answer(row.body_digest, row.revision)
        for row in rows
    }


def _event_row(record: _Record) -> dict[str, object]:
    event, context = record.event, record.context
    return {
        **segment_row(event.segment_id),
        "actor": record.call.actor,
        "call_id": record.call.request_id,
        "revision": record.revision,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "key": event.key,
        "request_id": context.request_id,
        "reason": context.reason,
        "rule_detail": context.rule_detail,
        "plan_id": context.plan_id,
        "broker_id": event.broker_id,
        "broker_leader_epoch": event.broker_leader_epoch,
    }


def _answer_row(request: _RequestKey, answer: _Answer) -> dict[str, object]:
    key, request_id = request
    return {
        **partition_row(key),
        "request_id": request_id,
        "body_digest": answer.body_digest.hex(),
        "revision": answer.revision,
    }


def _repeat_row(event: tuple[PartitionKey, int], times: int) -> dict[str, object]:
    key, revision = event
    return {**partition_row(key), "revision": revision, "times": times}
