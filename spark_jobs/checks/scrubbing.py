"""Read segments and verify their checksums in tasks, by the rules of `sediment scrub`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Event

import pyarrow as pa

from services.api.operations import AnomalyKind
from services.workflows.check_documents import SCRUB_KINDS
from services.workflows.coverage import COUNTS, Coverage, verified_of
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan
from services.workflows.segment_views import StoreView
from spark_jobs.checks.objects import views_of
from spark_jobs.connections import Services
from spark_jobs.sweeps import waves
from spark_jobs.sweeps.plan import Row, rows_in

_COUNTS = ("segments", "verified", "damaged", "unchecked", "gone", "unlisted", "read_bytes")
_TOPIC_FIELDS = [pa.field("topic_id", pa.string()), *(pa.field(n, pa.int64()) for n in COUNTS)]

SCRUBBED_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in (*_COUNTS, *(k.value for k in SCRUB_KINDS))),
        pa.field("is_cut_short", pa.bool_()),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("topics", pa.list_(pa.struct(_TOPIC_FIELDS))),
    ]
)
"""What a task has found: the fields of Scrubbed, a column for each kind of anomaly, and in `topics`
the rows of its coverage."""


def scrub_segments(
    batches: Iterable[pa.RecordBatch],
    services: Services,
    plan: ScrubPlan,
    bytes_per_s: float | None,
) -> Iterator[pa.RecordBatch]:
    """Verify segments: rows of SEGMENT_KEY and `objects` to one row of SCRUBBED_SCHEMA.

    A partition's rows are adjacent. Damage is reported to RLMM at once. Safe to run twice.
    """
    limit = waves.Pace(bytes_per_s)
    with (
        services.connected_rlmm() as rlmm,
        services.connected_rsm() as rsm,
        services.connected_objects() as objects,
    ):
        scrub = Scrub(rlmm, rsm, objects, plan, Pace(limit.wait_for, Event().wait))
        done = scrub.run_over(_views(batches))
    yield pa.RecordBatch.from_pylist([_row_of(done)], schema=SCRUBBED_SCHEMA)


def _views(batches: Iterable[pa.RecordBatch]) -> Iterator[StoreView]:
    for row in rows_in(batches):
        yield from views_of(row)


def _row_of(done: Scrubbed) -> Row:
    return {
        **{name: getattr(done, name) for name in _COUNTS},
        **{kind.value: done.anomalies[kind] for kind in SCRUB_KINDS},
        "is_cut_short": done.is_cut_short,
        "reasons": done.reasons,
        "topics": done.coverage.rows(),
    }


def scrubbed_of(row: Row) -> Scrubbed:
    """Build what a task has found from its row."""
    coverage = Coverage()
    for topic in row["topics"]:
        coverage.add(verified_of(topic))
    return Scrubbed(
        **{name: row[name] for name in _COUNTS},
        anomalies=Counter({AnomalyKind(kind.value): row[kind.value] for kind in SCRUB_KINDS}),
        is_cut_short=row["is_cut_short"],
        reasons=list(row["reasons"]),
        coverage=coverage,
    )
