"""Set, end and list holds. What one keeps is refused by services.rlmm.guards."""

import hashlib
import logging
from dataclasses import asdict, replace
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import current_call
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.holds import MAX_HOLDS, Hold, HoldKind, HoldPage, require_hold
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.validation import INT64_MAX, require
from services.rlmm.changes.locked_partitions import LockedPartitions, lock_all_of_topic
from services.rlmm.database.db import execute
from services.rlmm.database.limits import MAX_NAMES_AND_NUMBERS_BYTES, Page, Query, check_text
from services.rlmm.database.rows import IS_LIVE_HOLD, AnyRow, ms_of
from services.rlmm.guards import FINISHED, check_topic_name, unknown_partition

_log = logging.getLogger(__name__)

_COLUMNS = """h.hold_id, h.name, h.kind, h.topic_id, coalesce(t.name, '') AS topic, h.partition,
        h.first_offset, h.last_offset, h.reason, h.until, h.actor, h.set_at"""
_FROM = "holds AS h LEFT JOIN topics AS t ON t.topic_id = h.topic_id"
_LIVE = f"SELECT {_COLUMNS} FROM {_FROM} WHERE h.hold_id = %(hold_id)s AND {IS_LIVE_HOLD}"
_OTHERS = f"""
    SELECT count(*) FROM holds AS h
    WHERE h.topic_id IS NOT DISTINCT FROM %(topic_id)s
        AND h.partition IS NOT DISTINCT FROM %(partition)s
        AND h.hold_id <> %(hold_id)s AND {IS_LIVE_HOLD}"""
_SET = """
    INSERT INTO holds AS h (hold_id, name, kind, topic_id, partition, first_offset, last_offset,
        reason, actor, set_at, until)
    VALUES (%(hold_id)s, %(name)s, %(kind)s, %(topic_id)s, %(partition)s, %(first_offset)s,
        %(last_offset)s, %(reason)s, %(actor)s, clock_timestamp(), coalesce(
            to_timestamp(CAST(%(until_ms)s AS bigint) / 1000.0),
            clock_timestamp() + CAST(%(lease_ms)s AS bigint) * interval '1 millisecond'))
    ON CONFLICT (hold_id) DO UPDATE SET
        kind = excluded.kind, first_offset = excluded.first_offset,
        last_offset = excluded.last_offset, reason = excluded.reason, actor = excluded.actor,
        until = excluded.until,
        set_at = CASE WHEN %(is_live)s THEN h.set_at ELSE excluded.set_at END
    RETURNING h.set_at, h.until, clock_timestamp() AS now"""
_LIST = f"""
    SELECT {_COLUMNS} FROM {_FROM}
    WHERE {IS_LIVE_HOLD} AND {{of_topic}} AND {{later}}
    ORDER BY h.hold_id LIMIT %(rows)s"""


def check(hold: Hold, lease_ms: int | None = None) -> None:
    """Refuse what cannot be stored.

    Raises:
        InvalidRequestError: as RemoteLogMetadataManager.set_hold.
    """
    require_hold(hold, lease_ms)
    check_text(hold.name, "hold.name")
    check_text(hold.reason, "hold.reason")


def set_hold(connection: Connection, hold: Hold, lease_ms: int | None) -> Hold:
    """Store a hold; see RemoteLogMetadataManager.set_hold.

    All partitions of its scope are locked: a deletion that was checked before it has committed when
    this returns, and each later one reads it.
    """
    _lock(connection, hold)
    stored = _live(connection, hold)
    if stored is not None:
        _require_same_kind(stored, hold)
        if hold.kind is HoldKind.REBUILD:
            return stored
        if hold.kind is HoldKind.EXPORT:
            hold = replace(hold, first_offset=max(hold.first_offset, stored.first_offset))
    values = {**_values(hold), "lease_ms": lease_ms, "is_live": stored is not None}
    others = execute(connection, _OTHERS, values).fetchone()
    if others is not None and others[0] >= MAX_HOLDS:
        raise InvalidRequestError(
            f"hold.name: {hold.scope} has {MAX_HOLDS} holds already (`sediment holds`); end one"
        )
    row: AnyRow | None = execute(connection, _SET, values).fetchone()
    assert row is not None
    if row.until is not None:
        rule = f"must be after {row.now:%Y-%m-%dT%H:%M:%SZ}, now by the database's clock"
        require(row.until > row.now, "hold.until_ms", rule)
    until_ms = None if row.until is None else ms_of(row.until)
    actor = str(values["actor"])
    hold = replace(hold, actor=actor, set_at_ms=ms_of(row.set_at), until_ms=until_ms)
    if stored is not None and hold.kind is HoldKind.LEGAL:
        _require_grown(stored, hold)
    if hold.kind is not HoldKind.EXPORT:
        _log.warning("%s set on %s: %s", actor, hold.scope, hold)
    return hold


def end_hold(connection: Connection, hold: Hold, reason: str) -> Hold | None:
    """End a hold; see RemoteLogMetadataManager.end_hold."""
    _check_topic(connection, hold)
    stored = _live(connection, hold, lock=True)
    if stored is None:
        return None
    _require_same_kind(stored, hold)
    execute(connection, "DELETE FROM holds WHERE hold_id = %(hold_id)s", _values(hold))
    actor, why = current_call().actor, reason or "no reason given"
    _log.warning("%s ended on %s: %s: %s", actor, stored.scope, stored, why)
    return stored


def fingerprint(topic: str) -> Query:
    check_text(topic, "topic")
    return ("holds", topic)


def list_holds(connection: Connection, topic: str, page: Page) -> HoldPage:
    """Read one page; see RemoteLogMetadataManager.list_holds."""
    of_topic, later, values = "true", "true", dict[str, object](rows=page.limit + 1)
    if topic:
        of_topic, values["topic"] = "(h.topic_id IS NULL OR t.name = %(topic)s)", topic
    if page.after is not None:
        later, values["hold_id"] = "h.hold_id > %(hold_id)s", page.after[1]
    rows, token = page.cut(
        execute(connection, _LIST.format(of_topic=of_topic, later=later), values).fetchall(),
        lambda row: (
            MAX_NAMES_AND_NUMBERS_BYTES + len(f"{row.name}{row.reason}{row.actor}".encode())
        ),
        lambda row: (0, row.hold_id),
    )
    return HoldPage(tuple(map(_hold, rows)), token)


def _lock(connection: Connection, hold: Hold) -> None:
    """Lock all partitions of the hold's scope, as each change of one does."""
    if hold.topic_id is None:
        execute(connection, "LOCK TABLE partitions IN EXCLUSIVE MODE", {})
        return
    # A new partition waits for the topic's lock in its foreign key.
    _check_topic(connection, hold, "FOR UPDATE" if hold.partition is None else "")
    if hold.partition is None:
        lock_all_of_topic(connection, hold.topic_id)
        return
    tp = TopicIdPartition(hold.topic_id, hold.topic, hold.partition)
    if LockedPartitions.lock(connection, [tp]).of(tp).row.delete_state == FINISHED.value:
        raise unknown_partition(tp)


def _check_topic(connection: Connection, hold: Hold, lock: str = "") -> None:
    """Refuse a topic that is unknown, or has another name than the hold's."""
    if hold.topic_id is None:
        return
    statement = f"""
        SELECT name FROM topics WHERE topic_id = %(topic_id)s AND purged_changes IS NULL {lock}"""
    row = execute(connection, statement, {"topic_id": hold.topic_id}).fetchone()
    if row is None:
        id = uuid_to_text(hold.topic_id)
        raise RemoteResourceNotFoundError(f"topic id {id} is not known")
    check_topic_name(TopicIdPartition(hold.topic_id, hold.topic, 0), row.name, "hold.topic")


def _live(connection: Connection, hold: Hold, *, lock: bool = False) -> Hold | None:
    statement = f"{_LIVE} FOR UPDATE OF h" if lock else _LIVE
    row = execute(connection, statement, _values(hold)).fetchone()
    return None if row is None else _hold(row)


def _require_same_kind(stored: Hold, hold: Hold) -> None:
    kind, other = stored.kind.value, hold.kind.value
    rule = f"{stored.scope} has a hold {stored.name} of the kind {kind}, not {other}"
    require(stored.kind is hold.kind, "hold.kind", rule)


def _require_grown(stored: Hold, hold: Hold) -> None:
    """Refuse to take from a legal hold by setting it again."""
    rule = f"a legal hold only grows until `{stored.how_to_end}`; now {stored}"
    is_earlier = hold.first_offset <= stored.first_offset
    require(is_earlier, "hold.first_offset", rule)
    require(_end(hold.last_offset) >= _end(stored.last_offset), "hold.last_offset", rule)
    require(_end(hold.until_ms) >= _end(stored.until_ms), "hold.until_ms", rule)


def _end(value: int | None) -> int:
    return INT64_MAX if value is None else value


def _values(hold: Hold) -> dict[str, object]:
    scope = (hold.name, str(hold.topic_id), hold.partition)
    digest = hashlib.sha256(repr(scope).encode()).digest()[:16]
    return {
        **asdict(hold),
        "kind": hold.kind.value,
        "actor": current_call().actor,
        "hold_id": UUID(bytes=digest),
    }


def _hold(row: AnyRow) -> Hold:
    return Hold(
        name=row.name,
        kind=HoldKind(row.kind),
        topic_id=row.topic_id,
        topic=row.topic,
        partition=row.partition,
        first_offset=row.first_offset,
        last_offset=row.last_offset,
        reason=row.reason,
        until_ms=None if row.until is None else ms_of(row.until),
        actor=row.actor,
        set_at_ms=ms_of(row.set_at),
    )
