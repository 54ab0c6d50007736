"""Write the report of a rebuild."""

from dataclasses import asdict

from services.api.holds import Hold
from services.api.ids import uuid_to_text
from services.workflows.deployment_state import KeptState, PutBack
from services.workflows.rebuild import RebuildPlan
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt


def rebuild_document(
    plan: RebuildPlan, done: Rebuilt, stored: KeptState, back: PutBack
) -> dict[str, object]:
    """Return the report of a rebuild."""
    kept_at_ms = None if stored.head is None else stored.head.kept_at_ms
    found = {"kept_at_ms": kept_at_ms, "settings": back.settings, "holds": back.holds}
    found |= stored.waiting
    return {
        "run_id": plan.run_id,
        "apply": plan.apply,
        "locations": list(plan.locations),
        "freeze": None if done.freeze is None else freeze_document(done.freeze),
        "segments": done.segments,
        "same": done.same,
        "incomplete": done.incomplete,
        "counts": {kind.value: done.counts[kind] for kind in DifferenceKind},
        "imported": done.imported,
        "finished": done.finished,
        "differences": [_difference_document(each) for each in done.differences],
        "unlisted": sum(done.counts.values()) - len(done.differences),
        "kept": {**found, "refused": back.refused},
    }


def freeze_document(freeze: Hold) -> dict[str, object]:
    return {"since_ms": freeze.set_at_ms, "actor": freeze.actor, "reason": freeze.reason}


def _difference_document(each: Difference) -> dict[str, object]:
    return {
        **asdict(each),
        "kind": each.kind.value,
        "topic_id": uuid_to_text(each.topic_id),
        "segment_id": uuid_to_text(each.segment_id),
    }
