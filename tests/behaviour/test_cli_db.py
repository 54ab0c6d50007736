"""Test `sediment db`: the report on the database, and its problems."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from services.rlmm.database import schema
from services.rlmm.database.schema import (
    ROLE,
    VIEWS,
    SchemaProblem,
    check_schema,
    current_revision,
    upgrade,
)
from services.rlmm.database.schema_revision import known_revision
from tests.harness.databases import Databases
from tests.harness.local_servers import DatabaseServer
from tests.harness.sediment_command import Completed, sediment

pytestmark = pytest.mark.deep

PASSWORD = "not-to-be-told"


def sediment_db(command: str, database_url: str, *arguments: str) -> Completed:
    return sediment("db", command, *arguments, environment={"RLMM_DATABASE_URL": database_url})


def execute(database_url: str, *statements: str) -> None:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="module")
def postgres(server_directory: Path) -> Iterator[DatabaseServer]:
    """Provide a server with the settings that `check` requires: the shared one does not sync its
    disk.
    """
    with DatabaseServer(server_directory / "careful") as server:
        yield server


@pytest.fixture(scope="module")
def migrated_database(postgres: DatabaseServer) -> str:
    schema.upgrade(postgres.create_database("migrated"))
    return "migrated"


@pytest.fixture(scope="module")
def databases(postgres: DatabaseServer, migrated_database: str) -> Databases:
    return Databases(postgres, migrated_database)


@pytest.mark.deep
def test_a_database_as_it_should_be_has_no_problems(database_url: str) -> None:
    done = sediment_db("check", database_url, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"problems": []})
    assert sediment_db("check", database_url).returncode == 0


def test_check_without_a_schema_names_the_upgrade_command(empty_database_url: str) -> None:
    done = sediment_db("check", empty_database_url)
    assert done.returncode == 1
    assert "sediment db upgrade" in done.stdout


@pytest.mark.parametrize(
    ("damage", "what", "problem"),
    [
        ("DROP INDEX ix_segments_live", "index ix_segments_live", "missing"),
        (
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'ix_segments_txn_index'::regclass",
            "index ix_segments_txn_index",
            "REINDEX INDEX CONCURRENTLY ix_segments_txn_index",
        ),
        (
            "ALTER TABLE highest_offsets ALTER COLUMN highest_offset TYPE int",
            "column highest_offsets.highest_offset",
            "type is INTEGER, should be BIGINT",
        ),
        (
            "ALTER TABLE events ALTER COLUMN actor DROP NOT NULL",
            "column events.actor",
            "nullable is True",
        ),
        (
            "ALTER TABLE events DROP COLUMN repeat_count CASCADE",
            "column events.repeat_count",
            "missing",
        ),
        ("DROP TABLE request_outcomes", "table request_outcomes", "missing"),
        (
            "ALTER TABLE segments DROP CONSTRAINT ck_segments_offsets",
            "constraint ck_segments_offsets",
            "missing",
        ),
        (
            "ALTER TABLE events DROP CONSTRAINT fk_events_partitions",
            "constraint fk_events_partitions",
            "missing",
        ),
        ("DROP VIEW report_events", "view report_events", "missing"),
    ],
)
def test_damaged_schema_object_is_named(
    database_url: str, damage: str, what: str, problem: str
) -> None:
    execute(database_url, damage)
    named = {each.what: each.problem for each in check_schema(database_url)}
    assert problem in named[what]


def test_schema_changes_of_a_later_release_are_no_problem(database_url: str) -> None:
    execute(
        database_url,
        "DROP INDEX ix_segments_tombstones",
        "ALTER TABLE segments DROP CONSTRAINT ck_segments_offsets",
        "ALTER TABLE events DROP CONSTRAINT fk_events_partitions",
        "CREATE TABLE later (id int PRIMARY KEY)",
        "ALTER TABLE segments ADD COLUMN later int",
        "CREATE INDEX ix_later ON segments (later)",
        f"UPDATE alembic_version SET version_num = '{int(known_revision()) + 1:04d}'",
    )
    assert check_schema(database_url) == []
    execute(database_url, "DROP TABLE request_outcomes", "DROP VIEW report_events")
    missing = {each.what for each in check_schema(database_url)}
    assert missing == {"table request_outcomes", "view report_events"}


@pytest.mark.deep
def test_a_server_that_may_lose_changes_is_reported(server_directory: Path) -> None:
    with DatabaseServer(server_directory / "careless", {"fsync": "off"}) as server:
        url = server.create_database("careless")
        upgrade(url)
        [problem] = check_schema(url)
    assert problem.what == "setting fsync"


def test_maintenance_reports_the_purged_rows(database_url: str) -> None:
    execute(
        database_url,
        "INSERT INTO holds (hold_id, name, kind, first_offset, reason, actor, set_at, until)"
        " SELECT gen_random_uuid(), 'ended', 'OPERATOR', 0, '', '', at, at"
        " FROM (SELECT now() - interval '2 days' AS at) AS old",
    )
    expected = {
        "already_running": False,
        "tombstones": 0,
        "request_outcomes": 0,
        "events": 0,
        "anomalies": 0,
        "removed_topics": 0,
        "tool_runs": 0,
        "holds": 1,
        "kept_topics": None,
        "not_kept": "",
    }
    done = sediment_db("maintain", database_url, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, expected)
    shown = sediment_db("maintain", database_url)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "rows of deleted segments purged" in shown.stdout


def test_reports_may_read_the_views_and_no_table(database_url: str) -> None:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"SET ROLE {ROLE}".encode())
        for view in VIEWS:
            connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(view)))
        for table in ("segments", "request_outcomes", "events", "topics"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM report_topics")


@pytest.mark.deep
def test_upgrade_succeeds_without_the_right_to_create_roles(server_directory: Path) -> None:
    # On a server of its own: roles are those of the whole server.
    with DatabaseServer(server_directory / "roles") as server:
        admin = server.create_database("owned")
        execute(
            admin,
            f"CREATE ROLE modest LOGIN PASSWORD '{PASSWORD}'",
            "ALTER DATABASE owned OWNER TO modest",
        )
        url = f"postgresql://modest:{PASSWORD}@127.0.0.1:{server.port}/owned"
        done = sediment_db("upgrade", url)
        assert done.returncode == 0
        assert f"CREATE ROLE {ROLE} NOLOGIN" in done.stderr
        assert current_revision(url) == known_revision()
        assert check_schema(url) == []
        execute(admin, f"CREATE ROLE {ROLE} NOLOGIN")
        assert ROLE not in sediment_db("upgrade", url).stderr
        execute(url, f"SELECT 1 FROM {VIEWS[0]}")


def test_problem_has_its_object_and_its_reason(empty_database_url: str) -> None:
    [problem] = check_schema(empty_database_url)
    assert problem == SchemaProblem(
        "schema revision",
        f"is none, this release needs {known_revision()}: `sediment db upgrade`",
    )


@pytest.mark.deep
def test_the_deployment_id_is_made_once_and_shown(empty_database_url: str) -> None:
    before = sediment_db("deployment-id", empty_database_url)
    assert (before.returncode, before.stdout) == (3, "")
    assert "sediment db upgrade" in before.stderr
    made = json.loads(sediment_db("upgrade", empty_database_url, "-o", "json").stdout)
    assert made["revision"] == known_revision()
    again = json.loads(sediment_db("upgrade", empty_database_url, "-o", "json").stdout)
    assert again["deployment_id"] == made["deployment_id"]
    assert sediment_db("deployment-id", empty_database_url).stdout == made["deployment_id"] + "\n"
    as_json = sediment_db("deployment-id", empty_database_url, "-o", "json")
    assert json.loads(as_json.stdout) == {"deployment_id": made["deployment_id"]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"password": "wrong-tail"}, "password authentication failed"),
        ({"database": "nowhere"}, '"nowhere" does not exist (3D000)'),
    ],
)
def test_a_refused_login_ends_with_a_code_of_its_own_and_postgresqls_reason(
    postgres: DatabaseServer, changes: dict[str, str], reason: str
) -> None:
    url = make_url(postgres.create_database(f"refused-{secrets.token_hex(4)}"))
    changed = url.set(**changes)  # type: ignore[arg-type]  # each is a text
    done = sediment_db("upgrade", changed.render_as_string(hide_password=False))
    assert done.returncode == 4
    assert reason in done.stderr
    assert "correct the user, password or database name" in done.stderr
    assert (changed.password or "-") not in done.stderr
