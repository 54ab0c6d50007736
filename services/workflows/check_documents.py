"""Write the results of reconcile and scrub as documents, and decide what needs an operator."""

from collections.abc import Sequence

from services.api.operations import AnomalyKind
from services.workflows.reconcile import Reconciled, ReconciliationPlan
from services.workflows.scrub import Scrubbed, ScrubPlan
from services.workflows.unfinished_copies import CopyKind

SCRUB_KINDS = (AnomalyKind.CORRUPT_OBJECT, AnomalyKind.MISSING_OBJECTS)
FOR_AN_OPERATOR = (
    AnomalyKind.MISSING_OBJECTS,
    AnomalyKind.CORRUPT_OBJECT,
    AnomalyKind.UNREFERENCED_COMPLETE,
)


def failures_of(done: Reconciled) -> list[str]:
    """List the objects that could not be read or could not be deleted."""
    return [*done.unread, *done.deletions.failures]


def needs_operator(done: Reconciled) -> bool:
    """Return whether something is wrong that no later run repairs."""
    return bool(failures_of(done)) or any(done.anomalies[kind] for kind in FOR_AN_OPERATOR)


def reconcile_document(plan: ReconciliationPlan, done: Reconciled) -> dict[str, object]:
    """Return the report of a reconciliation."""
    return {
        "run_id": plan.run_id,
        "delete": plan.delete,
        "grace_ms": plan.grace_ms,
        "locations": list(plan.locations),
        "listed_at_ms": plan.listed_at_ms,
        "objects": done.objects,
        "segments": done.segments,
        "anomalies": {kind.value: done.anomalies[kind] for kind in AnomalyKind},
        "copies": {kind.value: done.copies[kind] for kind in CopyKind},
        "unfinished": done.unfinished,
        "deleted_objects": done.deletions.objects,
        "ended_uploads": done.deletions.uploads,
        "left": done.deletions.left,
        "unrecorded": done.deletions.unrecorded,
        "held": done.deletions.held,
        "failures": failures_of(done),
    }


def scrub_document(
    plan: ScrubPlan, topics: Sequence[str], rate_bytes_per_s: int, done: Scrubbed
) -> dict[str, object]:
    """Return the report of a scrub."""
    return {
        "run_id": plan.run_id,
        "part": plan.part,
        "parts": plan.parts,
        "topics": list(topics),
        "locations": list(plan.locations),
        "rate_bytes_per_s": rate_bytes_per_s,
        "segments": done.segments,
        "verified": done.verified,
        "damaged": done.damaged,
        "repaired": done.repaired,
        "anomalies": {kind.value: done.anomalies[kind] for kind in SCRUB_KINDS},
        "not_checked": done.unchecked,
        "deleted_meanwhile": done.gone,
        "listings_broken_off": done.unlisted,
        "cut_short": done.is_cut_short,
        "read_bytes": done.read_bytes,
        "reasons": done.reasons,
        "repairs": done.repairs,
    }
