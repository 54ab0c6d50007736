"""Store a topic's settings: always the whole set, with one revision for each version.

The versions tell which settings were in force a while ago: what a version wants deleted, and the
one in force its delay ago does not, waits.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from services.api.calls import MutationContext, current_call
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.topic_config import (
    CHANGE_DELAY,
    CHANGE_DELAY_MS,
    StoredTopicConfig,
    check_change,
    deletes_more,
    topic_config,
)
from services.rlmm.changes.locked_partitions import lock_all_of_topic
from services.rlmm.database.db import execute
from services.rlmm.database.rows import AnyRow, ms_of

_LOCK = """
    SELECT name FROM topics WHERE topic_id = %(topic_id)s AND purged_changes IS NULL FOR UPDATE"""
# In force is the latest version that is as old as the present delay, or was put at once.
_READ = f"""
    SELECT t.topic_id, name, t.config, config_revision, delay_ms, present.at, confirmed_by,
        confirmed_revision IS NOT DISTINCT FROM config_revision AS is_confirmed,
        earlier.revision AS earlier_revision, earlier.config AS earlier
    FROM topics AS t
    CROSS JOIN LATERAL (
        SELECT coalesce((t.config ->> '{CHANGE_DELAY}')::bigint, {CHANGE_DELAY_MS}) AS delay_ms
    ) AS delay
    LEFT JOIN topic_config_events AS present
        ON present.topic_id = t.topic_id AND present.revision = config_revision
    LEFT JOIN LATERAL (
        SELECT revision, config FROM topic_config_events AS e
        WHERE e.topic_id = t.topic_id
            AND (at_once OR extract(epoch FROM clock_timestamp() - at) * 1000 >= delay_ms)
        ORDER BY revision DESC LIMIT 1
    ) AS earlier ON true
    WHERE t.topic_id = %(topic_id)s AND purged_changes IS NULL"""
_PUT = """
    WITH put AS (
        UPDATE topics SET config = %(config)s, config_revision = config_revision + 1,
            deletions_refused_at = NULL
        WHERE topic_id = %(topic_id)s RETURNING topic_id, config_revision
    ), version AS (
        INSERT INTO topic_config_events
            (topic_id, revision, config, at_once, actor, call_id, reason)
        SELECT topic_id, config_revision, %(config)s, %(now)s, %(actor)s, %(call_id)s, %(reason)s
        FROM put
    )
    SELECT FROM put"""


_CONFIRM = """
    UPDATE topics SET confirmed_revision = config_revision, confirmed_by = %(actor)s,
        confirmed_at = clock_timestamp(), deletions_refused_at = NULL
    WHERE topic_id = %(topic_id)s AND confirmed_revision IS DISTINCT FROM config_revision"""

_log = logging.getLogger(__name__)


def read(connection: Connection, topic_id: UUID) -> StoredTopicConfig:
    """Read the topic's settings; see RemoteLogMetadataManager.topic_config.

    The request has no name of the topic: the stored one decides whether the caller may read it.
    """
    row = _row(connection, _READ, topic_id)
    stored = StoredTopicConfig(
        topic_id,
        row.name,
        row.config,
        row.config_revision,
        deletions_confirmed_by=row.confirmed_by if row.is_confirmed else None,
    )
    if row.earlier_revision == row.config_revision or row.at is None:
        return stored
    waits_until_ms = ms_of(row.at) + row.delay_ms
    waiting = replace(stored, waits_until_ms=waits_until_ms, earlier=row.earlier or {})
    return waiting if deletes_more(stored.config, waiting.earlier_config) else stored


def put(
    connection: Connection,
    topic_id: UUID,
    entries: Mapping[str, str],
    expected_revision: int | None,
    context: MutationContext,
    now: bool,
) -> StoredTopicConfig:
    """Replace the topic's settings; see RemoteLogMetadataManager.put_topic_config.

    Every partition of the topic is locked. When this returns, each change that was checked against
    the old settings has committed, and each later change reads the new settings. The topic's own
    lock comes first: a new partition waits for it in its foreign key.
    """
    _row(connection, _LOCK, topic_id)
    stored = read(connection, topic_id)
    if stored.entries == entries and (stored.waits_until_ms is None or not now):
        return stored
    _require_revision(stored, expected_revision, "expected_revision")
    check_change(stored.config, topic_config(entries), now=now)
    lock_all_of_topic(connection, topic_id)
    call = current_call()
    values = {
        "topic_id": topic_id,
        "config": Jsonb(dict(entries)),
        "actor": call.actor,
        "call_id": call.request_id,
        "reason": context.reason,
        "now": now,
    }
    execute(connection, _PUT, values)
    return read(connection, topic_id)


def confirm_deletions(
    connection: Connection, topic_id: UUID, expected_revision: int, reason: str
) -> StoredTopicConfig:
    """Confirm a topic's deletions; see RemoteLogMetadataManager.confirm_deletions."""
    _row(connection, _LOCK, topic_id)
    stored = read(connection, topic_id)
    _require_revision(stored, expected_revision, "expected_config_revision")
    actor = current_call().actor
    execute(connection, _CONFIRM, {"topic_id": topic_id, "actor": actor})
    why = reason or "no reason given"
    _log.warning("%s confirmed the deletions of topic %s: %s", actor, stored.topic, why)
    return read(connection, topic_id)


def _require_revision(stored: StoredTopicConfig, expected: int | None, field: str) -> None:
    if expected not in (None, stored.revision):
        raise ConcurrentUpdateError(
            f"{field}: the settings of topic {stored.topic} have revision {stored.revision}, not "
            f"{expected}; read them again"
        )


def _row(connection: Connection, statement: str, topic_id: UUID) -> AnyRow:
    row: AnyRow | None = execute(connection, statement, {"topic_id": topic_id}).fetchone()
    if row is None:
        raise RemoteResourceNotFoundError(f"topic id {uuid_to_text(topic_id)} is not known")
    current_call().require_topic(row.name)
    return row
