"""Reading and writing the segments of a batch: whatever their number, one round trip each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.rlmm.json_rows import PartitionKey, hex_of, key_of, run, segment_row
from services.rlmm.rows import COPY_LEASED, AnyRow, row_values

SegmentKey: TypeAlias = tuple[PartitionKey, UUID]


@dataclass(frozen=True, slots=True)
class Move:
    """A segment that moves to its next state.

    Attributes:
        from_state: in which it was judged.
        revision: the partition's that carries the move.
        plan_id: of the sweep that marks it.
    """

    update: RemoteLogSegmentMetadataUpdate
    from_state: str
    revision: int
    plan_id: str | None


@dataclass(frozen=True, slots=True)
class Addition:
    """A segment that becomes known; `revision` of its partition carries it; `lease_ms` of its copy,
    None: it has none."""

    metadata: RemoteLogSegmentMetadata
    revision: int
    lease_ms: int | None = None


# Rows are found by LATERAL subqueries that the planner cannot take apart, and written by ctid: it
# knows too little of the keys to join by them.
STORED = f"""
    SELECT s.*
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int, segment_id uuid)
    CROSS JOIN LATERAL (
        SELECT *, {COPY_LEASED} AS copy_leased FROM segments
        WHERE topic_id = wanted.topic_id AND partition = wanted.partition
            AND segment_id = wanted.segment_id
        LIMIT 1
    ) AS s"""

MOVE = """
    UPDATE segments AS s SET
        state = moved.state,
        broker_id = moved.broker_id,
        event_timestamp_ms = moved.event_timestamp_ms,
        state_revision = moved.revision,
        custom_metadata = coalesce(decode(moved.custom_metadata, 'hex'), s.custom_metadata),
        plan_id = CASE WHEN moved.state = 'DELETE_SEGMENT_STARTED'
            THEN moved.plan_id ELSE s.plan_id END,
        finished_revision = CASE WHEN moved.state = 'COPY_SEGMENT_FINISHED'
            THEN moved.revision ELSE s.finished_revision END,
        changed_at = clock_timestamp()
    FROM (
        SELECT moved.*, found.segment_ctid
        FROM json_to_recordset(%(rows)s) AS moved (
            topic_id uuid, partition int, segment_id uuid, state text, broker_id int,
            event_timestamp_ms bigint, revision bigint, custom_metadata text, plan_id text,
            from_state text)
        CROSS JOIN LATERAL (
            SELECT ctid AS segment_ctid FROM segments
            WHERE topic_id = moved.topic_id AND partition = moved.partition
                AND segment_id = moved.segment_id AND state = moved.from_state
            LIMIT 1
        ) AS found
    ) AS moved
    WHERE s.ctid = moved.segment_ctid"""

ADD = """
    INSERT INTO segments (
        topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms, broker_id,
        event_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes,
        custom_metadata, state, txn_idx_empty, broker_leader_epoch, state_revision,
        finished_revision, copy_lease_until)
    SELECT
        topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms, broker_id,
        event_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes,
        decode(custom_metadata, 'hex'), state, txn_idx_empty, broker_leader_epoch, state_revision,
        CASE WHEN state = 'COPY_SEGMENT_FINISHED' THEN state_revision END,
        clock_timestamp() + lease_ms * interval '1 millisecond'
    FROM json_to_recordset(%(rows)s) AS added (
        topic_id uuid, partition int, segment_id uuid, start_offset bigint, end_offset bigint,
        max_timestamp_ms bigint, broker_id int, event_timestamp_ms bigint, leader_epochs int[],
        epoch_start_offsets bigint[], segment_size_in_bytes int, custom_metadata text, state text,
        txn_idx_empty boolean, broker_leader_epoch int, state_revision bigint, lease_ms bigint)"""


def stored_segments(
    session: Session, segment_ids: Iterable[RemoteLogSegmentId]
) -> dict[SegmentKey, AnyRow]:
    """All columns of those that there are, and copy_leased."""
    return by_segment(ask_for_segments(session, segment_ids))


def ask_for_segments(
    session: Session, segment_ids: Iterable[RemoteLogSegmentId]
) -> Iterable[AnyRow]:
    """stored_segments, which in a pipeline may be read when they are needed."""
    return run(session.connection(), STORED, [segment_row(id) for id in segment_ids])


def by_segment(rows: Iterable[AnyRow]) -> dict[SegmentKey, AnyRow]:
    return {((row.topic_id, row.partition), row.segment_id): row for row in rows}


def segment_key(segment_id: RemoteLogSegmentId) -> SegmentKey:
    return key_of(segment_id.topic_id_partition), segment_id.id


def move_segments(session: Session, moves: Sequence[Move]) -> Callable[[], None]:
    """Write the moves into the table of segments.

    Answers a check that they were written, for when the pipeline that this may be in has ended.
    """
    rows = [
        {
            **segment_row(move.update.remote_log_segment_id),
            "state": move.update.state.value,
            "broker_id": move.update.broker_id,
            "event_timestamp_ms": move.update.event_timestamp_ms,
            "revision": move.revision,
            "custom_metadata": hex_of(move.update.custom_metadata),
            "plan_id": move.plan_id,
            "from_state": move.from_state,
        }
        for move in moves
    ]
    written = run(session.connection(), MOVE, rows)

    def require_all() -> None:
        moved = written.rowcount
        if moved != len(moves):
            # Whoever changes a segment holds its partition's lock, as this call does.
            raise RemoteStorageError(f"{len(moves)} segments were judged, {moved} were as judged")

    return require_all


def add_segments(session: Session, additions: Sequence[Addition]) -> None:
    """Write new segments, in whatever state they are."""
    rows = [
        {
            **row_values(addition.metadata),
            **segment_row(addition.metadata.remote_log_segment_id),
            "custom_metadata": hex_of(addition.metadata.custom_metadata),
            "state_revision": addition.revision,
            "lease_ms": addition.lease_ms,
        }
        for addition in additions
    ]
    run(session.connection(), ADD, rows)
