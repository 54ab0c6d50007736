import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from services.local.postgres import (
    ClusterError,
    check_reachable,
    ensure_cluster,
    programs,
    scram_verifier,
    wheel,
)
from services.local.process import ProcessDiedError
from services.local.server_account import UIDS, server_uid
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer


@pytest.fixture(scope="module")
def server(server_directory: Path) -> Iterator[DatabaseServer]:
    """One of our own, to stop and to kill."""
    with DatabaseServer(server_directory / "own-postgres") as server:
        yield server


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def make_row(server: DatabaseServer, database: str) -> None:
    with connect(server.create_database(database)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")


def row(server: DatabaseServer, database: str) -> object:
    with connect(server.url(database)) as connection:
        return connection.execute("SELECT value FROM kept").fetchone()


def test_a_commit_is_durable_before_it_is_acknowledged(server: DatabaseServer) -> None:
    with connect(server.url("postgres")) as connection:
        settings = [
            connection.execute(f"SHOW {name}").fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        ]
    assert settings == [("on",)] * 3


def test_a_wrong_password_is_refused(server: DatabaseServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{server.port}/postgres")


def test_a_restart_keeps_port_and_data(server: DatabaseServer) -> None:
    make_row(server, "restarted")
    port = server.port
    server.stop()
    server.start()
    assert (server.port, row(server, "restarted")) == (port, (42,))


def test_committed_data_survive_a_kill_under_an_open_transaction(server: DatabaseServer) -> None:
    make_row(server, "killed")
    with closing(connect(server.url("killed"))) as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE kept SET value = 43")
        server.kill()
    server.start()
    assert row(server, "killed") == (42,)


def test_a_copy_of_a_database_has_its_rows(server: DatabaseServer) -> None:
    make_row(server, "original")
    server.create_database("copy", template="original")
    assert row(server, "copy") == (42,)


def owned(server: DatabaseServer, database: str, password: str) -> psycopg.Connection:
    """A connection of the login that owns a database."""
    server.ensure_owned_database(database, "rlmm", password, "reader")
    url = f"postgresql://rlmm@127.0.0.1:{server.port}/{database}"
    return psycopg.connect(url, password=password, autocommit=True)


def test_the_owner_of_a_database_is_no_superuser_and_cannot_read_another(
    server: DatabaseServer,
) -> None:
    make_row(server, "others")
    with owned(server, "owned", "first") as connection:
        connection.execute("CREATE TABLE own ()")
        flags = "rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
        query = f"SELECT {flags} FROM pg_roles WHERE rolname = current_user"
        assert connection.execute(query).fetchone() == (False,) * 5
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("COPY own TO PROGRAM 'true'")
        url = connection.info.dsn.replace("dbname=owned", "dbname=others")
    with (
        psycopg.connect(url, password="first") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM kept")


@pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL runs as this user")
def test_server_has_its_own_user_that_cannot_read_the_password(
    server: DatabaseServer, server_directory: Path
) -> None:
    directory = server_directory / "own-postgres"
    uid = psutil.Process(server.pid).uids().real
    assert uid in UIDS
    assert {path.lstat().st_uid for path in (directory / "data").rglob("*")} == {uid}
    password = directory / "password"
    assert (password.stat().st_uid, password.stat().st_mode & 0o777) == (0, 0o600)
    secret = password.read_text().encode()
    files = [path for path in (directory / "data").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret in path.read_bytes()]


@pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL runs as this user")
def test_cluster_of_a_shared_account_gets_its_own_user(server_directory: Path) -> None:
    directory = server_directory / "was-nobodys"
    with DatabaseServer(directory) as server:
        make_row(server, "kept")
    for path in (directory / "data", *(directory / "data").rglob("*")):
        shutil.chown(path, "nobody")
    with DatabaseServer(directory) as server:
        assert row(server, "kept") == (42,)
        assert psutil.Process(server.pid).uids().real in UIDS


def test_a_verifier_stands_for_the_password(server: DatabaseServer) -> None:
    with connect(server.url("postgres")) as connection:
        verifier = scram_verifier("any password")
        connection.execute(f"CREATE ROLE verified LOGIN PASSWORD '{verifier}'")
    url = server.url("postgres").replace("+psycopg", "")
    psycopg.connect(url, user="verified", password="any password").close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url, user="verified", password=verifier)


def test_a_database_can_be_dropped_under_its_connections(server: DatabaseServer) -> None:
    make_row(server, "dropped")
    with connect(server.url("dropped")) as connection:
        server.drop_database("dropped")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_data_and_password_are_found_again_by_another_object(server_directory: Path) -> None:
    directory = server_directory / "found-again"
    with DatabaseServer(directory) as first:
        make_row(first, "kept")
    with DatabaseServer(directory) as second:
        assert row(second, "kept") == (42,)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of some other program of the user that PostgreSQL runs as."""
    with subprocess.Popen(["sleep", "600"], user=server_uid(Path("none"))) as process:
        yield process.pid
        process.kill()


def test_a_lock_file_with_another_programs_pid_does_not_stop_the_start(
    server_directory: Path, stranger: int
) -> None:
    directory = server_directory / "rebooted"
    data = ensure_cluster(directory)
    (data / "postmaster.pid").write_text(f"{stranger}\n{data}\n")
    with DatabaseServer(directory) as server, connect(server.url("postgres")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_zombie_of_a_killed_server_does_not_stop_the_start(server_directory: Path) -> None:
    directory = server_directory / "unreaped"
    data = ensure_cluster(directory)
    program = shutil.copy("/bin/sleep", directory / "postgres")
    with subprocess.Popen([program, "600"], user=server_uid(data)) as killed:
        killed.kill()
        eventually(lambda: psutil.Process(killed.pid).status() == psutil.STATUS_ZOMBIE)
        (data / "postmaster.pid").write_text(f"{killed.pid}\n{data}\n")
        with DatabaseServer(directory) as server, connect(server.url("postgres")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_wrong_setting_is_shown_from_the_log(server_directory: Path) -> None:
    server = DatabaseServer(server_directory / "own-postgres-2", {"max_connections": "many"})
    with pytest.raises(ProcessDiedError, match='invalid value for parameter "max_connections"'):
        server.start()


def test_a_directory_that_the_servers_user_cannot_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ClusterError, match=f"{tmp_path}: PostgreSQL runs as another user"):
        check_reachable(tmp_path)


def test_programs_that_the_servers_user_cannot_reach_are_copied_and_run(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    installed = Path(shutil.copytree(wheel(), hidden / wheel().name, symlinks=True))
    libraries = wheel().with_name(f"{wheel().name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, hidden / libraries.name)
    found = programs(tmp_path, installed, for_others=True)
    said = subprocess.run([found / "initdb", "--version"], capture_output=True, text=True)
    assert (tmp_path in found.parents, said.stdout[:6]) == (True, "initdb")
