"""Provide one PostgreSQL for all benchmarks of a run: filling a database takes minutes."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import psycopg

from benchmarks.counts import COUNTS_STATEMENTS
from benchmarks.measure import say
from benchmarks.rlmm.histories import Layout, store
from services.local.stack import ServiceProcess, rlmm_settings
from services.rlmm.database import schema, schema_revision
from tests.harness.local_servers import DatabaseServer

# Settings of a server as large as its rows. None of them makes a commit less durable.
SERVER_SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    **COUNTS_STATEMENTS,
}
# Without flushes: a crash while a large history is made means to begin again.
FILLING = {**SERVER_SETTINGS, "fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
_SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "commit_delay")
KEPT_IN = "SEDIMENT_BENCH_POSTGRES"
"""The variable that names a directory in which the server's data is kept for the next run."""
_EMPTY = "bench_empty"


class Databases:
    """The server, and databases on it with RLMM's schema. Not thread-safe."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = SERVER_SETTINGS) -> None:
        self.directory = directory
        self.server = DatabaseServer(directory / "postgres", settings)

    def history(self, layout: Layout) -> str:
        """Return the URL of a database with these rows, filled at the first call. Must not be
        changed.
        """
        name = _name_of(layout)
        if self._exists(name):
            return self.server.url(name)
        say(f"filling a database with {layout.total_segments():,} segments, which takes minutes")
        filling = f"filling_{uuid4().hex}"
        url = self.server.create_database(filling)
        schema.upgrade(url)
        store(url, layout)
        # So that the next run does not mistake a half-filled database for a whole one.
        with psycopg.connect(self._admin_url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {filling} RENAME TO {name}".encode())
        return self.server.url(name)

    def empty(self) -> str:
        """Return the URL of a database with the schema and no rows. Must not be changed."""
        if not self._exists(_EMPTY):
            self.server.create_database(_EMPTY)
        schema.upgrade(self.server.url(_EMPTY))
        return self.server.url(_EMPTY)

    @contextmanager
    def scratch(self, layout: Layout) -> Iterator[str]:
        """Yield the URL of a copy of `history`, which is dropped at the end.

        Its topics' deletions are confirmed: a fast run marks more than a day may.
        """
        self.history(layout)
        name = f"scratch_{uuid4().hex}"
        url = self.server.create_database(name, template=_name_of(layout))
        with psycopg.connect(plain_url(url)) as connection:
            connection.execute("UPDATE topics SET confirmed_revision = config_revision")
        yield url
        self.server.drop_database(name)

    def conditions(self) -> dict[str, object]:
        """Read the server's own description."""
        with psycopg.connect(self._admin_url()) as connection:
            shown = {
                name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in _SHOWN
            }
        return {name: row[0] for name, row in shown.items() if row}

    def _exists(self, name: str) -> bool:
        with psycopg.connect(self._admin_url()) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            return connection.execute(query, [name]).fetchone() is not None

    def _admin_url(self) -> str:
        return plain_url(self.server.url("postgres"))


@cache
def databases() -> Databases:
    """Return the databases, started at the first call and stopped when this process ends."""
    kept = os.environ.get(KEPT_IN)
    directory = Path(kept or tempfile.mkdtemp(prefix="sediment-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o711)
    if not kept:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    found = Databases(directory)
    found.server.start()
    atexit.register(found.server.stop)
    return found


def _name_of(layout: Layout) -> str:
    """Return a name with the schema's revision: the rows of an older schema differ from today's."""
    parts = (layout.partitions, layout.segments, layout.large_segments)
    whole = "_whole" if layout.is_whole else ""
    events = f"_every_{layout.events_every}" if layout.events_every > 1 else ""
    return f"bench_{schema_revision.known_revision()}_{'_'.join(map(str, parts))}{whole}{events}"


def plain_url(database_url: str) -> str:
    """Return the URL in psycopg's form."""
    return database_url.replace("+psycopg", "")


@contextmanager
def running_rlmm(
    database_url: str, settings: Mapping[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """Run RLMM as in production: a process of its own, all other settings at their defaults."""
    directory = databases().directory / "services" / uuid4().hex
    service = ServiceProcess("rlmm", {**rlmm_settings(database_url), **(settings or {})}, directory)
    service.start()
    try:
        yield service
    finally:
        service.stop()
