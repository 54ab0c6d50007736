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
    EmbeddedPostgres,
    check_reachable,
    ensure_cluster,
    programs,
    server_account,
    wheel,
)
from services.local.process import ProcessDiedError
from tests.harness.eventually import eventually


@pytest.fixture(scope="module")
def server(server_directory: Path) -> Iterator[EmbeddedPostgres]:
    """One of our own, to stop and to kill."""
    with EmbeddedPostgres(server_directory / "own-postgres") as server:
        yield server


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def make_row(server: EmbeddedPostgres, database: str) -> None:
    with connect(server.create_database(database)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")


def row(server: EmbeddedPostgres, database: str) -> object:
    with connect(server.url(database)) as connection:
        return connection.execute("SELECT value FROM kept").fetchone()


def test_a_commit_is_durable_before_it_is_acknowledged(server: EmbeddedPostgres) -> None:
    with connect(server.url("postgres")) as connection:
        settings = [
            connection.execute(f"SHOW {name}").fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        ]
    assert settings == [("on",)] * 3


def test_a_wrong_password_is_refused(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{server.port}/postgres")


def test_a_restart_keeps_port_and_data(server: EmbeddedPostgres) -> None:
    make_row(server, "restarted")
    port = server.port
    server.restart()
    assert (server.port, row(server, "restarted")) == (port, (42,))


def test_committed_data_survive_a_kill_under_an_open_transaction(server: EmbeddedPostgres) -> None:
    make_row(server, "killed")
    with closing(connect(server.url("killed"))) as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE kept SET value = 43")
        server.kill()
    server.start()
    assert row(server, "killed") == (42,)


def test_a_copy_of_a_database_has_its_rows(server: EmbeddedPostgres) -> None:
    make_row(server, "original")
    server.create_database("copy", template="original")
    assert row(server, "copy") == (42,)


def test_a_database_that_is_there_is_not_made_again(server: EmbeddedPostgres) -> None:
    make_row(server, "there")
    assert server.ensure_database("there") == server.url("there")
    assert row(server, "there") == (42,)


def test_a_database_can_be_dropped_under_its_connections(server: EmbeddedPostgres) -> None:
    make_row(server, "dropped")
    with connect(server.url("dropped")) as connection:
        server.drop_database("dropped")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_data_and_password_are_found_again_by_another_object(server_directory: Path) -> None:
    directory = server_directory / "found-again"
    with EmbeddedPostgres(directory) as first:
        make_row(first, "kept")
    with EmbeddedPostgres(directory) as second:
        assert row(second, "kept") == (42,)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of some other program of the user that PostgreSQL runs as."""
    with subprocess.Popen(["sleep", "600"], user=server_account()) as process:
        yield process.pid
        process.kill()


def test_a_lock_file_with_another_programs_pid_does_not_stop_the_start(
    server_directory: Path, stranger: int
) -> None:
    directory = server_directory / "rebooted"
    data = ensure_cluster(directory)
    (data / "postmaster.pid").write_text(f"{stranger}\n{data}\n")
    with EmbeddedPostgres(directory) as server, connect(server.url("postgres")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_killed_server_that_nobody_has_reaped_does_not_stop_the_start(
    server_directory: Path,
) -> None:
    directory = server_directory / "unreaped"
    data = ensure_cluster(directory)
    program = shutil.copy("/bin/sleep", directory / "postgres")
    with subprocess.Popen([program, "600"], user=server_account()) as killed:
        killed.kill()
        eventually(lambda: psutil.Process(killed.pid).status() == psutil.STATUS_ZOMBIE)
        (data / "postmaster.pid").write_text(f"{killed.pid}\n{data}\n")
        with EmbeddedPostgres(directory) as server, connect(server.url("postgres")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_wrong_setting_is_shown_from_the_log(server_directory: Path) -> None:
    server = EmbeddedPostgres(server_directory / "own-postgres-2", {"max_connections": "many"})
    with pytest.raises(ProcessDiedError, match='invalid value for parameter "max_connections"'):
        server.start()


def test_a_directory_that_the_servers_user_cannot_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ClusterError, match=f"{tmp_path}: PostgreSQL runs as nobody"):
        check_reachable(tmp_path, "nobody")


def test_programs_that_the_servers_user_cannot_reach_are_copied_and_run(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    installed = Path(shutil.copytree(wheel(), hidden / wheel().name, symlinks=True))
    libraries = wheel().with_name(f"{wheel().name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, hidden / libraries.name)
    found = programs(tmp_path, installed, "nobody")
    said = subprocess.run([found / "initdb", "--version"], capture_output=True, text=True)
    assert (tmp_path in found.parents, said.stdout[:6]) == (True, "initdb")
