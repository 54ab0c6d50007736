"""`sediment events`: a partition's audit trail."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partition_events import EventQuery, PartitionEvent
from services.api.partition_queries import all_events
from services.cli.connections import connected_rlmm, find_partition
from services.cli.output import Format, print_json, print_table

_NAMED_STATES = ("SEGMENT", "PARTITION_DELETE")


def run(
    topic_partition: str,
    segment: str,
    plan: str,
    after_revision: int,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    segment_id = uuid_from_text(segment, "--segment") if segment else None
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = find_partition(manager, topic_partition)
        found = all_events(manager, EventQuery(tp, after_revision, segment_id, plan))
        if output is Format.JSON:
            for event in found:
                print_json(_as_json(event))
        else:
            columns = ("revision", "at", "what", "segment id", "by", "why", "plan", "repeats")
            print_table(f"{tp.topic}-{tp.partition}", columns, map(_as_row, found))


def _as_json(event: PartitionEvent) -> dict[str, object]:
    segment_id = "" if event.segment_id is None else uuid_to_text(event.segment_id)
    return {**asdict(event), "segment_id": segment_id}


def _as_row(event: PartitionEvent) -> tuple[object, ...]:
    return (
        event.revision,
        datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        change_text(event),
        "-" if event.segment_id is None else uuid_to_text(event.segment_id),
        event.actor if event.broker_id < 0 else f"{event.actor}, broker {event.broker_id}",
        " ".join(text for text in (event.reason, event.rule_detail) if text) or "-",
        event.plan_id or "-",
        event.repeat_count,
    )


def change_text(event: PartitionEvent) -> str:
    """The states that it led from and to; where these are no names, behind the kind."""
    if not event.from_state and not event.to_state:
        return event.kind
    if event.from_state:
        change = f"{event.from_state} to {event.to_state or 'none'}"
    else:
        change = event.to_state
    return change if event.kind in _NAMED_STATES else f"{event.kind} {change}"
