"""Count what services do: RPCs, requests to the store, statements, bytes that they copied.

The services' own metrics pages have all but the statements, which PostgreSQL counts. What happens
each second with or without calls is left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import psutil
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from services.local.data_directory import POSTGRES
from services.local.postgres import EmbeddedPostgres
from services.local.stack import EmbeddedStack

COUNTS_STATEMENTS = {"shared_preload_libraries": "pg_stat_statements"}
"""Settings of a PostgreSQL that counts statements."""

STATEMENTS = "statements"
_LEFT_OUT = (
    r"alembic_version|^SELECT current_setting\(|pg_current_snapshot|pg_stat_statements"
    r"|AS oldest_s|FROM tool_runs WHERE kind"
)
"""In statements of readiness checks, watches, RLMM's gauges of ages, and the count itself."""

_COUNT = """
    SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
    WHERE query !~ %s AND dbid <> (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True)
class Counters:
    """Counters of running services, which only rise.

    Attributes:
        pages: the addresses of metrics pages, by the service's name.
        server_url: of the superuser's database, if statements are counted.
        pids: more processes whose CPU time counts, by name, each with its children.
    """

    pages: Mapping[str, str]
    server_url: str = ""
    pids: Mapping[str, int] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        """Return the counters by name, such as "RSM: CopyLogSegmentData" or "store: put"."""
        found = defaultdict[str, float](float)
        for service, address in self.pages.items():
            for name, labels, value in samples(address):
                if key := _counter(service, name, labels):
                    found[key] += value
        if self.server_url:
            found[STATEMENTS] = _statements(self.server_url)
        for process, pid in self.pids.items():
            found[f"CPU ms, {process}"] = 1000 * tree_cpu_seconds(pid)
        return dict(found)


@dataclass(frozen=True)
class Counted:
    """What to count while a side is measured, and for each of what.

    Attributes:
        operation: what the counts are for, such as "copy" or "MiB".
        operations: so many of them in one round; or the counter that counts them.
    """

    operation: str = "round"
    operations: float | str = 1
    counters: Counters = field(default_factory=lambda: Counters({}))


ROUND = Counted()
"""Count CPU time alone, for each round."""


def counting_stack(stack: EmbeddedStack, directory: Path) -> EmbeddedStack:
    """Let the PostgreSQL of a stack that has not started, in this directory, count statements."""
    stack.postgres = EmbeddedPostgres(directory / POSTGRES, COUNTS_STATEMENTS)
    return stack


def counters_of(stack: EmbeddedStack) -> Counters:
    """Return the counters of a running stack made by `counting_stack`."""
    endpoints = stack.endpoints
    pages = {"RSM": endpoints.rsm_metrics, "RLMM": endpoints.rlmm_metrics}
    if endpoints.rlm_metrics:
        pages["RLM"] = endpoints.rlm_metrics
    others = {name: endpoints.pids[name] for name in ("postgres", "s3")}
    return Counters(pages, counting_server(stack.postgres), others)


def counting_server(server: EmbeddedPostgres) -> str:
    """Make the view of statements in a server with COUNTS_STATEMENTS; return the URL to read it."""
    url = server.url("postgres").replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    return url


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children since their start."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def samples(metrics_address: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Read a metrics page: yield each sample's name, labels and value."""
    with urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
        page = str(answer.read(), "utf-8")
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _counter(service: str, name: str, labels: Mapping[str, str]) -> str:
    """Return the counter to which a sample belongs; "" if to none."""
    match name:
        case "sediment_rpc_seconds_count":
            return f"{service}: {labels['method'].rpartition('/')[2]}"
        case "sediment_rsm_store_seconds_count" if labels["operation"] != "check":
            return f"store: {labels['operation']}"
        case "sediment_bytes_copied_total":
            return f"bytes copied, {service}: {labels['place']}"
    return ""


def _statements(server_url: str) -> int:
    with psycopg.connect(server_url) as connection:
        row = connection.execute(_COUNT, [_LEFT_OUT]).fetchone()
    return int(row[0]) if row else 0
