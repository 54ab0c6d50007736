"""Apply each change once: return the outcome of a repeated request id, and record events and
repeats.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

from sqlalchemy import Connection

from services.api.calls import NO_CONTEXT, Call, MutationContext, MutationOutcome, current_call
from services.api.validation import require
from services.rlmm.changes.audit import COUNT_REPEATS, RECORD, Event, event_row
from services.rlmm.database.db import JsonRow, PartitionKey, partition_row, run, when_needed
from services.rlmm.database.rows import AnyRow
from services.rlmm.guards import Partition

REMEMBERED_FOR = timedelta(days=1)

REMEMBERED = """
    SELECT o.topic_id, o.partition, o.request_id, o.body_digest, o.revision
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int, request_id text)
    JOIN request_outcomes AS o USING (topic_id, partition, request_id)
    WHERE o.at > now() - %(for)s"""

# A row with the same id can only be one that is too old to count.
REMEMBER = """
    INSERT INTO request_outcomes (topic_id, partition, request_id, body_digest, revision)
    SELECT topic_id, partition, request_id, decode(body_digest, 'hex'), revision
    FROM json_to_recordset(%(rows)s) AS answered (
        topic_id uuid, partition int, request_id text, body_digest text, revision bigint)
    ON CONFLICT (topic_id, partition, request_id) DO UPDATE SET
        body_digest = excluded.body_digest, revision = excluded.revision, at = clock_timestamp()"""


def body_digest(body: object, context: MutationContext) -> bytes:
    """Digest the repr of everything the client sent but the request id and the expectations.

    Expectations decide when a change may be made, not which change it is: a client that lost the
    response, and reads the present revision before it retries, still requests the same change.
    """
    why = replace(context, request_id=None, expected_revision=None, expected_config_revision=None)
    return hashlib.sha256(repr((body, why)).encode()).digest()


@dataclass(frozen=True, slots=True)
class _Answer:
    body_digest: bytes
    revision: int


_RequestKey: TypeAlias = tuple[PartitionKey, str | None]


class Records:
    """The events, repeats and outcomes of one transaction whose partitions are locked.

    Nothing is written before `write`.
    """

    def __init__(
        self, connection: Connection, calls: Iterable[tuple[PartitionKey, MutationContext]] = ()
    ) -> None:
        """Read the remembered outcomes of the calls.

        Args:
            calls: the contexts of all changes, each with its partition.
        """
        self._connection = connection
        wanted = [
            {**partition_row(key), "request_id": context.request_id}
            for key, context in calls
            if context.request_id is not None
        ]
        rows: Iterable[AnyRow] = ()
        if wanted:
            rows = run(connection, REMEMBERED, wanted, {"for": REMEMBERED_FOR})
        self._answers = when_needed(lambda: _answers(rows))
        self._events: list[JsonRow] = []
        self._new_answers: dict[_RequestKey, _Answer] = {}
        self._repeats: Counter[tuple[PartitionKey, int]] = Counter()

    def earlier_outcome(
        self, partition: Partition, body: object, context: MutationContext
    ) -> MutationOutcome | None:
        """Return the earlier outcome of the context's request id, including one of this
        transaction.

        Raises:
            InvalidRequestError: the request id was used with another body before.
        """
        if context.request_id is None:
            return None
        key = partition.key
        answer = self._answers().get((key, context.request_id))
        if answer is None:
            return None
        require(
            answer.body_digest == body_digest(body, context),
            "context.request_id",
            f"{context.request_id!r} was used for another request before; choose a new one",
        )
        self._repeats[key, answer.revision] += 1
        return MutationOutcome(applied=True, revision=answer.revision)

    def repeat(self, partition: Partition, revision: int) -> MutationOutcome:
        """Count a repeat of the change whose event has `revision`."""
        self._repeats[partition.key, revision] += 1
        return MutationOutcome(applied=False, revision=revision)

    def change(
        self,
        partition: Partition,
        event: Event,
        body: object = None,
        context: MutationContext = NO_CONTEXT,
        call: Call | None = None,
    ) -> MutationOutcome:
        """Give the partition its next revision and record `event` with it.

        Args:
            call: the call that requested the change; None for the current one.
        """
        partition.revision += 1
        key, revision = partition.key, partition.revision
        self._events.append(event_row(key, revision, event, context, call or current_call()))
        if context.request_id is not None:
            answer = _Answer(body_digest(body, context), revision)
            request = key, context.request_id
            self._answers()[request] = self._new_answers[request] = answer
        return MutationOutcome(applied=True, revision=revision)

    def write(self) -> None:
        connection = self._connection
        if self._events:
            run(connection, RECORD, self._events)
        if self._new_answers:
            run(connection, REMEMBER, [_answer_row(*each) for each in self._new_answers.items()])
        if self._repeats:
            # All transactions that change several events, including the purge, use the same order.
            repeats = sorted(self._repeats.items())
            run(connection, COUNT_REPEATS, [_repeat_row(*each) for each in repeats])


def _answers(rows: Iterable[AnyRow]) -> dict[_RequestKey, _Answer]:
    return {
        ((row.topic_id, row.partition), row.request_id): _Answer(row.body_digest, row.revision)
        for row in rows
    }


def _answer_row(request: _RequestKey, answer: _Answer) -> JsonRow:
    key, request_id = request
    return {
        **partition_row(key),
        "request_id": request_id,
        "body_digest": answer.body_digest.hex(),
        "revision": answer.revision,
    }


def _repeat_row(event: tuple[PartitionKey, int], times: int) -> JsonRow:
    key, revision = event
    return {**partition_row(key), "revision": revision, "times": times}
