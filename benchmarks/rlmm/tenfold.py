"""Measure RLMM over ten times KIP-405's segments, beside a hundredth of them.

`python -m benchmarks.rlmm.tenfold STEP ...`, with SEDIMENT_BENCH_POSTGRES=DIRECTORY that keeps the
25 GiB. The steps, in this order: fill, sizes, look-ups, transitions, maintenance, restarts.
`transitions` and `maintenance` change the rows; both may be run again.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.rlmm.clients import Measured, Workload
from benchmarks.rlmm.database import FILLING, KEPT_IN, Databases, databases, plain_url
from benchmarks.rlmm.histories import Layout
from benchmarks.rlmm.lookups import Lookups, RpcLookups, Where
from benchmarks.rlmm.segment_lives import SegmentLives
from benchmarks.rlmm.setting import PARTITIONS, Setting, setting
from services.rlmm.operations.maintenance import MaintenancePlan, maintain

FEW = Layout(PARTITIONS, 260)
# Events would be three quarters as large again as the segments: every tenth segment has its own.
MANY = Layout(10 * PARTITIONS, 2_402, 2_000_000, events_every=10)
CLIENTS = (1, 32)
SECONDS, ROUNDS = 8.0, 5
LARGE_TABLES = ("segments", "segment_epochs", "events")
AGED_EVENTS = 1_000_000

_SIZES = """
    SELECT c.relname, pg_relation_size(c.oid) >> 20 FROM pg_class AS c
    WHERE c.relkind IN ('r', 'i') AND c.relnamespace = 'public'::regnamespace
        AND pg_relation_size(c.oid) >= 64 << 20
    ORDER BY pg_relation_size(c.oid) DESC"""
_AGE_EVENTS = f"""
    UPDATE events SET at = at - interval '91 days' WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM events WHERE at > now() - interval '1 day'
        ORDER BY topic_id, partition, revision LIMIT {AGED_EVENTS}))"""


def fill() -> None:
    """Make both histories, without flushes: a crash now means to begin again."""
    directory = Path(os.environ[KEPT_IN])
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o711)
    filling = Databases(directory, FILLING)
    filling.server.start()
    try:
        for layout in (FEW, MANY):
            with _timed(f"fill {layout.total_segments()} segments"):
                filling.history(layout)
    finally:
        filling.server.stop()


def sizes() -> None:
    with psycopg.connect(plain_url(databases().history(MANY))) as connection:
        for name, mib in connection.execute(_SIZES.encode()):
            print(f"{name} {mib} MiB")


def look_ups() -> None:
    with setting() as made:
        sides = {layout: made.rlmm(made.history(layout)).address for layout in (FEW, MANY)}
        for where in (Where.HIT, Where.PAST_THE_END):
            _beside_one_another(
                made,
                f"look-ups, {where.value}",
                {
                    layout: RpcLookups(address, Lookups(layout, where))
                    for layout, address in sides.items()
                },
            )


def transitions() -> None:
    with setting() as made:
        sides = {FEW: made.scratch(FEW), MANY: made.history(MANY)}
        for count in CLIENTS:
            workloads = {
                layout: SegmentLives(made.rlmm(url).address, layout, count)
                for layout, url in sides.items()
            }
            _beside_one_another(made, "transitions", workloads, (count,))


def maintenance() -> None:
    url = databases().history(MANY)
    with _timed("maintenance without work"):
        maintain(url, MaintenancePlan())
    _execute(url, _AGE_EVENTS)
    _execute(url, "VACUUM ANALYZE events")
    with _timed("maintenance"):
        print(maintain(url, MaintenancePlan(delete_retention_ms=0)))
    for table in LARGE_TABLES:
        for options in ("", "(FREEZE, DISABLE_PAGE_SKIPPING)"):
            with _timed(f"VACUUM {options} {table}"):
                _execute(url, f"VACUUM {options} {table}")


def restarts() -> None:
    with setting() as made:
        urls = {layout: made.history(layout) for layout in (FEW, MANY)}
        for _ in range(ROUNDS):
            for layout, url in urls.items():
                with _timed(f"RLMM from start to ready, {layout.total_segments()} segments"):
                    made.rlmm(url)
        writers = made.clients(SegmentLives(made.rlmm(urls[MANY]).address, MANY, CLIENTS[-1]))
        writers.run(30.0)
        server = databases().server
        server.process.kill()
        with _timed("PostgreSQL from a kill amid writes to its first answer"):
            server.start()
        with _timed("the first look-up through RLMM after that"):
            RpcLookups(made.rlmm(urls[MANY]).address, Lookups(MANY)).caller(0)()


def _beside_one_another(
    made: Setting,
    what: str,
    workloads: Mapping[Layout, Workload],
    counts: tuple[int, ...] = CLIENTS,
) -> None:
    """Print what each number of clients reaches on each side; the sides take turns."""
    for count in counts:
        clients = {layout: made.clients(each, count) for layout, each in workloads.items()}
        measured: dict[Layout, list[Measured]] = {layout: [] for layout in workloads}
        for _ in range(ROUNDS):
            for layout, each in clients.items():
                measured[layout].append(each.run(SECONDS))
        for layout, rounds in measured.items():
            rates, p50s, p99s = (
                sorted(values)
                for values in zip(
                    *((one.operations_per_s, one.p50_s, one.p99_s) for one in rounds), strict=True
                )
            )
            print(
                f"{what}, {count} clients, {layout.total_segments()} segments:"
                f" {_spread(rates, 1)}/s, ms: p50 {_spread(p50s, 1000)},"
                f" p99 {_spread(p99s, 1000)}",
                flush=True,
            )


def _spread(values: list[float], times: float) -> str:
    median, least, most = values[len(values) // 2], values[0], values[-1]
    return f"{median * times:.4g} ({least * times:.4g} - {most * times:.4g})"


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.2f} s", flush=True)


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        connection.execute(statement.encode())


STEPS: dict[str, Callable[[], None]] = {
    "fill": fill,
    "sizes": sizes,
    "look-ups": look_ups,
    "transitions": transitions,
    "maintenance": maintenance,
    "restarts": restarts,
}

if __name__ == "__main__":
    for step in sys.argv[1:]:
        STEPS[step]()
