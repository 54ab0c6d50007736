"""Query RLMM's database without RLMM."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, Row, text

from services.api.ids import TopicIdPartition
from services.rlmm.database.schema import SchemaProblem, check_schema


def waiting(engine: Engine) -> int:
    """Return how many sessions of this database wait for a lock."""
    with engine.connect() as connection:
        count = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
    assert isinstance(count, int)
    return count


def events(engine: Engine, tp: TopicIdPartition) -> Sequence[Row[*tuple[object, ...]]]:
    """Read the partition's audit trail, in order."""
    with engine.connect() as connection:
        return connection.execute(
            text("SELECT * FROM events WHERE topic_id = :id AND partition = :p ORDER BY revision"),
            {"id": tp.topic_id, "p": tp.partition},
        ).all()


def copy_lease_ends(engine: Engine, tps: Iterable[TopicIdPartition]) -> dict[str, datetime]:
    """Read the lease ends of the partitions' active copies, by segment id."""
    statement = text(
        "SELECT segment_id, copy_lease_until FROM segments "
        "WHERE topic_id = :id AND partition = :p AND state = 'COPY_SEGMENT_STARTED'"
    )
    with engine.connect() as connection:
        return {
            str(row.segment_id): row.copy_lease_until
            for tp in tps
            for row in connection.execute(statement, {"id": tp.topic_id, "p": tp.partition})
        }


def schema_problems(database_url: str) -> list[SchemaProblem]:
    """Return the problems of the schema, without those of the shared server.

    The tests' shared server (tests/conftest.py) trades durability for speed, which `check` reports.
    """
    hasty = {"setting fsync", "setting full_page_writes"}
    return [each for each in check_schema(database_url) if each.what not in hasty]


def statements_sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each statement that this process sends, also past SQLAlchemy."""
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(str(query))
        return execute(cursor, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return sent
