"""The statements of a batch: whatever the number of segments, one round trip each.

Rows go in as one JSON parameter each, which the database takes apart: psycopg needs several times
as long for arrays, and some for each column.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import CursorResult
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, current_call
from services.api.errors import RemoteStorageError
from services.api.segments import RemoteLogSegmentMetadataUpdate
from services.rlmm.outcomes import REMEMBERED_FOR
from services.rlmm.rows import AnyRow, event_key_of
from services.rlmm.tables import PartitionRow


@dataclass(frozen=True, slots=True)
class Move:
    """A segment that moves.

    Attributes:
        stored: its columns of STORED before.
        revision: the partition's that carries the move.
        body_digest: b"": the call has no request id.
    """

    update: RemoteLogSegmentMetadataUpdate
    context: MutationContext
    stored: AnyRow
    revision: int
    body_digest: bytes

    @property
    def segment_id(self) -> UUID:
        return self.update.remote_log_segment_id.id


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a request id was answered with."""

    body_digest: bytes
    revision: int


STORED = """
    SELECT segment_id, state, broker_id, custom_metadata, state_revision, end_offset,
        broker_leader_epoch
    FROM segments
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND segment_id = ANY(CAST(%(segment_ids)s AS uuid[]))"""

REMEMBERED = """
    SELECT request_id, body_digest, revision
    FROM request_outcomes
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND request_id = ANY(CAST(%(request_ids)s AS text[])) AND at > now() - %(for)s"""

MOVE = """
    UPDATE segments AS s SET
        state = moved.state,
        broker_id = moved.broker_id,
        event_timestamp_ms = moved.event_timestamp_ms,
        state_revision = moved.revision,
        custom_metadata = coalesce(decode(moved.custom_metadata, 'hex'), s.custom_metadata),
        plan_id = CASE WHEN moved.state = 'DELETE_SEGMENT_STARTED'
            THEN moved.plan_id ELSE s.plan_id END,
        changed_at = clock_timestamp()
    FROM json_to_recordset(%(rows)s) AS moved (
        segment_id uuid, state text, broker_id int, event_timestamp_ms bigint, revision bigint,
        custom_metadata text, plan_id text, from_state text)
    WHERE s.topic_id = %(topic_id)s AND s.partition = %(partition)s
        AND s.segment_id = moved.segment_id AND s.state = moved.from_state"""

RECORD = """
    INSERT INTO events (
        topic_id, partition, kind, actor, call_id, revision, from_state, to_state, segment_id, key,
        request_id, reason, rule_detail, plan_id, broker_id, broker_leader_epoch)
    SELECT %(topic_id)s, %(partition)s, 'SEGMENT', %(actor)s, %(call_id)s, moved.*
    FROM json_to_recordset(%(rows)s) AS moved (
        revision bigint, from_state text, to_state text, segment_id uuid, key text,
        request_id text, reason text, rule_detail text, plan_id text, broker_id int,
        broker_leader_epoch int)"""

# A row with such an id can only be one that is too old to count.
REMEMBER = """
    INSERT INTO request_outcomes (topic_id, partition, request_id, body_digest, revision)
    SELECT %(topic_id)s, %(partition)s, request_id, decode(body_digest, 'hex'), revision
    FROM json_to_recordset(%(rows)s) AS answered (
        request_id text, body_digest text, revision bigint)
    ON CONFLICT (topic_id, partition, request_id) DO UPDATE SET
        body_digest = excluded.body_digest, revision = excluded.revision, at = clock_timestamp()"""

COUNT_REPEATS = """
    UPDATE events AS e SET repeat_count = e.repeat_count + repeated.times
    FROM json_to_recordset(%(rows)s) AS repeated (revision bigint, times bigint)
    WHERE e.topic_id = %(topic_id)s AND e.partition = %(partition)s
        AND e.revision = repeated.revision"""


def stored_segments(
    session: Session, partition: PartitionRow, segment_ids: Sequence[UUID]
) -> dict[UUID, AnyRow]:
    rows = _run(session, partition, STORED, {"segment_ids": list(segment_ids)})
    return {row.segment_id: row for row in rows}


def remembered(
    session: Session, partition: PartitionRow, request_ids: Sequence[str]
) -> dict[str, Remembered]:
    """By request id, those that were answered within REMEMBERED_FOR."""
    if not request_ids:
        return {}
    values = {"request_ids": list(request_ids), "for": REMEMBERED_FOR}
    rows = _run(session, partition, REMEMBERED, values)
    return {row.request_id: Remembered(row.body_digest, row.revision) for row in rows}


def move_segments(session: Session, partition: PartitionRow, moves: Sequence[Move]) -> None:
    """What segments.move does to the rows of segments that are to be deleted."""
    rows = [
        {
            "segment_id": str(move.segment_id),
            "state": move.update.state.value,
            "broker_id": move.update.broker_id,
            "event_timestamp_ms": move.update.event_timestamp_ms,
            "revision": move.revision,
            "custom_metadata": _hex(move.update.custom_metadata),
            "plan_id": move.context.plan_id,
            "from_state": move.stored.state,
        }
        for move in moves
    ]
    moved = _run(session, partition, MOVE, {"rows": json.dumps(rows)}).rowcount
    if moved != len(moves):
        # Whoever changes a segment holds its partition's lock, as this call does.
        raise RemoteStorageError(f"{len(moves)} segments were judged, {moved} were as judged")


def record_moves(session: Session, partition: PartitionRow, moves: Sequence[Move]) -> None:
    """What events.record does, for revisions that the partition has already."""
    call = current_call()
    rows = [
        {
            "revision": move.revision,
            "from_state": move.stored.state,
            "to_state": move.update.state.value,
            "segment_id": str(move.segment_id),
            "key": _event_key(move),
            "request_id": move.context.request_id,
            "reason": move.context.reason,
            "rule_detail": move.context.rule_detail,
            "plan_id": move.context.plan_id,
            "broker_id": move.update.broker_id,
            "broker_leader_epoch": _leader_epoch(move),
        }
        for move in moves
    ]
    who = {"actor": call.actor, "call_id": call.request_id}
    _run(session, partition, RECORD, {"rows": json.dumps(rows), **who})


def remember(session: Session, partition: PartitionRow, moves: Sequence[Move]) -> None:
    """Remember the outcomes of those that have a request id."""
    rows = [
        {
            "request_id": move.context.request_id,
            "body_digest": _hex(move.body_digest),
            "revision": move.revision,
        }
        for move in moves
        if move.context.request_id is not None
    ]
    if rows:
        _run(session, partition, REMEMBER, {"rows": json.dumps(rows)})


def count_repeats(session: Session, partition: PartitionRow, repeated: Mapping[int, int]) -> None:
    """So many further calls asked for what the event of each revision had done."""
    rows = [{"revision": revision, "times": times} for revision, times in repeated.items()]
    _run(session, partition, COUNT_REPEATS, {"rows": json.dumps(rows)})


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _event_key(move: Move) -> str:
    tp = move.update.remote_log_segment_id.topic_id_partition
    return event_key_of(tp, move.stored.end_offset, move.stored.broker_leader_epoch)


def _leader_epoch(move: Move) -> int | None:
    epoch: int | None = move.context.broker_leader_epoch
    return move.stored.broker_leader_epoch if epoch is None else epoch


def _run(
    session: Session, partition: PartitionRow, statement: str, values: Mapping[str, Any]
) -> CursorResult[*tuple[Any, ...]]:
    key = {"topic_id": partition.topic_id, "partition": partition.partition}
    return session.connection().exec_driver_sql(statement, {**key, **values})
