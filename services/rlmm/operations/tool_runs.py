"""Record what sweeps and checks did, and list it."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from sqlalchemy import Connection

from services.api.operations import (
    MAX_RUN_COUNTS,
    RecordedRun,
    RunCounts,
    RunKind,
    RunOutcome,
    RunPage,
    ToolRun,
)
from services.api.validation import require_count
from services.rlmm.database.db import execute
from services.rlmm.database.db import run as run_statement
from services.rlmm.database.limits import MAX_NAMES_AND_NUMBERS_BYTES, Page, Query, check_text
from services.rlmm.database.rows import AnyRow, ms_of

RUN_KINDS = [kind.value for kind in RunKind]
KEPT_RUNS = 100
"""The latest runs of a kind that are stored without a topic, one for each choice of topics."""

# Rows come in the order of the key, so that two reports never deadlock.
_RECORD = """
    INSERT INTO tool_runs (
        scope, topic_id, kind, parts, part, ended_at, run_id, outcome, topics, duration_ms,
        segments, done_segments, done_bytes, failed_segments)
    SELECT scope, topic_id, %(kind)s, %(parts)s, %(part)s,
        CASE WHEN %(listed_at_ms)s::bigint < extract(epoch FROM clock_timestamp()) * 1000
            THEN to_timestamp(%(listed_at_ms)s::bigint / 1000.0) ELSE clock_timestamp() END,
        %(run_id)s, %(outcome)s, %(topics)s::text[], %(duration_ms)s,
        segments, done_segments, done_bytes, failed_segments
    FROM json_to_recordset(%(rows)s) AS done (
        scope uuid, topic_id uuid, segments bigint, done_segments bigint, done_bytes bigint,
        failed_segments bigint)
    WHERE topic_id IS NULL OR topic_id IN (SELECT topic_id FROM topics WHERE purged_changes IS NULL)
    ORDER BY scope
    ON CONFLICT (scope, kind, parts, part) DO UPDATE SET
        ended_at = excluded.ended_at,
        run_id = excluded.run_id,
        outcome = excluded.outcome,
        duration_ms = excluded.duration_ms,
        segments = excluded.segments,
        done_segments = excluded.done_segments,
        done_bytes = excluded.done_bytes,
        failed_segments = excluded.failed_segments
    WHERE tool_runs.ended_at <= excluded.ended_at"""

# In the order of the key, so that two reports never deadlock.
_DELETE_EXCESS = f"""
    DELETE FROM tool_runs WHERE (scope, kind, parts, part) IN (
        SELECT scope, kind, parts, part FROM tool_runs WHERE (scope, kind, parts, part) IN (
            SELECT scope, kind, parts, part FROM tool_runs
            WHERE kind = %(kind)s AND topic_id IS NULL
            ORDER BY ended_at DESC, scope OFFSET {KEPT_RUNS})
        ORDER BY scope, kind, parts, part FOR UPDATE SKIP LOCKED)"""

# Of a scope and kind first the sets that have all their parts, the latest first; then the set with
# the largest share of its parts.
_LIST = """
    SELECT DISTINCT ON (scope, kind) done.*, t.name
    FROM (
        SELECT scope, topic_id, topics, kind, parts, count(*) AS ended_parts,
            min(ended_at) AS ended_at, max(ended_at) AS last_ended_at,
            (array_agg(run_id ORDER BY ended_at DESC))[1] AS run_id,
            (array_agg(outcome ORDER BY ended_at DESC))[1] AS outcome,
            sum(duration_ms)::bigint AS duration_ms,
            sum(segments)::bigint AS segments,
            sum(done_segments)::bigint AS done_segments,
            sum(done_bytes)::bigint AS done_bytes,
            sum(failed_segments)::bigint AS failed_segments
        FROM tool_runs
        WHERE kind = ANY(%(kinds)s) AND outcome = ANY(%(outcomes)s) AND {after} AND {of_topic}
        GROUP BY scope, topic_id, topics, kind, parts
    ) AS done
    LEFT JOIN topics AS t USING (topic_id)
    WHERE topic_id IS NULL OR EXISTS (
        SELECT FROM partitions AS p WHERE p.topic_id = done.topic_id
            AND p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED')
    ORDER BY scope, kind, ended_parts = parts DESC, ended_parts::float8 / parts DESC,
        ended_at DESC, parts
    LIMIT %(rows)s"""


def check(run: ToolRun, counts: Sequence[RunCounts]) -> None:
    """Refuse a malformed report.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.report_tool_run.
    """
    check_text(run.run_id, "run_id")
    for index, topic in enumerate(run.topics):
        check_text(topic, f"topics[{index}]")
    require_count(counts, "counts", MAX_RUN_COUNTS)


def report(connection: Connection, run: ToolRun, counts: Sequence[RunCounts]) -> None:
    """Record a run; see RemoteLogMetadataManager.report_tool_run."""
    topics = sorted({*run.topics})
    # One row for all topics of the run, so that a later run over the same ones replaces it.
    of_all = UUID(bytes=hashlib.sha256(repr(topics).encode()).digest()[:16])
    by_scope = {each.topic_id or of_all: each for each in counts}
    rows = [{**asdict(each), "scope": scope} for scope, each in by_scope.items()]
    values = {**asdict(run), "kind": run.kind.value, "outcome": run.outcome.value}
    run_statement(connection, _RECORD, rows, {**values, "topics": topics})
    if of_all in by_scope:
        execute(connection, _DELETE_EXCESS, {"kind": run.kind.value})


def fingerprint(topic: str) -> Query:
    check_text(topic, "topic")
    return ("tool_runs", topic)


def list_runs(connection: Connection, topic: str, page: Page) -> RunPage:
    """Read one page; see RemoteLogMetadataManager.list_tool_runs."""
    outcomes = [outcome.value for outcome in RunOutcome]
    values: dict[str, object] = {"rows": page.limit + 1, "kinds": RUN_KINDS, "outcomes": outcomes}
    of_topic, later = "true", "true"
    if topic:
        of_topic = "scope IN (SELECT topic_id FROM topics WHERE name = %(topic)s)"
        values["topic"] = topic
    if page.after is not None:
        number, values["scope"] = page.after
        values["kind"] = RUN_KINDS[min(max(number, 0), len(RUN_KINDS) - 1)]
        later = "(scope, kind) > (%(scope)s, %(kind)s)"
    statement = _LIST.format(of_topic=of_topic, after=later)
    rows, token = page.cut(
        execute(connection, statement, values).fetchall(),
        _size_bytes,
        lambda row: (RUN_KINDS.index(row.kind), row.scope),
    )
    return RunPage(tuple(map(_recorded, rows)), token)


def _size_bytes(row: AnyRow) -> int:
    names = sum(len(topic.encode()) + 4 for topic in row.topics)
    return MAX_NAMES_AND_NUMBERS_BYTES + len(row.run_id.encode()) + names


def _recorded(row: AnyRow) -> RecordedRun:
    done = row.segments, row.done_segments, row.done_bytes, row.failed_segments
    return RecordedRun(
        kind=RunKind(row.kind),
        run_id=row.run_id,
        outcome=RunOutcome(row.outcome),
        topics=tuple(row.topics) if row.topic_id is None else (row.name,),
        parts=row.parts,
        ended_parts=row.ended_parts,
        ended_ms=ms_of(row.ended_at),
        last_ended_ms=ms_of(row.last_ended_at),
        duration_ms=row.duration_ms,
        counts=RunCounts(row.topic_id, *done),
    )
