"""What `sediment explain` prints for people."""

from collections.abc import Sequence

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partition_events import PartitionEvent
from services.api.retention import Deletion
from services.api.retention_explained import PartitionExplanation, SegmentExplanation
from services.cli.events import change_text
from services.cli.explain_facts import PartitionFacts, SegmentFacts
from services.cli.explain_json import settings_that_count
from services.cli.explain_text import (
    deleter_text,
    event_text,
    next_text,
    removal_text,
    rule_text,
    segment_text,
    size_rule_text,
    time_text,
)
from services.cli.output import print_table, say, size_text

Facts = list[tuple[str, str]]
_NO_LIMIT = "-1, no limit"


def print_partition(facts: PartitionFacts, told: PartitionExplanation) -> None:
    title = f"{facts.name.topic}-{facts.name.partition}"
    print_table(title, ("what", "as it is"), _partition_facts(facts, told))
    set_here = f"set for the topic, settings of revision {facts.topic.revision}"
    settings = [
        (name, _NO_LIMIT if value == "-1" else value, set_here if is_set else "not set")
        for name, value, is_set in settings_that_count(facts)
    ]
    print_table("Settings", ("setting", "value", "where from"), settings)
    _print_deletions("Due now", told.plan.deletions)
    _print_deletions("Due now but for the hold", told.on_hold)
    say("nothing was changed")


def print_segment(
    name: TopicIdPartition, facts: SegmentFacts, told: SegmentExplanation | None, verdict: str
) -> None:
    title = f"{name.topic}-{name.partition}, segment {uuid_to_text(facts.id)}"
    rows = [*_metadata_facts(facts), *([] if told is None else _retention_facts(told))]
    print_table(title, ("what", "as it is"), [("verdict", verdict), *rows])
    print_table("Its events", ("change", "when, by whom, why"), map(_event_row, facts.events))


def print_removed(name: TopicIdPartition, events: Sequence[PartitionEvent]) -> None:
    title = f"{name.topic}-{name.partition}, removed"
    print_table(title, ("change", "when, by whom, why"), map(_event_row, events))


def _partition_facts(facts: PartitionFacts, told: PartitionExplanation) -> Facts:
    state, removal = facts.case.state, removal_text(facts)
    gaps = ", ".join(f"{g.start_offset}-{g.end_offset} {g.kind}" for g in state.gaps)
    size = size_text(told.plan.deleted_size_bytes)
    notes = [("not applied", note) for note in told.plan.notes if note != told.size_note]
    return [
        ("being deleted", removal or "no"),
        ("who deletes what is due", deleter_text(facts)),
        ("log start offset", _log_start_text(facts)),
        ("latest report", _report_text(facts)),
        ("oldest segment", "none" if told.oldest is None else segment_text(told.oldest)),
        ("due now", f"{len(told.plan.deletions)} segments, {size}"),
        ("next, where the rules stop", next_text(facts, told)),
        ("the next by size", size_rule_text(facts, told)),
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


def _retention_facts(told: SegmentExplanation) -> Facts:
    off = told.divergence
    lineage = "within it" if off is None else f"off it by epoch {off.leader_epoch}: {off.why}"
    missing = told.bytes_missing
    rows = [("lineage", lineage), ("retention", told.standing.value)]
    if told.waits_for is not None:
        rows.append(("waits for", segment_text(told.waits_for)))
    if missing is not None:
        rows.append(("by size", f"once the partition is {missing:,} bytes larger"))
    return rows


def _print_deletions(title: str, deletions: Sequence[Deletion]) -> None:
    if deletions:
        rows = [(segment_text(d.segment), rule_text(d)) for d in deletions]
        print_table(title, ("segment", "rule"), rows)


def _event_row(event: PartitionEvent) -> tuple[object, ...]:
    return change_text(event), event_text(event)
