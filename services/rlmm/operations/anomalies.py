"""Store what checks found and verified, the deletion of objects, and the last sweeps."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, Select, select, text, tuple_
from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.partitions import (
    MAX_ANOMALIES,
    MAX_OBJECT_DELETIONS,
    MAX_VERIFIED_TOPICS,
    Anomaly,
    AnomalyKind,
    AnomalyPage,
    AnomalyQuery,
    ObjectDeletion,
    SeenAnomaly,
    Verification,
    VerificationKind,
    VerificationPage,
    VerificationRun,
    VerifiedTopic,
    check_run_id,
)
from services.api.remote_log_metadata_manager import (
    RecordedSweep,
    SweepKind,
    SweepOutcome,
    SweepRecord,
)
from services.api.validation import require_count
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Change
from services.rlmm.database import limits
from services.rlmm.database.db import JsonRow, run
from services.rlmm.database.limits import MAX_NAMES_AND_NUMBERS_BYTES, Position, check_text, fitting
from services.rlmm.database.rows import EPOCH, AnyRow, ms_of
from services.rlmm.database.tables import VERIFICATION_KINDS, AnomalyRow, SweepRunRow

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


def report(session: Session, anomalies: Sequence[Anomaly], run_id: str) -> None:
    """Count each anomaly once for the run; see RemoteLogMetadataManager.report_anomalies."""
    rows = {_id_of(anomaly): anomaly for anomaly in anomalies}
    run(session.connection(), REPORT, [_row(*each) for each in rows.items()], {"run_id": run_id})


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
    change.locked.require_not_frozen()
    for each in record.deletions:
        event = Event("OBJECT_DELETION", segment_id=each.segment_id, key=each.object_key)
        outcome = change.record(event)
    return outcome


def fingerprint(query: AnomalyQuery) -> tuple[object, ...]:
    """Return the value to which page tokens are bound: equal for equal queries."""
    kinds = sorted({kind.value for kind in query.kinds})
    return ("anomalies", kinds, str(query.topic_id), query.last_seen_from_ms)


def list_anomalies(
    connection: Connection, query: AnomalyQuery, *, limit: int, after: Position | None
) -> AnomalyPage:
    """Read one page; see RemoteLogMetadataManager.list_anomalies."""
    rows = connection.execute(_page(query, limit, after)).all()
    count = fitting(_size_bytes(row) for row in rows[:limit])
    token = ""
    if count < len(rows):
        last = rows[count - 1]
        first_seen = (last.first_seen - EPOCH) // _MICROSECOND
        token = limits.encode(fingerprint(query), (first_seen, last.anomaly_id))
    return AnomalyPage(tuple(_seen(row) for row in rows[:count]), token)


def _page(query: AnomalyQuery, limit: int, after: Position | None) -> Select[*tuple[object, ...]]:
    """Select the page and one more row, which shows whether there is a next page.

    Skips kinds that only a later release knows.
    """
    kinds = query.kinds or tuple(AnomalyKind)
    page = (
        select(*AnomalyRow.__table__.columns)
        .where(AnomalyRow.kind.in_([kind.value for kind in kinds]))
        .order_by(AnomalyRow.first_seen, AnomalyRow.anomaly_id)
        .limit(limit + 1)
    )
    if query.topic_id is not None:
        page = page.where(AnomalyRow.topic_id == query.topic_id)
    if query.last_seen_from_ms is not None:
        page = page.where(AnomalyRow.last_seen >= _time(1_000 * query.last_seen_from_ms))
    if after is not None:
        first_seen, anomaly_id = after
        key = tuple_(AnomalyRow.first_seen, AnomalyRow.anomaly_id)
        page = page.where(key > tuple_(_time(first_seen), anomaly_id))
    return page


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


def _row(anomaly_id: UUID, anomaly: Anomaly) -> JsonRow:
    return {
        "anomaly_id": anomaly_id.hex,
        "kind": anomaly.kind.value,
        "topic_id": anomaly.topic_id.hex,
        "partition": anomaly.partition,
        "segment_id": anomaly.segment_id.hex,
        "object_key": anomaly.object_key,
        "detail": anomaly.detail,
    }


def _size_bytes(row: AnyRow) -> int:
    """Return an upper bound of the anomaly's bytes in a message."""
    texts = (row.object_key, row.detail, row.run_ids[-1])
    return MAX_NUMBERS_BYTES + sum(len(text.encode()) for text in texts)


def _seen(row: AnyRow) -> SeenAnomaly:
    anomaly = Anomaly(
        kind=AnomalyKind(row.kind),
        topic_id=row.topic_id,
        partition=row.partition,
        segment_id=row.segment_id,
        object_key=row.object_key,
        detail=row.detail,
    )
    return SeenAnomaly(
        anomaly, ms_of(row.first_seen), ms_of(row.last_seen), row.times_seen, row.run_ids[-1]
    )


# Rows come in the order of the key, so that two reports never deadlock.
VERIFIED = """
    INSERT INTO verifications (
        topic_id, kind, parts, part, ended_at, run_id, segments, verified_segments,
        verified_bytes, failed_segments)
    SELECT topic_id, %(kind)s, %(parts)s, %(part)s,
        CASE WHEN %(listed_at_ms)s::bigint < extract(epoch FROM clock_timestamp()) * 1000
            THEN to_timestamp(%(listed_at_ms)s::bigint / 1000.0) ELSE clock_timestamp() END,
        %(run_id)s, segments, verified_segments, verified_bytes, failed_segments
    FROM json_to_recordset(%(rows)s) AS done (
        topic_id uuid, segments bigint, verified_segments bigint, verified_bytes bigint,
        failed_segments bigint)
    WHERE topic_id IN (SELECT topic_id FROM topics)
    ORDER BY topic_id
    ON CONFLICT (topic_id, kind, parts, part) DO UPDATE SET
        ended_at = excluded.ended_at,
        run_id = excluded.run_id,
        segments = excluded.segments,
        verified_segments = excluded.verified_segments,
        verified_bytes = excluded.verified_bytes,
        failed_segments = excluded.failed_segments
    WHERE verifications.ended_at <= excluded.ended_at"""

# Of a topic and kind first the sets that have all their parts, the latest first; then the set with
# the largest share of its parts.
VERIFICATIONS = """
    SELECT DISTINCT ON (topic_id, kind) done.*, t.name
    FROM (
        SELECT topic_id, kind, parts, count(*) AS verified_parts, min(ended_at) AS ended_at,
            max(ended_at) AS last_ended_at,
            (array_agg(run_id ORDER BY ended_at DESC))[1] AS run_id,
            sum(segments)::bigint AS segments,
            sum(verified_segments)::bigint AS verified_segments,
            sum(verified_bytes)::bigint AS verified_bytes,
            sum(failed_segments)::bigint AS failed_segments
        FROM verifications WHERE {after} AND {of_topic}
        GROUP BY topic_id, kind, parts
    ) AS done
    JOIN topics AS t USING (topic_id)
    WHERE EXISTS (
        SELECT FROM partitions AS p WHERE p.topic_id = done.topic_id
            AND p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED')
    ORDER BY topic_id, kind, verified_parts = parts DESC, verified_parts::float8 / parts DESC,
        ended_at DESC, parts
    LIMIT :rows"""


def check_verification(run: VerificationRun, topics: Sequence[VerifiedTopic]) -> None:
    """Refuse a malformed report.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.report_verification.
    """
    check_text(run.run_id, "run_id")
    require_count(topics, "topics", MAX_VERIFIED_TOPICS)


def report_verification(
    session: Session, run_: VerificationRun, topics: Sequence[VerifiedTopic]
) -> None:
    """Replace what was verified; see RemoteLogMetadataManager.report_verification."""
    rows = {topic.topic_id: topic for topic in topics}
    values = {
        "kind": run_.kind.value,
        "parts": run_.parts,
        "part": run_.part,
        "run_id": run_.run_id,
        "listed_at_ms": run_.listed_at_ms,
    }
    made = [{**asdict(topic), "topic_id": topic_id.hex} for topic_id, topic in rows.items()]
    run(session.connection(), VERIFIED, made, values)


def verifications_fingerprint(topic: str) -> tuple[object, ...]:
    """Return the value to which page tokens are bound: equal for equal queries."""
    check_text(topic, "topic")
    return ("verifications", topic)


def list_verifications(
    connection: Connection, topic: str, *, limit: int, after: Position | None
) -> VerificationPage:
    """Read one page; see RemoteLogMetadataManager.list_verifications."""
    values: dict[str, object] = {"rows": limit + 1}
    of_topic, later = "true", "true"
    if topic:
        of_topic = "topic_id IN (SELECT topic_id FROM topics WHERE name = :topic)"
        values["topic"] = topic
    if after is not None:
        number, values["topic_id"] = after
        values["kind"] = VERIFICATION_KINDS[min(max(number, 0), len(VERIFICATION_KINDS) - 1)]
        later = "(topic_id, kind) > (:topic_id, :kind)"
    page = text(VERIFICATIONS.format(of_topic=of_topic, after=later))
    rows = connection.execute(page, values).all()
    count = fitting(MAX_NAMES_AND_NUMBERS_BYTES + len(row.run_id.encode()) for row in rows[:limit])
    token = ""
    if count < len(rows):
        last = rows[count - 1]
        number = VERIFICATION_KINDS.index(last.kind)
        token = limits.encode(verifications_fingerprint(topic), (number, last.topic_id))
    return VerificationPage(tuple(_verification(row) for row in rows[:count]), token)


def _verification(row: AnyRow) -> Verification:
    return Verification(
        topic=row.name,
        kind=VerificationKind(row.kind),
        parts=row.parts,
        verified_parts=row.verified_parts,
        ended_ms=ms_of(row.ended_at),
        last_ended_ms=ms_of(row.last_ended_at),
        run_id=row.run_id,
        verified=VerifiedTopic(
            row.topic_id,
            row.segments,
            row.verified_segments,
            row.verified_bytes,
            row.failed_segments,
        ),
    )


KEPT_SWEEPS = 100
"""The latest sweeps of a kind that are kept, one for each choice of topics."""

SWEPT = text("""
    INSERT INTO sweep_runs (
        kind, scope, topics, run_id, outcome, duration_ms, planned_segments, deleted_segments,
        deleted_bytes, failed_segments)
    VALUES (:kind, :scope, :topics, :run_id, :outcome, :duration_ms, :planned_segments,
        :deleted_segments, :deleted_bytes, :failed_segments)
    ON CONFLICT (kind, scope) DO UPDATE SET
        run_id = excluded.run_id,
        outcome = excluded.outcome,
        ended_at = excluded.ended_at,
        duration_ms = excluded.duration_ms,
        planned_segments = excluded.planned_segments,
        deleted_segments = excluded.deleted_segments,
        deleted_bytes = excluded.deleted_bytes,
        failed_segments = excluded.failed_segments""")

# In the order of the key, so that two reports never deadlock.
FORGET_SWEEPS = text("""
    DELETE FROM sweep_runs WHERE (kind, scope) IN (
        SELECT kind, scope FROM sweep_runs WHERE (kind, scope) IN (
            SELECT kind, scope FROM sweep_runs WHERE kind = :kind
            ORDER BY ended_at DESC, scope OFFSET :kept)
        ORDER BY kind, scope FOR UPDATE SKIP LOCKED)""")


def check_sweep(record: SweepRecord) -> None:
    """Refuse texts that cannot be stored.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.report_sweep_run.
    """
    check_text(record.run_id, "run_id")
    for index, topic in enumerate(record.topics):
        check_text(topic, f"topics[{index}]")


def report_sweep(session: Session, record: SweepRecord) -> None:
    """Replace the last sweep; see RemoteLogMetadataManager.report_sweep_run."""
    topics = sorted({*record.topics})
    scope = UUID(bytes=hashlib.sha256(repr(topics).encode()).digest()[:16])
    values = {
        **asdict(record),
        "kind": record.kind.value,
        "outcome": record.outcome.value,
        "topics": topics,
        "scope": scope,
    }
    session.execute(SWEPT, values)
    session.execute(FORGET_SWEEPS, {"kind": record.kind.value, "kept": KEPT_SWEEPS})


def list_sweeps(connection: Connection) -> list[RecordedSweep]:
    """Read all; see RemoteLogMetadataManager.list_sweep_runs."""
    kinds = [kind.value for kind in SweepKind]
    outcomes = [outcome.value for outcome in SweepOutcome]
    rows = connection.execute(
        select(*SweepRunRow.__table__.columns)
        .where(SweepRunRow.kind.in_(kinds), SweepRunRow.outcome.in_(outcomes))
        .order_by(SweepRunRow.ended_at.desc(), SweepRunRow.kind, SweepRunRow.scope)
    )
    return [RecordedSweep(_sweep(row), ms_of(row.ended_at)) for row in rows]


def _sweep(row: AnyRow) -> SweepRecord:
    return SweepRecord(
        SweepKind(row.kind),
        tuple(row.topics),
        row.run_id,
        SweepOutcome(row.outcome),
        row.duration_ms,
        row.planned_segments,
        row.deleted_segments,
        row.deleted_bytes,
        row.failed_segments,
    )
