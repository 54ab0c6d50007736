"""Put into words why a segment is in the tier, expires or was deleted: `sediment explain`."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.operations import RecordedAnomaly
from services.api.partitions import PartitionEvent
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import NO_REPORT, Deletion
from services.api.retention_explained import (
    PartitionExplanation,
    SegmentExplanation,
    explain_partition,
)
from services.cli.command import argument, option
from services.cli.connections import Call, TopicPartition, command_group, with_services
from services.cli.names import find_partition
from services.cli.output import CommandError, Table
from services.views.documents import as_json, fields_as_json
from services.views.explanation import (
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
    partition_as_json,
    segment_anomalies,
    segment_facts,
    segment_facts_as_json,
    settings_that_count,
)
from services.views.texts import (
    age_text,
    epochs_text,
    partition_text,
    size_text,
    sized,
    state_text,
    time_text,
)

app = command_group()


def _partition_facts(facts: PartitionFacts, explanation: PartitionExplanation) -> Facts:
    state, removal = facts.case.state, removal_text(facts)
    gaps = ", ".join(f"{g.start_offset}-{g.end_offset} {g.kind}" for g in state.gaps)
    due = sized(len(explanation.plan.deletions), explanation.plan.deleted_size_bytes)
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
        ("due now", due),
        ("next to expire", next_text(facts, explanation)),
        ("the next by size", size_rule_text(facts, explanation)),
        *notes,
        ("gaps", gaps or "none"),
        *(("hold", str(hold)) for hold in state.holds),
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
    through = report.copied_through_offset
    return (
        f"unchanged for {age_text(age_ms)}, of broker {report.broker_id} in leader epoch "
        f"{report.leader_epoch}: lag {size_text(report.lag_bytes)}, "
        f"{'nothing is copied' if through < 0 else f'copied through {through}'}"
    )


def _metadata_facts(facts: SegmentFacts) -> Facts:
    segment = facts.metadata
    if segment is None:
        ends = {event.key.split(":")[2] for event in facts.events if event.key}
        end = f"its last offset was {', '.join(sorted(ends))}; " if ends else ""
        return [("state", f"purged; {end}the rest is not kept")]
    since = "" if facts.since is None else f" {event_text(facts.since)}"
    leased = ", under a lease" if segment.copy_leased else ""
    epochs = epochs_text(segment.segment_leader_epochs)
    return [
        ("offsets", f"{segment.start_offset}-{segment.end_offset}, epochs {epochs}"),
        ("size", size_text(max(0, segment.segment_size_in_bytes))),
        ("latest record", time_text(segment.max_timestamp_ms)),
        ("state", f"{state_text(segment.state.value)}{leased}{since}"),
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


def _deletions(title: str, deletions: Sequence[Deletion]) -> Iterator[Table]:
    if deletions:
        rows = [(segment_text(d.segment), rule_text(d)) for d in deletions]
        yield title, ("segment", "rule"), rows


def _events(title: str, events: Sequence[PartitionEvent]) -> Table:
    rows = [(change_text(each), event_text(each)) for each in events]
    return title, ("change", "when, by whom, why"), rows


@app.command()
@with_services("rlmm")
def explain(
    call: Call,
    topic_partition: TopicPartition,
    segment: str = argument(
        "A segment's id; put -- before an id that starts with a dash. Default: explain "
        "the partition.",
        default="",
        metavar="SEGMENT",
        show_default=False,
    ),
    offset: int | None = option("Explain the segments that hold or held this offset.", min=0),
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
        try:
            facts = facts_or_none(manager, name)
            if id is not None:
                _show_segment(manager, name, facts, id, call)
            elif offset is not None:
                for each in _segments_at(manager, name, facts, offset):
                    _show_segment(manager, name, facts, each, call)
            elif facts is None:
                _show_removed(name, deletions_of_partition(manager, name), call)
            else:
                _show_partition(facts, explain_partition(facts.case), call)
        except RemoteResourceNotFoundError as e:
            raise CommandError(
                f"the tier has no partition {partition_text(name)}; `sediment topics list` lists "
                "its topics"
            ) from e


def _show_partition(facts: PartitionFacts, explanation: PartitionExplanation, call: Call) -> None:
    set_here = f"set for the topic, settings of revision {facts.topic.revision}"
    settings = [
        (name, "-1, no limit" if value == "-1" else value, set_here if is_set else "not set")
        for name, value, is_set in settings_that_count(facts)
    ]
    call.show(
        partition_as_json(facts, explanation),
        (partition_text(facts.name), ("", ""), _partition_facts(facts, explanation)),
        ("Settings", ("setting", "value", "source"), settings),
        *_deletions("Due now", explanation.plan.deletions),
        *_deletions("Due now, kept by holds", explanation.on_hold),
        lines=["nothing was changed"],
    )


def _show_removed(name: TopicIdPartition, events: Sequence[PartitionEvent], call: Call) -> None:
    call.show(
        {**fields_as_json(name), "delete_state": "removed", "events": as_json(events)},
        _events(f"{partition_text(name)}, removed", events),
    )


def _show_segment(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    id: UUID,
    call: Call,
) -> None:
    segment = segment_facts(manager, name, id)
    if segment is None:
        raise CommandError(
            f"RLMM has no segment {uuid_to_text(id)} of {partition_text(name)}, and the audit "
            "trail does not name it; list the segments with `sediment segments`, or search with "
            "--offset N"
        )
    explanation = explained(facts, id)
    verdict, anomalies = (
        verdict_of(facts, segment, explanation),
        segment_anomalies(manager, name, id),
    )
    rows = [
        ("verdict", verdict),
        ("anomalies", _anomalies_text(anomalies)),
        *_metadata_facts(segment),
        *([] if explanation is None else _retention_facts(explanation)),
    ]
    call.show(
        segment_facts_as_json(name, segment, explanation, verdict, anomalies),
        (f"{partition_text(name)}, segment {uuid_to_text(id)}", ("", ""), rows),
        _events("Events", segment.events),
    )


def _anomalies_text(anomalies: Sequence[RecordedAnomaly] | None) -> str:
    if anomalies is None:
        return "not read: they need the role auditor on all topics"
    texts = (
        f"{each.anomaly.kind.value}, last seen {time_text(each.last_seen_ms, 'seconds')}: "
        f"{each.anomaly.detail or each.anomaly.object_key or 'the whole segment'}"
        for each in anomalies
    )
    return "; ".join(texts) or "none recorded"


def _segments_at(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    facts: PartitionFacts | None,
    offset: int,
) -> list[UUID]:
    """Find each segment that holds the offset, or else the deleted one that did."""
    listed = () if facts is None else facts.case.segments
    ids = [s.remote_log_segment_id.id for s in listed if s.start_offset <= offset <= s.end_offset]
    if ids:
        return ids
    deleted = deleted_segment_at(manager, name, offset)
    last_known = None if deleted is None else segment_facts(manager, name, deleted)
    metadata = None if last_known is None else last_known.metadata
    # Of a purged segment the start is not kept: it may have held the offset.
    if deleted is None or (metadata is not None and metadata.start_offset > offset):
        raise CommandError(_why_nowhere(name, facts, offset))
    return [deleted]


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
    return f"{where}; it was not copied; `sediment partitions` shows the lag"
