"""`sediment retention`: what the rules of retention would delete now. Changes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.api.calls import AtRevision
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import PartitionState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.retention import Deletion, RetentionPlan
from services.api.topic_config import StoredTopicConfig
from services.cli.connections import connected_rlmm, find_partition
from services.cli.output import (
    CommandError,
    Format,
    disabled_text,
    print_json,
    print_table,
    say,
    size_text,
)
from services.rlm.retention.snapshot import Snapshot, take_snapshot

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class _Judged:
    """A partition, and what retention asks for in it."""

    name: TopicIdPartition
    state: AtRevision[PartitionState]
    topic: StoredTopicConfig
    plan: RetentionPlan

    @property
    def notes(self) -> tuple[str, ...]:
        """Why its plan is not all that goes, or not what one would expect."""
        disabled = disabled_text(self.topic.config)
        return self.plan.notes if disabled is None else (disabled, *self.plan.notes)


def run(topic_partitions: list[str], rlmm: str | None, data_dir: Path | None, out: Format) -> None:
    with connected_rlmm(rlmm, data_dir) as manager:
        names = [find_partition(manager, text) for text in topic_partitions]
        judged = _judge_these(manager, names) if names else _judge_all(manager)
        if out is Format.JSON:
            for one in judged:
                print_json(_as_json(one))
            return
        found = list(judged)
    _print_summary(found)
    for one in found if names else ():
        _print_deletions(one)
    for one in found:
        for note in one.notes:
            say(f"{_text(one.name)}: {note}")


def _judge_these(
    manager: RemoteLogMetadataManager, names: Sequence[TopicIdPartition]
) -> Iterator[_Judged]:
    for name in names:
        try:
            yield _judge(manager, name)
        except RemoteResourceNotFoundError as e:
            raise CommandError(str(e)) from e


def _judge_all(manager: RemoteLogMetadataManager) -> Iterator[_Judged]:
    """Of those that are being deleted everything goes, whatever retention says."""
    for summary in all_partitions(manager):
        if summary.delete_state is not None:
            continue
        try:
            yield _judge(manager, summary.topic_id_partition)
        except RemoteResourceNotFoundError:
            continue  # deleted since it was listed


def _judge(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> _Judged:
    """By the report that is stored; RLM itself reports anew before it deletes."""
    topic, snapshot = read_partition(manager, name)
    state = AtRevision(snapshot.state, snapshot.revision)
    return _Judged(name, state, topic, snapshot.plan(topic.config))


def read_partition(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> tuple[StoredTopicConfig, Snapshot]:
    """All that retention judges a partition by.

    Raises:
        ConcurrentUpdateError: the partition changes faster than it can be read.
    """
    attempt = 0
    while True:
        attempt += 1
        topic = manager.topic_config(name.topic_id)
        state = manager.partition_state(name)
        try:
            return topic, take_snapshot(manager, name, state)
        except ConcurrentUpdateError:
            if attempt == _ATTEMPTS:
                raise


def _print_summary(found: Sequence[_Judged]) -> None:
    columns = (
        "partition",
        "log start",
        "new log start",
        "to delete",
        "bytes",
        "kept by",
        "latest report",
    )
    print_table("Retention, if it ran now", columns, map(_as_row, found))
    segments = sum(len(one.plan.deletions) for one in found)
    size = size_text(sum(one.plan.deleted_size_bytes for one in found))
    say(f"{segments} segments, {size} due; nothing was changed")


def _as_row(one: _Judged) -> tuple[object, ...]:
    log_start = one.state.value.log_start_offset
    raised = one.plan.log_start_offset
    age_ms = one.state.value.report_age_ms
    return (
        _text(one.name),
        log_start,
        log_start if raised is None else raised,
        len(one.plan.deletions),
        one.plan.deleted_size_bytes,
        _owner(one.topic) or "rlm, by default",
        "none" if age_ms is None else f"{age_ms // 1000} s ago",
    )


def _print_deletions(one: _Judged) -> None:
    columns = ("offsets", "bytes", "why", "figures", "segment id")
    print_table(_text(one.name), columns, map(_deletion_row, one.plan.deletions))


def _deletion_row(deletion: Deletion) -> tuple[object, ...]:
    segment = deletion.segment
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        segment.segment_size_in_bytes,
        deletion.reason.value,
        deletion.detail,
        uuid_to_text(segment.remote_log_segment_id.id),
    )


def _as_json(one: _Judged) -> dict[str, object]:
    config, state = one.topic.config, one.state.value
    return {
        "topic_id": uuid_to_text(one.name.topic_id),
        "topic": one.name.topic,
        "partition": one.name.partition,
        "revision": one.state.revision,
        "config_revision": one.topic.revision,
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "retention_owner": _owner(one.topic),
        "hold": config.hold,
        "log_start_offset": state.log_start_offset,
        "new_log_start_offset": one.plan.log_start_offset,
        "report_age_ms": state.report_age_ms,
        "deletions": [_deletion_as_json(deletion) for deletion in one.plan.deletions],
        "deleted_size_bytes": one.plan.deleted_size_bytes,
        "notes": list(one.notes),
    }


def _deletion_as_json(deletion: Deletion) -> dict[str, object]:
    segment = deletion.segment
    return {
        "segment_id": uuid_to_text(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "state": segment.state.value,
        "reason": deletion.reason.value,
        "detail": deletion.detail,
    }


def _owner(topic: StoredTopicConfig) -> str | None:
    owner = topic.config.retention_owner
    return None if owner is None else owner.value


def _text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"
