"""Provide the other opponent of transitions: `pgbench -N` on the same server."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy import make_url

from benchmarks.rlmm.database import databases
from services.local.postgres import wheel

CLIENTS = 8
THREADS = 2
SCALE = 10
_PROGRAM = wheel() / "pginstall" / "bin" / "pgbench"
PROTOCOL = "simple"
"""pgbench's own default: each statement is planned when it is sent."""
_RUN = ("-N", "-M", PROTOCOL, "-c", f"{CLIENTS}", "-j", f"{THREADS}")
OPTIONS = f"{' '.join(_RUN)} -s {SCALE}"
"""The options, for the conditions of a figure."""
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


@dataclass(frozen=True)
class PgBench:
    """The tables of pgbench, in a database of their own."""

    database_url: str

    def transactions_per_s(self, seconds: float) -> float:
        output = self._run(*_RUN, "-T", f"{round(seconds)}")
        found = _RATE.search(output)
        if found is None:
            raise RuntimeError(f"pgbench printed no rate:\n{output}")
        return float(found[1])

    def fill(self) -> None:
        self._run("-i", "-q", "-s", f"{SCALE}")

    def _run(self, *arguments: str) -> str:
        url = make_url(self.database_url)
        connection = ["-h", f"{url.host}", "-p", f"{url.port}", "-U", f"{url.username}"]
        environment = {**os.environ, "PGPASSWORD": f"{url.password}"}
        done = subprocess.run(
            [_PROGRAM, *connection, *arguments, f"{url.database}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"pgbench ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


@contextmanager
def filled_pgbench() -> Iterator[PgBench]:
    """Fill a database, which is dropped at the end."""
    server, name = databases().server, f"pgbench_{uuid4().hex}"
    bench = PgBench(server.create_database(name))
    bench.fill()
    yield bench
    server.drop_database(name)
