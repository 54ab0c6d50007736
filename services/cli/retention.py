"""Show which segments the rules of retention would delete now: `sediment retention`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from services.api.calls import AtRevision
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import PartitionState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.retention import NO_REPORT, Deletion, RetentionPlan
from services.api.retention_explained import KafkasPart, kafkas_part
from services.api.topic_config import StoredTopicConfig
from services.cli.connections import Call, command_group, find_partition, with_services
from services.cli.output import CommandError, print_json, print_table, say
from services.views.documents import fields_as_json
from services.views.explanation import disabled_text, kafkas_text
from services.views.partition_facts import deletion_as_json, kafka_as_json, read_partition
from services.views.texts import partition_text, size_text

app = command_group()


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """A partition and the deletions that retention would make in it."""

    name: TopicIdPartition
    state: AtRevision[PartitionState]
    topic: StoredTopicConfig
    plan: RetentionPlan
    kafka: KafkasPart | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Explain why more or less is deleted than the rules seem to require."""
        notes = self.plan.notes
        if self.kafka is not None:
            kafkas = f"Kafka owns its retention: {kafkas_text(self.kafka)}"
            notes = (kafkas, *(note for note in notes if note != NO_REPORT))
        disabled = disabled_text(self.topic.config)
        return notes if disabled is None else (disabled, *notes)


@app.command()
@with_services("rlmm")
def retention(
    call: Call,
    topic_partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC-PARTITION",
            help="For example orders-0, or TOPIC_ID:orders-0 if several topics have had this name. "
            "Default: every partition.",
        ),
    ] = None,
) -> None:
    """Show what retention would delete now.

    Changes nothing. Uses the latest report of each partition's leader, whose age is shown.
    """
    with call.rlmm_client() as manager:
        names = [find_partition(manager, text) for text in topic_partitions or []]
        evaluated = _evaluate_these(manager, names) if names else _evaluate_all(manager)
        if call.is_json:
            for one in evaluated:
                print_json(_as_json(one))
            return
        found = list(evaluated)
    _print_summary(found)
    for one in found if names else ():
        _print_deletions(one)
    for one in found:
        for note in one.notes:
            say(f"{partition_text(one.name)}: {note}")


def _evaluate_these(
    manager: RemoteLogMetadataManager, names: Sequence[TopicIdPartition]
) -> Iterator[_Evaluated]:
    for name in names:
        try:
            yield _evaluate(manager, name)
        except RemoteResourceNotFoundError as e:
            raise CommandError(str(e)) from e


def _evaluate_all(manager: RemoteLogMetadataManager) -> Iterator[_Evaluated]:
    """Evaluate every partition, except those that are being deleted as a whole."""
    for summary in all_partitions(manager):
        if summary.delete_state is not None:
            continue
        try:
            yield _evaluate(manager, summary.topic_id_partition)
        except RemoteResourceNotFoundError:
            continue  # deleted since it was listed


def _evaluate(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> _Evaluated:
    """Evaluate a partition by its stored report; RLM sends a new report before it deletes."""
    topic, snapshot = read_partition(manager, name)
    state = AtRevision(snapshot.state, snapshot.revision)
    kafka = kafkas_part(snapshot.segments, snapshot.state)
    return _Evaluated(name, state, topic, snapshot.plan(topic.config), kafka)


def _print_summary(found: Sequence[_Evaluated]) -> None:
    columns = (
        "partition",
        "log start",
        "new log start",
        "to delete",
        "bytes",
        "retention by",
        "latest report",
    )
    print_table("Retention now", columns, map(_as_row, found))
    segments = sum(len(one.plan.deletions) for one in found)
    size = size_text(sum(one.plan.deleted_size_bytes for one in found))
    say(f"{segments} segments ({size}) are due; nothing was changed")


def _as_row(one: _Evaluated) -> tuple[object, ...]:
    log_start = one.state.value.log_start_offset
    raised = one.plan.log_start_offset
    age_ms = one.state.value.report_age_ms
    return (
        partition_text(one.name),
        log_start,
        log_start if raised is None else raised,
        len(one.plan.deletions),
        one.plan.deleted_size_bytes,
        _owner(one.topic) or ("rlm (default)" if one.kafka is None else "Kafka"),
        "none" if age_ms is None else f"{age_ms // 1000} s ago",
    )


def _print_deletions(one: _Evaluated) -> None:
    columns = ("offsets", "bytes", "rule", "detail", "segment id")
    print_table(partition_text(one.name), columns, map(_deletion_row, one.plan.deletions))


def _deletion_row(deletion: Deletion) -> tuple[object, ...]:
    segment = deletion.segment
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        segment.segment_size_in_bytes,
        deletion.reason.value,
        deletion.detail,
        uuid_to_text(segment.remote_log_segment_id.id),
    )


def _as_json(one: _Evaluated) -> dict[str, object]:
    config, state = one.topic.config, one.state.value
    return {
        **fields_as_json(one.name),
        "revision": one.state.revision,
        "config_revision": one.topic.revision,
        **fields_as_json(config, "retention_ms", "retention_bytes", "retention_owner", "hold"),
        "log_start_offset": state.log_start_offset,
        "new_log_start_offset": one.plan.log_start_offset,
        "report_age_ms": state.report_age_ms,
        "deletions": [*map(deletion_as_json, one.plan.deletions)],
        "deleted_size_bytes": one.plan.deleted_size_bytes,
        "polled_log": kafka_as_json(one.kafka),
        "notes": list(one.notes),
    }


def _owner(topic: StoredTopicConfig) -> str | None:
    owner = topic.config.retention_owner
    return None if owner is None else owner.value
