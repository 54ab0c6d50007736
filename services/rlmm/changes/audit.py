"""Record the audit trail, and list it a page at a time."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import Call, MutationContext
from services.api.ids import ZERO_UUID
from services.api.partitions import EventPage, EventQuery, PartitionEvent
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.database import limits
from services.rlmm.database.db import (
    PARTITIONS,
    JsonRow,
    PartitionKey,
    execute,
    key_of,
    key_values,
    partition_row,
)
from services.rlmm.database.limits import Page, Query, check_text
from services.rlmm.database.rows import AnyRow, event_key, ms_of
from services.rlmm.guards import check_topic_name, unknown_partition

NO_BROKER = -1
"""Broker id of changes that no broker made."""

RECORD = """
    INSERT INTO events (
        kind, actor, call_id, topic_id, partition, revision, from_state, to_state, segment_id, key,
        request_id, reason, rule_detail, plan_id, broker_id, broker_leader_epoch)
    SELECT changed.*
    FROM json_to_recordset(%(rows)s) AS changed (
        kind text, actor text, call_id text, topic_id uuid, partition int, revision bigint,
        from_state text, to_state text, segment_id uuid, key text, request_id text, reason text,
        rule_detail text, plan_id text, broker_id int, broker_leader_epoch int)"""
COUNT_REPEATS = """
    UPDATE events AS e SET repeat_count = e.repeat_count + repeated.times
    FROM json_to_recordset(%(rows)s) AS repeated (
        topic_id uuid, partition int, revision bigint, times bigint)
    WHERE e.topic_id = repeated.topic_id AND e.partition = repeated.partition
        AND e.revision = repeated.revision"""
MAX_EXAMINED = 20_000
"""The most events that one page reads to select those of one segment or sweep."""
MAX_NUMBERS_BYTES = 256
_TEXTS = (
    "kind",
    "from_state",
    "to_state",
    "key",
    "actor",
    "call_id",
    "request_id",
    "reason",
    "rule_detail",
    "plan_id",
)
# The page and one more row, which shows whether there is a next page. `examined` is the last event
# that a page reads; null if there are no more.
EVENTS = f"""
    SELECT t.name AS topic, p.revision AS partition_revision, examined.last_revision, page.*
    FROM {PARTITIONS}
    LEFT JOIN LATERAL (
        SELECT revision AS last_revision FROM events
        WHERE topic_id = p.topic_id AND partition = p.partition AND revision > %(after)s
        ORDER BY revision OFFSET {MAX_EXAMINED - 1} LIMIT 1
    ) AS examined ON %(filters)s
    LEFT JOIN LATERAL (
        SELECT revision, at, segment_id, broker_id, broker_leader_epoch, repeat_count,
            {", ".join(_TEXTS)}
        FROM events
        WHERE topic_id = p.topic_id AND partition = p.partition AND revision > %(after)s
            AND (examined.last_revision IS NULL OR revision <= examined.last_revision)
            AND (CAST(%(segment_id)s AS uuid) IS NULL OR segment_id = %(segment_id)s)
            AND (CAST(%(plan_id)s AS text) IS NULL OR plan_id = %(plan_id)s)
        ORDER BY revision LIMIT %(limit)s
    ) AS page ON true
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s
    ORDER BY page.revision"""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a partition, and the broker that made it."""

    kind: str
    from_state: str | None = None
    to_state: str | None = None
    broker_id: int = NO_BROKER
    broker_leader_epoch: int | None = None
    segment_id: UUID | None = None
    key: str | None = None


def addition_event(metadata: RemoteLogSegmentMetadata, broker_leader_epoch: int | None) -> Event:
    """Return the event of a new segment, in any state."""
    return Event(
        "SEGMENT",
        None,
        metadata.state.value,
        metadata.broker_id,
        broker_leader_epoch,
        metadata.remote_log_segment_id.id,
        event_key(metadata),
    )


def event_row(
    key: PartitionKey, revision: int, event: Event, context: MutationContext, call: Call
) -> JsonRow:
    """Return the row of RECORD for an event with a revision of its partition."""
    return {
        **partition_row(key),
        "kind": event.kind,
        "revision": revision,
        "actor": call.actor,
        "call_id": call.request_id,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "segment_id": event.segment_id,
        "key": event.key,
        "request_id": context.request_id,
        "reason": context.reason,
        "rule_detail": context.rule_detail,
        "plan_id": context.plan_id,
        "broker_id": event.broker_id,
        "broker_leader_epoch": event.broker_leader_epoch,
    }


def fingerprint(query: EventQuery) -> Query:
    check_text(query.plan_id, "plan_id")
    segment_id = None if query.segment_id is None else str(query.segment_id)
    tp = str(query.topic_id_partition)
    return ("events", tp, query.after_revision, segment_id, query.plan_id)


def list_events(connection: Connection, query: EventQuery, page: Page) -> EventPage:
    """Read one page of events; see RemoteLogMetadataManager.list_events."""
    tp = query.topic_id_partition
    values = {
        **key_values(key_of(tp)),
        "after": query.after_revision if page.after is None else page.after[0],
        "segment_id": query.segment_id,
        "plan_id": query.plan_id or None,
        "filters": query.segment_id is not None or query.plan_id != "",
        "limit": page.limit + 1,
    }
    rows = execute(connection, EVENTS, values).fetchall()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].topic)
    events, token = page.cut(
        [row for row in rows if row.revision is not None],
        _size_bytes,
        lambda row: (row.revision, ZERO_UUID),
    )
    examined = rows[0].last_revision
    if not token and examined is not None:
        token = limits.encode(page.query, (examined, ZERO_UUID))
    return EventPage(tuple(map(_event, events)), token, rows[0].partition_revision)


def _size_bytes(row: AnyRow) -> int:
    """Return an upper bound of the event's bytes in a message."""
    texts = (getattr(row, name) or "" for name in _TEXTS)
    return MAX_NUMBERS_BYTES + sum(len(text.encode()) for text in texts)


def _event(row: AnyRow) -> PartitionEvent:
    return PartitionEvent(
        revision=row.revision,
        at_ms=ms_of(row.at),
        segment_id=row.segment_id,
        broker_id=row.broker_id,
        broker_leader_epoch=row.broker_leader_epoch,
        repeat_count=row.repeat_count,
        **{name: getattr(row, name) or "" for name in _TEXTS},
    )
