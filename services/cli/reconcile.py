"""`sediment reconcile`: what the stores hold against what metadata says."""

import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from services.api.anomalies import AnomalyKind
from services.api.reconciliation import Reconciled, Reconciliation, ReconciliationPlan
from services.cli.connections import connected_rlmm, connected_rsm, connected_segment_objects
from services.cli.failures import EXIT_PARTIAL
from services.cli.output import Format, print_json, print_table
from services.cli.progress import counter

_FOR_AN_OPERATOR = (
    AnomalyKind.MISSING_OBJECTS,
    AnomalyKind.CORRUPT_OBJECT,
    AnomalyKind.UNREFERENCED_COMPLETE,
)


def run(
    delete: bool,
    grace_ms: int,
    locations: Sequence[int],
    rsm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> int:
    """The exit code."""
    now_ms = time.time_ns() // 1_000_000
    plan = ReconciliationPlan(uuid4().hex, now_ms, grace_ms, delete, locations)
    with (
        connected_rsm(rsm, data_dir) as store,
        connected_segment_objects(rsm, data_dir) as objects,
        connected_rlmm(rlmm, data_dir) as metadata,
        counter() as count,
    ):
        done = Reconciliation(
            metadata, store, objects, plan, lambda done: count("segments", done.segments)
        ).run()
    if output is Format.JSON:
        print_json(_as_json(plan, done))
    else:
        print_table("Reconciled", ("what", "how many"), _rows(done))
        for failure in _failures(done):
            Console(stderr=True).print(failure, markup=False, highlight=False)
    amiss = _failures(done) or any(done.anomalies[kind] for kind in _FOR_AN_OPERATOR)
    return EXIT_PARTIAL if amiss else 0


def _failures(done: Reconciled) -> list[str]:
    """What could not be read, and what not deleted."""
    return [*done.unread, *done.deletions.failures]


def _rows(done: Reconciled) -> list[tuple[object, ...]]:
    return [
        ("objects", f"{done.objects:,}"),
        ("segments", f"{done.segments:,}"),
        *((kind.value, f"{done.anomalies[kind]:,}") for kind in AnomalyKind),
        ("objects deleted", f"{done.deletions.objects:,}"),
        ("left for the next run", f"{done.deletions.left:,}"),
        ("uploads ended", f"{done.deletions.uploads:,}"),
        ("failures", f"{len(_failures(done)):,}"),
    ]


def _as_json(plan: ReconciliationPlan, done: Reconciled) -> dict[str, object]:
    return {
        "run_id": plan.run_id,
        "delete": plan.delete,
        "grace_ms": plan.grace_ms,
        "locations": list(plan.locations),
        "objects": done.objects,
        "segments": done.segments,
        "anomalies": {kind.value: done.anomalies[kind] for kind in AnomalyKind},
        "deleted_objects": done.deletions.objects,
        "ended_uploads": done.deletions.uploads,
        "left": done.deletions.left,
        "failures": _failures(done),
    }
