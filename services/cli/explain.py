"""`sediment explain`: why something is still in the tier, when it goes, or why it was deleted.

Changes nothing.
"""

from pathlib import Path
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention_explained import (
    SegmentExplanation,
    Standing,
    explain_partition,
    explain_segment,
)
from services.cli.connections import connected_rlmm, find_partition
from services.cli.explain_facts import (
    PartitionFacts,
    SegmentFacts,
    deleted_segment_at,
    deletions_of_partition,
    partition_facts,
    segment_facts,
)
from services.cli.explain_json import (
    event_as_json,
    name_as_json,
    partition_as_json,
    segment_facts_as_json,
)
from services.cli.explain_tables import print_partition, print_removed, print_segment
from services.cli.explain_text import deleted_text, event_text, removal_text, verdict_text
from services.cli.failures import CommandError
from services.cli.output import Format, print_json


def run(
    topic_partition: str,
    segment: str,
    offset: int | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    if segment and offset is not None:
        raise CommandError("SEGMENT and --offset: say one of the two")
    id = uuid_from_text(segment, "SEGMENT") if segment else None
    with connected_rlmm(rlmm, data_dir) as manager:
        name = find_partition(manager, topic_partition)
        facts = _facts_or_none(manager, name)
        if id is not None:
            _show_segment(manager, name, facts, id, output)
        elif offset is not None:
            _show_offset(manager, name, facts, offset, output)
        elif facts is None:
            _show_removed(manager, name, output)
        else:
            _show_partition(facts, output)


def _facts_or_none(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> PartitionFacts | None:
    """None: it was removed, or never was."""
    try:
        return partition_facts(manager, name)
    except RemoteResourceNotFoundError:
        return None


def _show_partition(facts: PartitionFacts, output: Format) -> None:
    told = explain_partition(facts.case)
    if output is Format.JSON:
        print_json(partition_as_json(facts, told))
    else:
        print_partition(facts, told)


def _show_removed(manager: RemoteLogMetadataManager, name: TopicIdPartition, out: Format) -> None:
    try:
        events = deletions_of_partition(manager, name)
    except RemoteResourceNotFoundError as e:
        raise _unknown_partition(name) from e
    if out is Format.JSON:
        deleted = [event_as_json(event) for event in events]
        print_json({**name_as_json(name), "delete_state": "removed", "events": deleted})
    else:
        print_removed(name, events)


def _show_segment(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    id: UUID,
    output: Format,
) -> None:
    try:
        found = segment_facts(manager, name, id)
    except RemoteResourceNotFoundError as e:
        raise _unknown_partition(name) from e
    if found is None:
        raise CommandError(
            f"no segment {uuid_to_text(id)} is known of {_text(name)}, and no event that is kept "
            "names it; `sediment segments` lists what there is, --offset N finds what held an "
            "offset"
        )
    told = _explained(facts, id)
    verdict = _verdict(facts, found, told)
    if output is Format.JSON:
        print_json(segment_facts_as_json(name, found, told, verdict))
    else:
        print_segment(name, found, told, verdict)


def _show_offset(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    offset: int,
    output: Format,
) -> None:
    """Each segment that holds the offset; where none does, the deleted one that did."""
    listed = () if facts is None else facts.case.segments
    ids = [s.remote_log_segment_id.id for s in listed if s.start_offset <= offset <= s.end_offset]
    if not ids:
        try:
            deleted = deleted_segment_at(manager, name, offset)
        except RemoteResourceNotFoundError as e:
            raise _unknown_partition(name) from e
        if deleted is None or not _may_have_held(manager, name, deleted, offset):
            raise CommandError(_why_nowhere(name, facts, offset))
        ids = [deleted]
    for id in ids:
        _show_segment(manager, name, facts, id, output)


def _may_have_held(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, id: UUID, offset: int
) -> bool:
    """Where a segment that was purged began is not kept any more."""
    found = segment_facts(manager, name, id)
    metadata = None if found is None else found.metadata
    return metadata is None or metadata.start_offset <= offset


def _explained(facts: PartitionFacts | None, id: UUID) -> SegmentExplanation | None:
    """None: retention does not look at it."""
    segments = () if facts is None else facts.case.segments
    segment = next((s for s in segments if s.remote_log_segment_id.id == id), None)
    return None if facts is None or segment is None else explain_segment(facts.case, segment)


def _verdict(
    facts: PartitionFacts | None, found: SegmentFacts, told: SegmentExplanation | None
) -> str:
    deleted = deleted_text(found)
    if deleted is not None:
        return f"deleted: {deleted}"
    if facts is None or told is None:
        return "gone: it is not known any more, and no event that is kept says who deleted it"
    removal = removal_text(facts)
    if removal is not None and told.standing is not Standing.DUE:
        return f"goes with its partition: {removal}"
    return verdict_text(facts, told)


def _why_nowhere(name: TopicIdPartition, facts: PartitionFacts | None, offset: int) -> str:
    where = f"no segment of {_text(name)} holds offset {offset}"
    if facts is None:
        return f"{where}: the partition was removed, and no event that is kept names one"
    state = facts.case.state
    gap = next((g for g in state.gaps if g.start_offset <= offset <= g.end_offset), None)
    if gap is not None:
        return f"{where}: {gap.kind}, offsets {gap.start_offset}-{gap.end_offset}"
    if offset < state.log_start_offset:
        raised = facts.log_start_raised
        why = "" if raised is None else f", raised {event_text(raised)}"
        return f"{where}: it is below the log start {state.log_start_offset}{why}"
    if state.report is not None and offset >= state.report.log_end_offset:
        return f"{where}: the log ended at {state.report.log_end_offset} when its leader reported"
    return f"{where}; it was not copied, or not yet: `sediment partitions` shows what is to ship"


def _unknown_partition(name: TopicIdPartition) -> CommandError:
    return CommandError(f"no partition {_text(name)} is known; `sediment partitions` lists them")


def _text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"
