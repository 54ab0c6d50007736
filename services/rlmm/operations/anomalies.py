"""Store and list anomalies, and record the deletion of objects."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import MutationOutcome
from services.api.holds import Mark
from services.api.ids import TopicIdPartition
from services.api.operations import (
    MAX_ANOMALIES,
    MAX_OBJECT_DELETIONS,
    Anomaly,
    AnomalyKind,
    AnomalyPage,
    AnomalyQuery,
    ObjectDeletion,
    RecordedAnomaly,
    check_run_id,
)
from services.api.validation import require_count
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Change
from services.rlmm.database.db import execute, run
from services.rlmm.database.limits import Page, Query, check_text
from services.rlmm.database.rows import EPOCH, AnyRow, ms_of

KEPT_RUN_IDS = 10
MAX_NUMBERS_BYTES = 256
_MICROSECOND = timedelta(microseconds=1)
_LATEST = datetime.max.replace(tzinfo=UTC)

# Rows come in the order of the key, so that two reports never deadlock.
REPORT = f"""
    INSERT INTO anomalies AS known (
        anomaly_id, kind, topic_id, partition, segment_id, object_key, detail, run_ids)
    SELECT anomaly_id, kind, topic_id, partition, segment_id, object_key, detail,
        ARRAY[CAST(%(run_id)s AS text)]
    FROM json_to_recordset(%(rows)s) AS found (
        anomaly_id uuid, kind text, topic_id uuid, partition int, segment_id uuid,
        object_key text, detail text)
    ORDER BY anomaly_id
    ON CONFLICT (anomaly_id) DO UPDATE SET
        detail = excluded.detail,
        last_seen = excluded.last_seen,
        times_seen = known.times_seen + 1,
        run_ids = (known.run_ids || excluded.run_ids)[
            greatest(cardinality(known.run_ids) - {KEPT_RUN_IDS - 2}, 1):]
    WHERE excluded.run_ids[1] <> ALL(known.run_ids)"""


def check_report(anomalies: Sequence[Anomaly], run_id: str) -> None:
    """Refuse a malformed report.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.report_anomalies.
    """
    check_run_id(run_id)
    check_text(run_id, "run_id")
    require_count(anomalies, "anomalies", MAX_ANOMALIES)
    for index, anomaly in enumerate(anomalies):
        check_text(anomaly.object_key, f"anomalies[{index}].object_key")
        check_text(anomaly.detail, f"anomalies[{index}].detail")


def report(connection: Connection, anomalies: Sequence[Anomaly], run_id: str) -> None:
    """Count each anomaly once for the run; see RemoteLogMetadataManager.report_anomalies."""
    rows = {_id_of(anomaly): anomaly for anomaly in anomalies}
    values = [{**asdict(anomaly), "anomaly_id": id} for id, anomaly in rows.items()]
    run(connection, REPORT, values, {"run_id": run_id})


@dataclass(frozen=True, slots=True)
class ObjectDeletions:
    """The arguments of record_object_deletions, but for the context."""

    topic_id_partition: TopicIdPartition
    deletions: tuple[ObjectDeletion, ...]


def check_deletions(record: ObjectDeletions) -> None:
    """Refuse a malformed record.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.record_object_deletions.
    """
    require_count(record.deletions, "deletions", MAX_OBJECT_DELETIONS)
    for index, each in enumerate(record.deletions):
        check_text(each.object_key, f"deletions[{index}].object_key")


def record_deletions(change: Change, record: ObjectDeletions) -> MutationOutcome:
    """Record an event for each object; see RemoteLogMetadataManager.record_object_deletions."""
    change.locked.require_expected(change.context)
    change.locked.require_not_held(Mark.OBJECTS)
    for each in record.deletions:
        event = Event("OBJECT_DELETION", segment_id=each.segment_id, key=each.object_key)
        outcome = change.record(event)
    return outcome


def fingerprint(query: AnomalyQuery) -> Query:
    kinds = sorted({kind.value for kind in query.kinds})
    return ("anomalies", kinds, str(query.topic_id), query.last_seen_from_ms)


def list_anomalies(connection: Connection, query: AnomalyQuery, page: Page) -> AnomalyPage:
    """Read one page, without kinds that only a later release knows.

    See RemoteLogMetadataManager.list_anomalies.
    """
    conditions, values = ["kind = ANY(%(kinds)s)"], dict[str, object](rows=page.limit + 1)
    values["kinds"] = [kind.value for kind in query.kinds or AnomalyKind]
    if query.topic_id is not None:
        conditions.append("topic_id = %(topic_id)s")
        values["topic_id"] = query.topic_id
    if query.last_seen_from_ms is not None:
        conditions.append("last_seen >= %(last_seen_from)s")
        values["last_seen_from"] = _time(1_000 * query.last_seen_from_ms)
    if page.after is not None:
        first_seen, values["anomaly_id"] = page.after
        conditions.append("(first_seen, anomaly_id) > (%(first_seen)s, %(anomaly_id)s)")
        values["first_seen"] = _time(first_seen)
    statement = f"""
    SELECT * FROM anomalies WHERE {" AND ".join(conditions)}
    ORDER BY first_seen, anomaly_id LIMIT %(rows)s"""
    rows, token = page.cut(
        execute(connection, statement, values).fetchall(),
        _size_bytes,
        lambda row: ((row.first_seen - EPOCH) // _MICROSECOND, row.anomaly_id),
    )
    return AnomalyPage(tuple(map(_seen, rows)), token)


def _time(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to a time; a value past the last time gives the last time."""
    return EPOCH + min(max(microseconds, 0), (_LATEST - EPOCH) // _MICROSECOND) * _MICROSECOND


def _id_of(anomaly: Anomaly) -> UUID:
    """Digest an anomaly's identity, because an object key may be longer than an index allows."""
    known_by = (
        anomaly.kind.value,
        str(anomaly.topic_id),
        anomaly.partition,
        str(anomaly.segment_id),
        anomaly.object_key,
    )
    return UUID(bytes=hashlib.sha256(repr(known_by).encode()).digest()[:16])


def _size_bytes(row: AnyRow) -> int:
    """Return an upper bound of the anomaly's bytes in a message."""
    texts = (row.object_key, row.detail, row.run_ids[-1])
    return MAX_NUMBERS_BYTES + sum(len(text.encode()) for text in texts)


def _seen(row: AnyRow) -> RecordedAnomaly:
    of = row.topic_id, row.partition, row.segment_id, row.object_key, row.detail
    anomaly = Anomaly(AnomalyKind(row.kind), *of)
    return RecordedAnomaly(
        anomaly, ms_of(row.first_seen), ms_of(row.last_seen), row.times_seen, row.run_ids[-1]
    )
