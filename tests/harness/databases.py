"""Lend databases with RLMM's schema, and buckets; query databases without RLMM."""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import Engine, Row, make_url, text

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.local.seaweedfs import S3Endpoint
from services.rlmm.database.schema import SchemaProblem, check_schema
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.local_servers import DatabaseServer, remove_bucket

# What a test may change besides rows. A database with another state is not used again, nor is one
# with statistics, which change plans, or with large tables, whose dead rows do.
_STATE = """
    WITH relations AS (
        SELECT oid, relname, relkind, reloptions FROM pg_class
        WHERE relnamespace = 'public'::regnamespace)
    SELECT
        (SELECT md5(string_agg(format('%s', r), ',' ORDER BY oid)) FROM relations AS r),
        (SELECT md5(string_agg(format('%s %s %s', attname, atttypid, attnotnull), ','
            ORDER BY attrelid, attnum))
        FROM pg_attribute JOIN relations ON oid = attrelid),
        (SELECT md5(string_agg(format('%s', deployment), ',')) FROM deployment),
        (SELECT count(*) FROM pg_constraint WHERE connamespace = 'public'::regnamespace),
        (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = pg_database.oid),
        (SELECT count(*) FROM pg_statistic JOIN relations ON oid = starelid),
        (SELECT deadlocks FROM pg_stat_database WHERE datid = pg_database.oid),
        (SELECT sum(pg_relation_size(oid)) > 4000000 FROM relations)
    FROM pg_database WHERE datname = current_database()"""
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_WRONG_TOTALS = """
    SELECT format('%s-%s: %s', topic_id, partition, totals) FROM (
        SELECT p.topic_id, p.partition,
            (p.finished_segments, p.finished_bytes, p.live_segments, p.live_bytes) AS totals,
            (SELECT (count(*) FILTER (WHERE state = 'COPY_SEGMENT_FINISHED'),
                coalesce(sum(greatest(segment_size_in_bytes, 0))
                    FILTER (WHERE state = 'COPY_SEGMENT_FINISHED'), 0),
                count(*), coalesce(sum(greatest(segment_size_in_bytes, 0)), 0))
            FROM segments AS s WHERE s.topic_id = p.topic_id AND s.partition = p.partition
                AND state <> 'DELETE_SEGMENT_FINISHED') AS counted
        FROM partitions AS p
    ) AS of_partitions WHERE totals <> counted"""
COUNT_SEGMENTS = """
    UPDATE partitions AS p SET
        (finished_segments, finished_bytes, live_segments, live_bytes) = (
            SELECT count(*) FILTER (WHERE state = 'COPY_SEGMENT_FINISHED'),
                coalesce(sum(segment_size_in_bytes)
                    FILTER (WHERE state = 'COPY_SEGMENT_FINISHED'), 0),
                count(*), coalesce(sum(segment_size_in_bytes), 0)
            FROM segments AS s WHERE s.topic_id = p.topic_id AND s.partition = p.partition
                AND state <> 'DELETE_SEGMENT_FINISHED')"""
"""SQL for a test that has written rows of segments itself."""
_DELETE_ROWS = """
    SELECT string_agg(format('DELETE FROM %I', relname), ';') FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        AND relname NOT IN ('alembic_version', 'deployment')"""


class Store(NamedTuple):
    """A database without rows, and an empty bucket."""

    database_url: str
    s3: S3Endpoint
    bucket: str


@dataclass(frozen=True)
class Stores:
    """The servers of this run, for databases and buckets of one's own."""

    postgres: DatabaseServer
    template: str
    s3: S3Endpoint

    @contextmanager
    def new(self, name: str = "test", *, has_schema: bool = True) -> Iterator[Store]:
        """Make a database and a bucket, and remove both; their name begins with `name`."""
        unique = f"{name}-{uuid.uuid4().hex[:12]}"
        self.s3.ensure_bucket(unique)
        template = self.template if has_schema else "template1"
        url = self.postgres.create_database(unique, template=template)
        yield Store(url, self.s3, unique)
        self.postgres.drop_database(unique)
        remove_bucket(self.s3, unique)


@dataclass
class Databases:
    """Copies of a migrated database, each for one test at a time."""

    postgres: DatabaseServer
    template: str
    _free: list[str] = field(default_factory=list)
    _state: object = None
    _wrong_totals: list[str] = field(default_factory=list)

    def take(self) -> str:
        """Return the URL of a database without rows."""
        if self._free:
            return self._free.pop()
        url = self.postgres.create_database(f"test_{uuid.uuid4().hex}", template=self.template)
        if self._state is None:
            with _connected(url) as connection:
                self._state = connection.execute(_STATE).fetchone()
        return url

    def give_back(self, url: str) -> list[str]:
        """Delete the rows, or drop the database if more than rows has changed.

        Returns:
            The partitions whose totals are not those of their segments.
        """
        self._wrong_totals = []
        if self._is_empty_again(url):
            self._free.append(url)
        else:
            self._drop(url)
        return self._wrong_totals

    def drop_all(self) -> None:
        """Drop the databases that no test has."""
        while self._free:
            self._drop(self._free.pop())

    def _drop(self, url: str) -> None:
        self.postgres.drop_database(str(make_url(url).database))

    def _is_empty_again(self, url: str) -> bool:
        try:
            with _connected(url) as connection:
                connection.execute(_END_OTHERS)
                self._wrong_totals = wrong_totals(connection)
                if connection.execute(_STATE).fetchone() != self._state:
                    return False
                connection.execute("SET session_replication_role = replica")
                row = connection.execute(_DELETE_ROWS).fetchone()
                assert row is not None
                connection.execute(str(row[0]).encode())
                return True
        except psycopg.Error:
            return False  # The test has dropped it, for example.


def wrong_totals(connection: "psycopg.Connection[tuple[object, ...]]") -> list[str]:
    """List the partitions whose kept totals are not those of their segments."""
    return [str(row[0]) for row in connection.execute(_WRONG_TOTALS)]


def _connected(url: str) -> "psycopg.Connection[tuple[object, ...]]":
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, options="-c lock_timeout=1s")


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


_PAGE = Path(__file__).parents[2] / "docs" / "run" / "database.md"
_ROLE, _OWNER = "rlmm", "sediment"


def make_row_role(owner_url: str, role: str) -> str:
    """Run the page's statements in a database, for a role of another name; return its URL."""
    url = make_url(owner_url)
    (block,) = re.findall(r"```sql\n(CREATE ROLE .*?)```", _PAGE.read_text(), re.DOTALL)
    statements = re.sub(rf"\b{_ROLE}\b", role, block)
    statements = re.sub(rf"\bROLE {_OWNER}\b", f"ROLE {url.username}", statements)
    with psycopg.connect(owner_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statements.encode())
        connection.execute(f"ALTER ROLE {role} PASSWORD '{role}'".encode())
    return url.set(username=role, password=role).render_as_string(hide_password=False)


def drop_role(owner_url: str, role: str) -> None:
    """Drop the role, which owns nothing but its grants in this database."""
    with psycopg.connect(owner_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


class OwnRlmm(SqlRemoteLogMetadataManager):
    """RLMM in this process, over a database of the test's own."""

    def __init__(self, engine: Engine, database_url: str) -> None:
        super().__init__(engine)
        self.engine, self.database_url = engine, database_url

    @cached_property
    def tps(self) -> list[TopicIdPartition]:
        """Five partitions of one topic, which are known, each with a leader of epoch 1."""
        topic_id = uuid.uuid4()
        made = [TopicIdPartition(topic_id, "orders", partition) for partition in range(5)]
        leaders = [PartitionLeadership(tp, 1) for tp in made]
        self.on_partition_leadership_changes(leaders, [], broker_id=1)
        return made
