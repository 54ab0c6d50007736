"""Run a real PgBouncer (Debian's package) before a PostgreSQL."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from sqlalchemy import make_url

from services.local.postgres import EmbeddedPostgres
from services.local.process import LOOPBACK, ChildProcess, HeldPorts, start_on_free_ports

_START_TIMEOUT_MS = 60_000
_ACCOUNT = "nobody"
"""PgBouncer refuses to run as root."""


class PgBouncer:
    """Pools the sessions of a server while it is entered; `settings` are PgBouncer's."""

    def __init__(self, postgres: EmbeddedPostgres, directory: Path, **settings: object) -> None:
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
        self._held_ports: HeldPorts | None = None

    def url(self, database: str) -> str:
        port = self._settings["listen_port"]
        return f"postgresql://{self._server.username}@{LOOPBACK}:{port}/{database}"

    def __enter__(self) -> Self:
        self._held_ports = start_on_free_ports(1, self._start_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
