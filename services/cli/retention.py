"""Show which segments the rules of retention would delete now: `sediment retention`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.retention import NO_REPORT, Deletion, RetentionPlan
from services.cli.connections import Call, TopicPartitions, command_group, with_services
from services.cli.names import chosen_partitions
from services.cli.output import CommandError, Table, print_json, print_tables, say
from services.cli.tables import Wide
from services.views.documents import Json, as_json, fields_as_json
from services.views.explanation import disabled_text, kafkas_text, waiting_text
from services.views.partition_facts import PartitionCase, partition_case
from services.views.texts import age_text, partition_text, size_text, sized

app = command_group()

_COLUMNS = ("offsets", "size", "rule", Wide("segment id"), "detail")


@app.command()
@with_services("rlmm", limit="--limit")
def retention(call: Call, topic_partitions: TopicPartitions = None) -> None:
    """Show what retention would delete now.

    Changes nothing. Uses the latest report of each partition's leader, whose age is shown.
    """
    most = call.rows_at_most
    with call.rlmm_client() as manager:
        names = chosen_partitions(manager, topic_partitions or [])
        cases = _cases_of(manager, names) if names else _all_cases(manager)
        evaluated = ((each, each.case.plan()) for each in cases)
        if call.is_json:
            for each in islice(evaluated, most):
                print_json(_as_json(*each))
            return
        pairs = sorted(evaluated, key=lambda pair: -pair[1].deleted_size_bytes)
    shown = pairs[:most]
    tables = [_summary(shown)] if shown else []
    tables += [
        (partition_text(case.name), _COLUMNS, [*map(_due, plan.deletions[:most])])
        for case, plan in shown
        if names and plan.deletions
    ]
    print_tables(*tables, is_wide=call.is_wide)
    if len(shown) < len(pairs):
        call.say_cut(f"of {len(pairs):,} partitions, those with the most bytes due")
    for case, plan in shown if names else []:
        if most is not None and len(plan.deletions) > most:
            call.say_cut(f"of {len(plan.deletions):,} due segments of {partition_text(case.name)}")
    size_bytes = sum(plan.deleted_size_bytes for _, plan in pairs)
    due = sized(sum(len(plan.deletions) for _, plan in pairs), size_bytes)
    say(f"due: {due}; nothing was changed")
    for case, plan in shown:
        for note in _notes(case, plan):
            say(f"{partition_text(case.name)}: {note}")


def _cases_of(
    manager: RemoteLogMetadataManager, names: Sequence[TopicIdPartition]
) -> Iterator[PartitionCase]:
    for name in names:
        try:
            yield partition_case(manager, name)
        except RemoteResourceNotFoundError as e:
            raise CommandError(str(e)) from e


def _all_cases(manager: RemoteLogMetadataManager) -> Iterator[PartitionCase]:
    """Read every partition, except those that are being deleted as a whole."""
    for summary in all_partitions(manager):
        if summary.delete_state is None:
            with suppress(RemoteResourceNotFoundError):  # deleted since it was listed
                yield partition_case(manager, summary.topic_id_partition)


def _notes(read: PartitionCase, plan: RetentionPlan) -> tuple[str, ...]:
    """Explain why more or less is deleted than the rules seem to require."""
    notes = plan.notes
    if read.kafka is not None:
        kafkas = f"Kafka is its retention owner: {kafkas_text(read.kafka)}"
        notes = (kafkas, *(note for note in notes if note != NO_REPORT))
    disabled = disabled_text(read.topic)
    return tuple(note for note in (disabled, waiting_text(read, plan), *notes) if note)


def _summary(pairs: Sequence[tuple[PartitionCase, RetentionPlan]]) -> Table:
    columns = ("partition", "due", "size", "retention owner", "report")
    wide = map(Wide, ("log start", "new log start"))
    return "", (*columns, *wide), [_as_row(*each) for each in pairs]


def _as_row(read: PartitionCase, plan: RetentionPlan) -> tuple[object, ...]:
    state, owner = read.case.state, read.topic.config.retention_owner
    by_default = "rlm" if read.kafka is None else "Kafka"
    start = state.log_start_offset
    return (
        partition_text(read.name),
        len(plan.deletions),
        size_text(plan.deleted_size_bytes) if plan.deletions else "-",
        by_default if owner is None else owner.value,
        "-" if state.report_age_ms is None else age_text(state.report_age_ms),
        str(start),
        str(start if plan.log_start_offset is None else plan.log_start_offset),
    )


def _due(deletion: Deletion) -> tuple[object, ...]:
    segment = deletion.segment
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        size_text(max(segment.segment_size_in_bytes, 0)),
        deletion.reason.value,
        uuid_to_text(segment.remote_log_segment_id.id),
        deletion.detail,
    )


def _as_json(read: PartitionCase, plan: RetentionPlan) -> Json:
    config, state = read.topic.config, read.case.state
    return {
        **fields_as_json(read.name),
        "revision": read.revision,
        "config_revision": read.topic.revision,
        **fields_as_json(config, "retention_ms", "retention_bytes", "retention_owner"),
        "hold": as_json(plan.retained_for),
        "log_start_offset": state.log_start_offset,
        "new_log_start_offset": plan.log_start_offset,
        "report_age_ms": state.report_age_ms,
        "deletions": as_json(plan.deletions),
        "deleted_size_bytes": plan.deleted_size_bytes,
        "waiting": as_json(plan.waiting),
        "waiting_size_bytes": plan.waiting_size_bytes,
        "waits_until_ms": read.topic.waits_until_ms,
        "polled_log": as_json(read.kafka),
        "notes": list(_notes(read, plan)),
    }
