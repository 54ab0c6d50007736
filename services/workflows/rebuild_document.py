"""Put back what the bucket keeps beside the segments, and write the report of a rebuild."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.deployment_state import KeptTopic
from services.api.errors import CorruptSegmentError
from services.api.ids import uuid_to_text
from services.api.operations import DeletionFreeze
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_objects import SegmentObjects
from services.workflows.deployment_state import (
    Head,
    PutBack,
    kept_topics,
    put_settings_back,
    read_head,
)
from services.workflows.rebuild import RebuildPlan
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt


@dataclass(frozen=True, slots=True)
class KeptState:
    """What the bucket keeps of topics.

    Attributes:
        head: None if nothing is kept, or it cannot be read.
        unread: why it cannot be read; metadata is rebuilt without it.
    """

    head: Head | None
    topics: Sequence[KeptTopic] = ()
    unread: tuple[str, ...] = ()

    @property
    def waiting(self) -> dict[str, int]:
        """Return how many log starts and marks confirm_rebuild will put back."""
        return {
            "log_starts": sum(len(each.log_starts) for each in self.topics),
            "marks": sum(len(each.marked) for each in self.topics),
        }

    def put_settings_back(self, rlmm: RemoteLogMetadataManager, *, apply: bool) -> PutBack:
        """Put settings back that RLMM lacks, or only count them."""
        is_settled = self.head is not None and self.head.is_settled
        back = put_settings_back(rlmm, self.topics, is_settled=is_settled, apply=apply)
        back.refused += self.unread
        return back


def read_kept(objects: SegmentObjects) -> KeptState:
    """Read what the bucket keeps."""
    try:
        head = read_head(objects)
        return KeptState(head, () if head is None else list(kept_topics(objects, head)))
    except CorruptSegmentError as e:
        return KeptState(None, unread=(str(e),))


def rebuild_document(
    plan: RebuildPlan, done: Rebuilt, kept: KeptState, back: PutBack
) -> dict[str, object]:
    """Return the report of a rebuild."""
    kept_at_ms = None if kept.head is None else kept.head.kept_at_ms
    found = {"kept_at_ms": kept_at_ms, "settings": back.settings, **kept.waiting}
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


def freeze_document(freeze: DeletionFreeze) -> dict[str, object]:
    return {"since_ms": freeze.since_ms, "actor": freeze.actor, "reason": freeze.reason}


def _difference_document(each: Difference) -> dict[str, object]:
    return {
        "kind": each.kind.value,
        "topic_id": uuid_to_text(each.topic_id),
        "topic": each.topic,
        "partition": each.partition,
        "segment_id": uuid_to_text(each.segment_id),
        "start_offset": each.start_offset,
        "end_offset": each.end_offset,
        "detail": each.detail,
    }
