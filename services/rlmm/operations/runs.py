"""Record what sweeps and checks did, list it, and publish since when topics are verified."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from threading import Event, Thread
from uuid import UUID

from prometheus_client import Gauge
from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.operations import (
    MAX_VERIFIED_TOPICS,
    RecordedSweep,
    SweepKind,
    SweepOutcome,
    SweepRecord,
    Verification,
    VerificationKind,
    VerificationPage,
    VerificationRun,
    VerifiedTopic,
)
from services.api.validation import require_count
from services.rlmm.database import limits
from services.rlmm.database.db import Transactions, run
from services.rlmm.database.limits import MAX_NAMES_AND_NUMBERS_BYTES, Position, check_text, fitting
from services.rlmm.database.rows import AnyRow, ms_of
from services.rlmm.database.tables import VERIFICATION_KINDS, SweepRunRow

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


INTERVAL_S = 60.0


STOP_TIMEOUT_S = 1.0


OLDEST = Gauge(
    "sediment_rlmm_oldest_verification_timestamp_seconds",
    "When the topic was verified whose last whole verification is the oldest, Unix time, by kind: "
    "RECONCILE or SCRUB. Of topics with finished segments; absent if none was ever verified.",
    ["kind"],
)


UNVERIFIED = Gauge(
    "sediment_rlmm_unverified_topics",
    "Topics with finished segments that were never verified as a whole, by kind.",
    ["kind"],
)


# A verification is whole if all its parts are there, and as old as the oldest of them.
AGES = text(f"""
    SELECT kinds.kind, extract(epoch FROM min(last.ended_at))::float8 AS oldest_s,
        count(*) FILTER (WHERE last.ended_at IS NULL AND topic_id IS NOT NULL) AS unverified
    FROM (VALUES {", ".join(f"('{kind}')" for kind in VERIFICATION_KINDS)}) AS kinds (kind)
    LEFT JOIN (
        SELECT t.topic_id FROM topics AS t CROSS JOIN LATERAL (
            SELECT FROM partitions AS p
            WHERE p.topic_id = t.topic_id AND p.finished_segments > 0 LIMIT 1) AS used
    ) AS topics ON true
    LEFT JOIN LATERAL (
        SELECT max(whole.ended_at) AS ended_at FROM (
            SELECT min(v.ended_at) AS ended_at FROM verifications AS v
            WHERE v.topic_id = topics.topic_id AND v.kind = kinds.kind
            GROUP BY v.parts HAVING count(*) = v.parts
        ) AS whole
    ) AS last ON true
    GROUP BY kinds.kind""")


_log = logging.getLogger(__name__)


class VerificationAges:
    """Read the ages in a thread; while the database is away, the last ones stay published."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="verification-ages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after its query if one runs."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def refresh(self) -> None:
        """Read the ages and publish them.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
            RemoteStorageError: the database has no such table yet.
        """
        rows = self._transactions.read(lambda connection: connection.execute(AGES).all())
        for row in rows:
            UNVERIFIED.labels(row.kind).set(row.unverified)
            if row.oldest_s is not None:
                OLDEST.labels(row.kind).set(row.oldest_s)
                continue
            with suppress(KeyError):
                OLDEST.remove(row.kind)

    def _run(self) -> None:
        while True:
            try:
                self.refresh()
            except RetriableRemoteStorageError:
                # Readiness reports that the database is away.
                _log.debug("cannot read when topics were verified", exc_info=True)
            except RemoteStorageError as e:
                _log.warning("cannot read when topics were verified: %s", e)
            except Exception:  # noqa: BLE001 - a boundary: without this thread the ages stand still
                _log.exception("cannot read when topics were verified: a defect of RLMM")
            if self._stopping.wait(INTERVAL_S):
                return
