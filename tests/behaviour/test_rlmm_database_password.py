"""Test RLMM's database password from a file, with a real server that checks it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine

from services.api.errors import RetriableRemoteStorageError
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import Passwords, create_database_engine
from tests.harness.local_servers import DatabaseServer
from tests.harness.sediment_command import sediment

ROLE = "rotated"
FIRST, SECOND, THIRD = "first-canary", "second@canary", "third canary"


@dataclass
class Login:
    """A role of the server, and the file in which RLMM finds its password."""

    url: str
    file: Path
    administrator_url: str

    def write(self, password: str) -> None:
        making = self.file.with_suffix(".new")
        making.write_text(f"{password}\n")
        making.rename(self.file)

    def alter(self, password: str) -> None:
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
        with psycopg.connect(self.administrator_url, autocommit=True) as connection:
            connection.execute(statement.format(sql.Identifier(ROLE), sql.Literal(password)))


@pytest.fixture
def login(postgres: DatabaseServer, database_url: str, tmp_path: Path) -> Iterator[Login]:
    administrator_url = database_url.replace("+psycopg", "")
    made = Login(
        f"postgresql://{ROLE}@{database_url.rpartition('@')[2]}",
        tmp_path / "password",
        administrator_url,
    )
    with psycopg.connect(administrator_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
    made.alter(FIRST)
    made.write(FIRST)
    yield made
    with psycopg.connect(administrator_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {ROLE}")
        connection.execute(f"DROP ROLE {ROLE}")


@pytest.fixture
def engine(login: Login) -> Iterator[Engine]:
    made = create_database_engine(login.url, password_file=login.file)
    yield made
    made.dispose()


def read_in_a_new_connection(engine: Engine) -> None:
    engine.dispose()
    query = "SELECT count(*) FROM deployment"
    assert Transactions(engine).read(lambda c: c.exec_driver_sql(query).scalar_one()) == 1


def test_a_new_connection_takes_the_password_of_the_moment(login: Login, engine: Engine) -> None:
    read_in_a_new_connection(engine)
    for password in (SECOND, THIRD):
        login.write(password)
        login.alter(password)
        read_in_a_new_connection(engine)


def test_no_connection_fails_between_the_new_file_and_the_new_password(
    login: Login, engine: Engine
) -> None:
    read_in_a_new_connection(engine)
    login.write(SECOND)
    read_in_a_new_connection(engine)
    login.alter(SECOND)
    read_in_a_new_connection(engine)


def test_the_role_may_change_between_the_refusals_of_the_new_and_the_old_password(
    login: Login,
) -> None:
    passwords, tried = Passwords(login.file), list[str]()
    login.write(SECOND)

    def connect(password: str) -> "psycopg.Connection[tuple[object, ...]]":
        tried.append(password)
        if tried == [SECOND, FIRST]:
            login.alter(SECOND)
        return psycopg.connect(login.url, password=password)

    passwords.connect(connect).close()
    assert tried == [SECOND, FIRST, SECOND]


def test_a_file_that_vanished_leaves_the_password_in_use(login: Login, engine: Engine) -> None:
    login.file.unlink()
    read_in_a_new_connection(engine)


def test_a_refused_password_is_an_error_until_the_file_has_the_right_one(
    login: Login, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    login.alter(SECOND)
    with pytest.raises(RetriableRemoteStorageError) as caught:
        read_in_a_new_connection(engine)
    assert "canary" not in str(caught.value) + caplog.text
    login.write(SECOND)
    read_in_a_new_connection(engine)


@pytest.mark.parametrize("command", ["current", "check", "deployment-id"])
def test_commands_read_the_file_too(login: Login, command: str) -> None:
    environment = {
        "RLMM_DATABASE_URL": login.url,
        "RLMM_DATABASE_PASSWORD_FILE": str(login.file),
    }
    done = sediment("db", command, environment=environment)
    # `check` has complaints about the shared server, which does not sync its disk.
    assert done.returncode in (0, 1), done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_the_command_names_an_unescaped_at_and_nothing_else() -> None:
    url = "postgresql://rlmm:first@tail@db/tier"
    done = sediment("db", "current", environment={"RLMM_DATABASE_URL": url})
    assert done.returncode == 2
    assert "write %40 for an @" in done.stderr
    assert "tail" not in done.stderr
