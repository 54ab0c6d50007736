"""Purge tombstones, request ids, old events, removed topics, anomalies, checks and holds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, text

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import ZERO_UUID
from services.api.operations import RunCounts, RunKind, ToolRun
from services.api.validation import require
from services.rlmm.changes.idempotency import REMEMBERED_FOR
from services.rlmm.database.db import IS_KNOWN, retry_if_rolled_back
from services.rlmm.database.schema import connected, revision_in, try_lock
from services.rlmm.database.schema_revision import is_usable, needed
from services.rlmm.database.tables import METADATA
from services.rlmm.operations import tool_runs

BATCH = 2_000
PARTITIONS_PER_STATEMENT = 1_000
TOPICS_PER_STATEMENT = 200
MIN_DAYS = 1
DAY_MS = 86_400_000
MAX_DAYS = 36_500

_ADVISORY_LOCK = 0x5ED1_3E28
"""Any number that nothing else in the database uses."""

# Partitions in the order of their key, and whether the oldest event of each may be purged.
_OLDEST_EVENTS = f"""
    SELECT p.topic_id, p.partition, p.revision,
        oldest.at < now() - CAST(:age AS interval) AND oldest.revision < p.revision AS may_go
    FROM (
        SELECT topic_id, partition, revision FROM partitions
        WHERE (topic_id, partition) > (:topic_id, :partition)
        ORDER BY topic_id, partition LIMIT {PARTITIONS_PER_STATEMENT}
    ) AS p
    LEFT JOIN LATERAL (
        SELECT revision, at FROM events
        WHERE topic_id = p.topic_id AND partition = p.partition
        ORDER BY revision LIMIT 1
    ) AS oldest ON true
    ORDER BY p.topic_id, p.partition"""
# From the oldest event up to the first that must stay: the remaining events have no gaps, even if
# the clock once went backwards.
_PURGE_EVENTS = f"""
    WITH oldest AS MATERIALIZED (
        SELECT revision, at FROM events
        WHERE topic_id = :topic_id AND partition = :partition AND revision > :after
        ORDER BY revision LIMIT {BATCH}
    ), stays AS (
        SELECT min(revision) AS revision FROM oldest
        WHERE at >= now() - CAST(:age AS interval) OR revision >= :latest
    ), gone AS (
        DELETE FROM events USING stays
        WHERE topic_id = :topic_id AND partition = :partition AND events.revision > :after
            AND events.revision <= (SELECT max(revision) FROM oldest)
            AND (stays.revision IS NULL OR events.revision < stays.revision)
        RETURNING events.revision
    )
    SELECT count(*) AS rows, max(revision) AS last FROM gone"""

# Topics whose partitions were all removed so long ago. The lock waits for new partitions.
_REMOVED_TOPICS = f"""
    SELECT t.topic_id FROM topics AS t
    WHERE t.topic_id > :after AND t.purged_changes IS NULL
        AND EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = t.topic_id)
        AND NOT EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = t.topic_id
            AND ({IS_KNOWN} OR p.changed_at >= now() - CAST(:age AS interval)))
        AND NOT EXISTS (SELECT FROM segments AS s WHERE s.topic_id = t.topic_id)
    ORDER BY t.topic_id LIMIT {TOPICS_PER_STATEMENT} FOR UPDATE OF t"""
# The tombstone keeps the number of changes, which never falls. Changes lock in the same order.
_PURGE_TOPICS = (
    "SELECT FROM partitions WHERE topic_id = ANY(:ids) ORDER BY topic_id, partition FOR UPDATE",
    """
    UPDATE topics AS t SET config = '{}', purged_changes = (
        SELECT sum(revision) FROM partitions AS p WHERE p.topic_id = t.topic_id)
    WHERE topic_id = ANY(:ids)""",
    *(
        f"DELETE FROM {table.name} WHERE topic_id = ANY(:ids)"
        for table in reversed(METADATA.sorted_tables)
        if table.name not in ("topics", "anomalies") and "topic_id" in table.columns
    ),
)

Progress = Callable[[str, int], None]
"""A function that is called after each batch with the step and the rows that it has changed so
far.
"""


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """The retention of each kind of row.

    Attributes:
        delete_retention_ms: how long a deleted segment's row stays (Kafka: delete.retention.ms).
        events_retention_ms: how long the audit trail goes back at least; a partition's latest event
            stays as long as the partition, and that as long after its topic was removed.
        anomalies_retention_ms: how long an anomaly stays after the last run that found it, and a
            part of a check after the run that read it.
    """

    delete_retention_ms: int = DAY_MS
    events_retention_ms: int = 90 * DAY_MS
    anomalies_retention_ms: int = 90 * DAY_MS

    def __post_init__(self) -> None:
        for name, kept_ms, least_days in (
            ("delete-retention", self.delete_retention_ms, 0),
            ("events-retention", self.events_retention_ms, MIN_DAYS),
            ("anomalies-retention", self.anomalies_retention_ms, MIN_DAYS),
        ):
            is_within = least_days * DAY_MS <= kept_ms <= MAX_DAYS * DAY_MS
            require(is_within, name, f"must be {least_days} to {MAX_DAYS} days, is {kept_ms} ms")


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The rows that each step deleted; none if another maintenance runs."""

    already_running: bool
    tombstones: int = 0
    request_outcomes: int = 0
    events: int = 0
    removed_topics: int = 0
    anomalies: int = 0
    tool_runs: int = 0
    holds: int = 0


def maintain(
    database_url: str,
    plan: MaintenancePlan,
    progress: Progress = lambda *_: None,
    password_file: Path | None = None,
) -> MaintenanceReport:
    """Run all steps once and record the run, or none if another maintenance runs. Idempotent.

    Raises:
        RetriableRemoteStorageError: the database is unreachable, or its schema is older than
            this release's; rows that were already purged stay purged.
    """
    began_s = time.monotonic()
    with connected(database_url, password_file) as connection:
        _require_usable(connection)
        if not try_lock(connection, _ADVISORY_LOCK):
            return MaintenanceReport(already_running=True)

        def count(step: str, batches: Iterator[int]) -> int:
            total = 0
            for changed in batches:
                total += changed
                progress(step, total)
            return total

        tombstone_age = timedelta(milliseconds=plan.delete_retention_ms)
        event_age = timedelta(milliseconds=plan.events_retention_ms)
        anomaly_age = timedelta(milliseconds=plan.anomalies_retention_ms)
        report = MaintenanceReport(
            already_running=False,
            tombstones=count("tombstones", _purge(connection, _TOMBSTONES, tombstone_age)),
            request_outcomes=count(
                "request_outcomes", _purge(connection, _REQUEST_OUTCOMES, REMEMBERED_FOR)
            ),
            events=count("events", _purge_events(connection, event_age)),
            removed_topics=count("removed_topics", _purge_topics(connection, event_age)),
            anomalies=count("anomalies", _purge(connection, _ANOMALIES, anomaly_age)),
            tool_runs=count("tool_runs", _purge(connection, _TOOL_RUNS, anomaly_age)),
            holds=count("holds", _purge(connection, _HOLDS, REMEMBERED_FOR)),
        )
        took_ms = int((time.monotonic() - began_s) * 1_000)
        run = ToolRun(RunKind.MAINTENANCE, uuid4().hex, duration_ms=took_ms)
        with connection.begin():
            tool_runs.report(connection, run, [RunCounts()])
        return report


def _require_usable(connection: Connection) -> None:
    revision = revision_in(connection)
    connection.commit()
    if not is_usable(revision):
        raise RetriableRemoteStorageError(needed(revision))


def _purge_statement(table: str, is_old: str, age: str) -> str:
    # Start at the end of the previous batch: the rows that it deleted are still in the index.
    return f"""
        WITH gone AS (
            DELETE FROM {table} WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM {table}
                WHERE {is_old} AND {age} < now() - CAST(:age AS interval) AND {age} >= :since
                ORDER BY {age} LIMIT {BATCH} FOR UPDATE SKIP LOCKED))
            RETURNING {age} AS at
        )
        SELECT count(*) AS rows, max(at) AS last FROM gone"""


# A kept tombstone alone says that its objects are still there. Topics stay for their tombstones.
_TOMBSTONES = _purge_statement(
    "segments", "state = 'DELETE_SEGMENT_FINISHED' AND kept_until IS NULL", "changed_at"
)
_REQUEST_OUTCOMES = _purge_statement("request_outcomes", "true", "at")
_ANOMALIES = _purge_statement("anomalies", "true", "last_seen")
# Runs that read everything are few: one of each kind and topic.
_TOOL_RUNS = _purge_statement("tool_runs", "parts > 1", "ended_at")
_HOLDS = _purge_statement("holds", "true", "until")
_LONG_AGO = datetime.fromisoformat("0001-01-02T00:00:00+00:00")


def _purge(connection: Connection, statement: str, age: timedelta) -> Iterator[int]:
    since = _LONG_AGO
    while True:
        done = _run(connection, statement, age=age, since=since)
        if done.rows == 0:
            return
        yield done.rows
        since = done.last


def _purge_events(connection: Connection, age: timedelta) -> Iterator[int]:
    for partition in _partitions(connection, age):
        after = 0
        while partition.may_go:
            done = _run(
                connection,
                _PURGE_EVENTS,
                topic_id=partition.topic_id,
                partition=partition.partition,
                latest=partition.revision,
                age=age,
                after=after,
            )
            if done.rows == 0:
                break
            yield done.rows
            after = done.last


def _partitions(connection: Connection, age: timedelta) -> Iterator[Any]:
    key: dict[str, Any] = {"topic_id": "00000000-0000-0000-0000-000000000000", "partition": -1}
    while True:
        with connection.begin():
            rows = connection.execute(text(_OLDEST_EVENTS), {**key, "age": age}).all()
        yield from rows
        if len(rows) < PARTITIONS_PER_STATEMENT:
            return
        key = {"topic_id": rows[-1].topic_id, "partition": rows[-1].partition}


def _purge_topics(connection: Connection, age: timedelta) -> Iterator[int]:
    """Reduce removed topics to one row each."""
    after = ZERO_UUID

    def transaction() -> Sequence[UUID]:
        with connection.begin():
            found = {"after": after, "age": age}
            ids = connection.scalars(text(_REMOVED_TOPICS), found).all()
            for statement in _PURGE_TOPICS if ids else ():
                connection.execute(text(statement), {"ids": ids})
            return ids

    while ids := retry_if_rolled_back(transaction):
        yield len(ids)
        after = ids[-1]


def _run(connection: Connection, statement: str, **values: object) -> Row[*tuple[Any, ...]]:
    """Run one statement in a transaction of its own."""

    def transaction() -> Row[*tuple[Any, ...]]:
        with connection.begin():
            return connection.execute(text(statement), values).one()

    return retry_if_rolled_back(transaction)
