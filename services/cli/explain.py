"""Put into words why a segment is in the tier, expires or was deleted: `sediment explain`."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import PartitionEvent
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import NO_REPORT, Deletion
from services.api.retention_explained import (
    PartitionExplanation,
    SegmentExplanation,
    explain_partition,
)
from services.cli.connections import (
    Call,
    TopicPartition,
    command_group,
    find_partition,
    with_services,
)
from services.cli.output import CommandError, print_json, print_table, say
from services.views.documents import fields_as_json
from services.views.explanation import (
    _NO_LIMIT,
    Facts,
    change_text,
    deleter_text,
    event_text,
    explained,
    facts_or_none,
    kafkas_text,
    lineage_text,
    next_text,
    removal_text,
    rule_text,
    segment_text,
    size_rule_text,
    verdict_of,
)
from services.views.partition_facts import (
    PartitionFacts,
    SegmentFacts,
    deleted_segment_at,
    deletions_of_partition,
    event_as_json,
    partition_as_json,
    segment_facts,
    segment_facts_as_json,
    settings_that_count,
)
from services.views.texts import partition_text, size_text, time_text

app = command_group()


def print_partition(facts: PartitionFacts, explanation: PartitionExplanation) -> None:
    title = partition_text(facts.name)
    print_table(title, ("what", "value"), _partition_facts(facts, explanation))
    set_here = f"set for the topic, settings of revision {facts.topic.revision}"
    settings = [
        (name, _NO_LIMIT if value == "-1" else value, set_here if is_set else "not set")
        for name, value, is_set in settings_that_count(facts)
    ]
    print_table("Settings", ("setting", "value", "source"), settings)
    _print_deletions("Due now", explanation.plan.deletions)
    _print_deletions("Due now, kept by the hold", explanation.on_hold)
    say("nothing was changed")


def print_segment(
    name: TopicIdPartition,
    facts: SegmentFacts,
    explanation: SegmentExplanation | None,
    verdict: str,
) -> None:
    title = f"{partition_text(name)}, segment {uuid_to_text(facts.id)}"
    rows = [
        *_metadata_facts(facts),
        *([] if explanation is None else _retention_facts(explanation)),
    ]
    print_table(title, ("what", "value"), [("verdict", verdict), *rows])
    print_table("Events", ("change", "when, by whom, why"), map(_event_row, facts.events))


def print_removed(name: TopicIdPartition, events: Sequence[PartitionEvent]) -> None:
    title = f"{partition_text(name)}, removed"
    print_table(title, ("change", "when, by whom, why"), map(_event_row, events))


def _partition_facts(facts: PartitionFacts, explanation: PartitionExplanation) -> Facts:
    state, removal = facts.case.state, removal_text(facts)
    gaps = ", ".join(f"{g.start_offset}-{g.end_offset} {g.kind}" for g in state.gaps)
    size = size_text(explanation.plan.deleted_size_bytes)
    kafka = facts.kafka
    hidden = {explanation.size_note, None if kafka is None else NO_REPORT}
    notes = [("not applied", note) for note in explanation.plan.notes if note not in hidden]
    kafkas = []
    if kafka is not None:
        kafkas = [("Kafka's log", kafkas_text(kafka)), ("lineage", lineage_text(kafka.log))]
    return [
        ("being deleted", removal or "no"),
        ("due segments deleted by", deleter_text(facts)),
        ("log start offset", _log_start_text(facts)),
        *kafkas,
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
        *(("export", str(export)) for export in state.export_positions),
    ]


def _log_start_text(facts: PartitionFacts) -> str:
    raised = facts.log_start_raised
    why = "the audit trail shows no raise"
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
    lineage = "within it" if off is None else f"off it at epoch {off.leader_epoch}: {off.why}"
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
@with_services("rlmm")
def explain(
    call: Call,
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
) -> None:
    """Explain why a segment is kept, expires or was deleted.

    Applies the rules of `sediment retention` and reads the audit trail; changes nothing. For a
    partition that was removed, pass TOPIC_ID:orders-0.
    """
    if segment and offset is not None:
        raise CommandError("SEGMENT and --offset exclude each other; pass one of the two")
    id = uuid_from_text(segment, "SEGMENT") if segment else None
    with call.rlmm_client() as manager:
        name = find_partition(manager, topic_partition)
        facts = facts_or_none(manager, name)
        if id is not None:
            _show_segment(manager, name, facts, id, call)
        elif offset is not None:
            _show_offset(manager, name, facts, offset, call)
        elif facts is None:
            _show_removed(manager, name, call)
        else:
            _show_partition(facts, call)


def _show_partition(facts: PartitionFacts, call: Call) -> None:
    explanation = explain_partition(facts.case)
    if call.is_json:
        print_json(partition_as_json(facts, explanation))
    else:
        print_partition(facts, explanation)


def _show_removed(manager: RemoteLogMetadataManager, name: TopicIdPartition, call: Call) -> None:
    try:
        events = deletions_of_partition(manager, name)
    except RemoteResourceNotFoundError as e:
        raise _unknown_partition(name) from e
    if call.is_json:
        deleted = [event_as_json(event) for event in events]
        print_json({**fields_as_json(name), "delete_state": "removed", "events": deleted})
    else:
        print_removed(name, events)


def _show_segment(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    id: UUID,
    call: Call,
) -> None:
    try:
        found = segment_facts(manager, name, id)
    except RemoteResourceNotFoundError as e:
        raise _unknown_partition(name) from e
    if found is None:
        raise CommandError(
            f"RLMM has no segment {uuid_to_text(id)} of {partition_text(name)}, and the audit "
            "trail does not name it; list the segments with `sediment segments`, or search with "
            "--offset N"
        )
    explanation = explained(facts, id)
    verdict = verdict_of(facts, found, explanation)
    if call.is_json:
        print_json(segment_facts_as_json(name, found, explanation, verdict))
    else:
        print_segment(name, found, explanation, verdict)


def _show_offset(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    offset: int,
    call: Call,
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
        _show_segment(manager, name, facts, id, call)


def _may_have_held(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, id: UUID, offset: int
) -> bool:
    """Return whether a deleted segment may have held an offset; a purged one has no start."""
    found = segment_facts(manager, name, id)
    metadata = None if found is None else found.metadata
    return metadata is None or metadata.start_offset <= offset


def _why_nowhere(name: TopicIdPartition, facts: PartitionFacts | None, offset: int) -> str:
    where = f"no segment of {partition_text(name)} holds offset {offset}"
    if facts is None:
        return f"{where}: the partition was removed, and the audit trail names no such segment"
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
    return f"{where}; it was not copied; `sediment partitions` shows what is left to copy"


def _unknown_partition(name: TopicIdPartition) -> CommandError:
    return CommandError(
        f"the tier has no partition {partition_text(name)}; `sediment topics list` lists its topics"
    )
