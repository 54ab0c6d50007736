"""Explain why a segment is in the tier, expires or was deleted: `sediment explain`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import PartitionEvent, PartitionReport
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import Deletion
from services.api.retention_explained import (
    Due,
    PartitionExplanation,
    SegmentExplanation,
    Standing,
    explain_partition,
    explain_segment,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlmm,
    TopicPartition,
    command_group,
    connected_rlmm,
    find_partition,
)
from services.cli.explain_facts import (
    PartitionFacts,
    SegmentFacts,
    deleted_segment_at,
    deleted_text,
    deleter_text,
    deletions_of_partition,
    event_text,
    next_text,
    partition_facts,
    removal_text,
    rule_text,
    segment_facts,
    segment_text,
    size_rule_text,
    verdict_text,
)
from services.cli.output import (
    CommandError,
    Format,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
)
from services.cli.segments import change_text, event_as_json

app = command_group()

Json = dict[str, object]


def name_as_json(name: TopicIdPartition) -> Json:
    return {
        "topic_id": uuid_to_text(name.topic_id),
        "topic": name.topic,
        "partition": name.partition,
    }


def partition_as_json(facts: PartitionFacts, explanation: PartitionExplanation) -> Json:
    state, delete_state = facts.case.state, facts.summary.delete_state
    return {
        **name_as_json(facts.name),
        "revision": facts.revision,
        "config_revision": facts.topic.revision,
        "read_at_ms": facts.case.now_ms,
        "settings": {
            name: {"value": value, "is_set": is_set}
            for name, value, is_set in settings_that_count(facts)
        },
        "delete_state": None if delete_state is None else delete_state.value,
        "marked_at_ms": facts.summary.marked_at_ms,
        "log_start_offset": state.log_start_offset,
        "log_start_raised": _event_or_none(facts.log_start_raised),
        "report": None if state.report is None else _report(state.report, state.report_age_ms),
        "size_note": explanation.size_note,
        "oldest": None if explanation.oldest is None else segment_as_json(explanation.oldest),
        "due": [_deletion(deletion) for deletion in explanation.plan.deletions],
        "due_bytes": explanation.plan.deleted_size_bytes,
        "on_hold": [_deletion(deletion) for deletion in explanation.on_hold],
        "next": None if explanation.next is None else explanation_as_json(explanation.next),
        "gaps": [asdict(gap) for gap in state.gaps],
        "notes": list(explanation.plan.notes),
    }


def settings_that_count(facts: PartitionFacts) -> list[tuple[str, str, bool]]:
    """List the settings that decide, each with its value as text and whether it is set."""
    config, entries = facts.topic.config, facts.topic.entries
    owner = config.retention_owner
    values = {
        "retention.ms": str(config.retention_ms),
        "retention.bytes": str(config.retention_bytes),
        "sediment.retention.owner": "rlm" if owner is None else owner.value,
        "sediment.hold": str(config.hold).lower(),
        "sediment.sweep.paused": str(config.sweep_paused).lower(),
    }
    return [(name, value, name in entries) for name, value in values.items()]


def segment_facts_as_json(
    name: TopicIdPartition,
    facts: SegmentFacts,
    explanation: SegmentExplanation | None,
    verdict: str,
) -> Json:
    """Describe a segment; `explanation` is None if retention does not consider it."""
    metadata = facts.metadata
    return {
        **name_as_json(name),
        "segment_id": uuid_to_text(facts.id),
        "segment": None if metadata is None else segment_as_json(metadata),
        "since": _event_or_none(facts.since),
        "verdict": verdict,
        "retention": None if explanation is None else explanation_as_json(explanation),
        "deletion": _event_or_none(facts.deletion),
        "events": [event_as_json(event) for event in facts.events],
    }


def explanation_as_json(explanation: SegmentExplanation) -> Json:
    return {
        "segment": segment_as_json(explanation.segment),
        "standing": explanation.standing.name,
        "due": _due(explanation.due),
        "once_clear": _due(explanation.once_clear),
        "bytes_missing": explanation.bytes_missing,
        "waits_for": None
        if explanation.waits_for is None
        else segment_as_json(explanation.waits_for),
        "divergence": None if explanation.divergence is None else asdict(explanation.divergence),
    }


def segment_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    return {
        "segment_id": uuid_to_text(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "state": segment.state.value,
        "copy_leased": segment.copy_leased,
        "segment_leader_epochs": [
            [e.leader_epoch, e.start_offset] for e in segment.segment_leader_epochs
        ],
    }


def _event_or_none(event: PartitionEvent | None) -> Json | None:
    return None if event is None else event_as_json(event)


def _due(due: Due | None) -> Json | None:
    return None if due is None else {"at_ms": due.at_ms, **_rule(due.deletion)}


def _deletion(deletion: Deletion) -> Json:
    return {**segment_as_json(deletion.segment), **_rule(deletion)}


def _rule(deletion: Deletion) -> Json:
    return {"reason": deletion.reason.value, "detail": deletion.detail}


def _report(report: PartitionReport, age_ms: int | None) -> Json:
    return {
        "age_ms": age_ms,
        "broker_id": report.broker_id,
        "leader_epoch": report.leader_epoch,
        "log_end_offset": report.log_end_offset,
        "only_local_bytes": report.only_local_bytes,
        "copied_through_offset": report.copied_through_offset,
    }


Facts = list[tuple[str, str]]
_NO_LIMIT = "-1, no limit"


def print_partition(facts: PartitionFacts, explanation: PartitionExplanation) -> None:
    title = f"{facts.name.topic}-{facts.name.partition}"
    print_table(title, ("what", "value"), _partition_facts(facts, explanation))
    set_here = f"set for the topic, settings of revision {facts.topic.revision}"
    settings = [
        (name, _NO_LIMIT if value == "-1" else value, set_here if is_set else "not set")
        for name, value, is_set in settings_that_count(facts)
    ]
    print_table("Settings", ("setting", "value", "source"), settings)
    _print_deletions("Due now", explanation.plan.deletions)
    _print_deletions("Due now but for the hold", explanation.on_hold)
    say("nothing was changed")


def print_segment(
    name: TopicIdPartition,
    facts: SegmentFacts,
    explanation: SegmentExplanation | None,
    verdict: str,
) -> None:
    title = f"{name.topic}-{name.partition}, segment {uuid_to_text(facts.id)}"
    rows = [
        *_metadata_facts(facts),
        *([] if explanation is None else _retention_facts(explanation)),
    ]
    print_table(title, ("what", "value"), [("verdict", verdict), *rows])
    print_table("Its events", ("change", "when, by whom, why"), map(_event_row, facts.events))


def print_removed(name: TopicIdPartition, events: Sequence[PartitionEvent]) -> None:
    title = f"{name.topic}-{name.partition}, removed"
    print_table(title, ("change", "when, by whom, why"), map(_event_row, events))


def _partition_facts(facts: PartitionFacts, explanation: PartitionExplanation) -> Facts:
    state, removal = facts.case.state, removal_text(facts)
    gaps = ", ".join(f"{g.start_offset}-{g.end_offset} {g.kind}" for g in state.gaps)
    size = size_text(explanation.plan.deleted_size_bytes)
    notes = [
        ("not applied", note) for note in explanation.plan.notes if note != explanation.size_note
    ]
    return [
        ("being deleted", removal or "no"),
        ("who deletes what is due", deleter_text(facts)),
        ("log start offset", _log_start_text(facts)),
        ("latest report", _report_text(facts)),
        (
            "oldest segment",
            "none" if explanation.oldest is None else segment_text(explanation.oldest),
        ),
        ("due now", f"{len(explanation.plan.deletions)} segments, {size}"),
        ("next to expire", next_text(facts, explanation)),
        ("the next by size", size_rule_text(facts, explanation)),
        *notes,
        ("gaps", gaps or "none"),
    ]


def _log_start_text(facts: PartitionFacts) -> str:
    raised = facts.log_start_raised
    why = "no event that is kept raised it"
    if raised is not None:
        why = f"raised from {raised.from_state} to {raised.to_state} {event_text(raised)}"
    return f"{facts.case.state.log_start_offset}; {why}"


def _report_text(facts: PartitionFacts) -> str:
    state = facts.case.state
    report, age_ms = state.report, state.report_age_ms
    if report is None or age_ms is None:
        return "none"
    return (
        f"{age_ms // 1000} s ago, of broker {report.broker_id} in leader epoch "
        f"{report.leader_epoch}: {report.only_local_bytes:,} bytes not in the tier yet, copied "
        f"through {report.copied_through_offset}"
    )


def _metadata_facts(facts: SegmentFacts) -> Facts:
    segment = facts.metadata
    if segment is None:
        ends = {event.key.split(":")[2] for event in facts.events if event.key}
        end = f"its last offset was {', '.join(sorted(ends))}; " if ends else ""
        return [("state", f"purged; {end}the rest is not kept")]
    since = "" if facts.since is None else f" {event_text(facts.since)}"
    leased = ", under a lease" if segment.copy_leased else ""
    epochs = " ".join(f"{e.leader_epoch}:{e.start_offset}" for e in segment.segment_leader_epochs)
    return [
        ("offsets", f"{segment.start_offset}-{segment.end_offset}, epochs {epochs}"),
        ("size", size_text(max(0, segment.segment_size_in_bytes))),
        ("latest record", time_text(segment.max_timestamp_ms)),
        ("state", f"{segment.state.value}{leased}{since}"),
    ]


def _retention_facts(explanation: SegmentExplanation) -> Facts:
    off = explanation.divergence
    lineage = "within it" if off is None else f"off it by epoch {off.leader_epoch}: {off.why}"
    missing = explanation.bytes_missing
    rows = [("lineage", lineage), ("retention", explanation.standing.value)]
    if explanation.waits_for is not None:
        rows.append(("waits for", segment_text(explanation.waits_for)))
    if missing is not None:
        rows.append(("by size", f"once the partition is {missing:,} bytes larger"))
    return rows


def _print_deletions(title: str, deletions: Sequence[Deletion]) -> None:
    if deletions:
        rows = [(segment_text(d.segment), rule_text(d)) for d in deletions]
        print_table(title, ("segment", "rule"), rows)


def _event_row(event: PartitionEvent) -> tuple[object, ...]:
    return change_text(event), event_text(event)


@app.command()
def explain(
    topic_partition: TopicPartition,
    segment: Annotated[
        str,
        typer.Argument(
            metavar="SEGMENT",
            show_default=False,
            help="A segment's id; put -- before an id that starts with a dash. Default: explain "
            "the partition.",
        ),
    ] = "",
    offset: Annotated[
        int | None, typer.Option(min=0, help="Explain the segments that hold or held this offset.")
    ] = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Explain why a segment is kept, expires or was deleted.

    Applies the rules of `sediment retention` and reads the audit trail; changes nothing. For a
    partition that was removed, pass TOPIC_ID:orders-0.

    \b
    Exit codes:
      0  shown
      2  the partition, segment or offset is unknown
      3  RLMM could not be reached, or a partition changes faster than it can be
         read
    """
    if segment and offset is not None:
        raise CommandError("SEGMENT and --offset exclude each other; pass one of the two")
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
    """Read a partition; None if it was removed or never existed."""
    try:
        return partition_facts(manager, name)
    except RemoteResourceNotFoundError:
        return None


def _show_partition(facts: PartitionFacts, output: Format) -> None:
    explanation = explain_partition(facts.case)
    if output is Format.JSON:
        print_json(partition_as_json(facts, explanation))
    else:
        print_partition(facts, explanation)


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
    explanation = _explained(facts, id)
    verdict = _verdict(facts, found, explanation)
    if output is Format.JSON:
        print_json(segment_facts_as_json(name, found, explanation, verdict))
    else:
        print_segment(name, found, explanation, verdict)


def _show_offset(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    offset: int,
    output: Format,
) -> None:
    """Show each segment that holds the offset, or else the deleted one that did."""
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
    """Return whether a deleted segment may have held an offset; a purged one has no start."""
    found = segment_facts(manager, name, id)
    metadata = None if found is None else found.metadata
    return metadata is None or metadata.start_offset <= offset


def _explained(facts: PartitionFacts | None, id: UUID) -> SegmentExplanation | None:
    """Explain a segment; None if retention does not consider it."""
    segments = () if facts is None else facts.case.segments
    segment = next((s for s in segments if s.remote_log_segment_id.id == id), None)
    return None if facts is None or segment is None else explain_segment(facts.case, segment)


def _verdict(
    facts: PartitionFacts | None, found: SegmentFacts, explanation: SegmentExplanation | None
) -> str:
    deleted = deleted_text(found)
    if deleted is not None:
        return f"deleted: {deleted}"
    if facts is None or explanation is None:
        return "gone: it is not known any more, and no event that is kept says who deleted it"
    removal = removal_text(facts)
    if removal is not None and explanation.standing is not Standing.DUE:
        return f"goes with its partition: {removal}"
    return verdict_text(facts, explanation)


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
    return CommandError(
        f"the tier has no partition {_text(name)}; `sediment topics list` lists its topics"
    )


def _text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"
