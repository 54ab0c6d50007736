"""Record the leaders of partitions, and move their deletion from state to state."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import MutationOutcome
from services.api.errors import InvalidRequestError, InvalidStateTransitionError
from services.api.holds import Mark
from services.api.ids import TopicIdPartition
from services.api.partitions import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    delete_predecessor,
)
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segment_batches import MAX_CLUSTER_ID_LENGTH
from services.api.validation import require
from services.rlmm.changes import gaps
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Batch, Change
from services.rlmm.changes.idempotency import Records
from services.rlmm.changes.locked_partitions import LockedPartitions, lock_topics
from services.rlmm.database.db import execute, key_values
from services.rlmm.database.limits import check_text
from services.rlmm.guards import (
    FINISHED,
    MARKED,
    STARTED,
    Partition,
    fence,
    illegal_move,
    raise_leader_epoch,
    unknown_partition,
)

# Literal conditions, so that partial indexes are used.
_HAS_LIVE_SEGMENTS = """
    SELECT EXISTS (SELECT FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND state <> 'DELETE_SEGMENT_FINISHED')"""
_LATEST_EVENT = """
    SELECT max(revision) FROM events
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND kind = 'PARTITION_DELETE' AND to_state = %(state)s"""

# Locks and writes nothing if nothing is new: the id of a cluster does not change.
_RECORD_CLUSTER = """
    UPDATE topics SET cluster_id = %(cluster_id)s WHERE topic_id = ANY(ARRAY(
        SELECT topic_id FROM topics WHERE topic_id = ANY(%(topic_ids)s) AND cluster_id IS NULL
        ORDER BY topic_id FOR NO KEY UPDATE))"""
_DELETE_CLUSTER = "UPDATE topics SET cluster_id = NULL WHERE topic_id = %(topic_id)s"

MAX_PARTITIONS = 10_000
"""The most leaders, and followers, in one call, which is one transaction."""


def announce_all(
    connection: Connection,
    leaders: Sequence[PartitionLeadership],
    followers: Sequence[PartitionLeadership],
    broker_id: int,
    cluster_id: str | None,
) -> None:
    """Record leaders, all or none; see RemoteLogMetadataManager.on_partition_leadership_changes.

    Locks topics, then partitions in the order of (topic id, partition).
    """
    changes = sorted({*leaders, *followers}, key=_highest_epoch_of_each_partition_first)
    tps = [change.topic_id_partition for change in changes]
    lock_topics(connection, tps)
    batch = Batch(connection, LockedPartitions.lock_or_create(connection, tps))
    for change in changes:
        try:
            partition = batch.partitions.of(change.topic_id_partition).row
        except InvalidRequestError as e:
            raise InvalidRequestError(f"{_place(change, leaders, followers)}.{e}") from e
        # A deleted partition stays deleted: its topic id is never used again.
        if partition.delete_state != FINISHED.value:
            record_leader(batch.records, partition, change.leader_epoch, broker_id)
    batch.write()
    if cluster_id is not None:
        topic_ids = list({change.topic_id_partition.topic_id for change in changes})
        values = {"topic_ids": topic_ids, "cluster_id": cluster_id}
        execute(connection, _RECORD_CLUSTER, values)


def _place(
    change: PartitionLeadership,
    leaders: Sequence[PartitionLeadership],
    followers: Sequence[PartitionLeadership],
) -> str:
    """Return the path of the field that named the partition first."""
    if change in leaders:
        return f"leaders[{leaders.index(change)}]"
    return f"followers[{followers.index(change)}]"


def _highest_epoch_of_each_partition_first(change: PartitionLeadership) -> tuple[UUID, int, int]:
    """Return the sort key that puts a partition's highest epoch first.

    A partition that is named twice then makes one event.
    """
    tp, epoch = change.topic_id_partition, change.leader_epoch
    return tp.topic_id, tp.partition, 1 if epoch is None else -epoch


def record_leader(
    records: Records, partition: Partition, leader_epoch: int | None, broker_id: int
) -> None:
    """Record an event if the partition is new or its highest leader epoch rises.

    A leader that is already recorded makes no event, so idle partitions cost no write.
    """
    is_new = partition.revision == 0
    if raise_leader_epoch(partition, leader_epoch) or is_new:
        event = Event("LEADERSHIP", broker_id=broker_id, broker_leader_epoch=leader_epoch)
        records.change(partition, event)


def move_deletion(change: Change, metadata: RemotePartitionDeleteMetadata) -> MutationOutcome:
    """Move the partition's deletion to `metadata.state`, or count a repeat if it is in that
    state.
    """
    connection, partition, epoch = (
        change.connection,
        change.partition,
        change.context.broker_leader_epoch,
    )
    tp, target = metadata.topic_id_partition, metadata.state
    if target is MARKED:
        fence(partition, tp, epoch)
    present = partition.delete_state
    if present is not None and target.value in (present, MARKED.value):
        return _repeated(change, target)
    before = delete_predecessor(target)
    if present != (before.value if before else None):
        raise illegal_move(f"partition {tp}", present, target.value)
    if target is FINISHED and _value(connection, _HAS_LIVE_SEGMENTS, partition):
        raise InvalidStateTransitionError(f"partition {tp} still has segments; delete them first")
    change.locked.require_expected(change.context)
    if target is not FINISHED:
        mark = Mark.PARTITION if target is STARTED else Mark.PARTITION_MARK
        change.locked.require_not_held(mark)
    else:
        gaps.delete_all(connection, partition)
    partition.delete_state = target.value
    event = Event("PARTITION_DELETE", present, target.value, metadata.broker_id, epoch)
    return change.record(event)


def _value(connection: Connection, statement: str, partition: Partition, **values: object) -> Any:
    """Return the single value of a statement about a partition."""
    row = execute(connection, statement, {**key_values(partition.key), **values}).fetchone()
    assert row is not None
    return row[0]


def _repeated(change: Change, state: RemotePartitionDeleteState) -> MutationOutcome:
    """Count a repeat of `state` on its latest event.

    If the audit trail no longer has the event, the outcome has the present revision, of another
    event.
    """
    revision = _value(change.connection, _LATEST_EVENT, change.partition, state=state.value)
    if revision is None:
        return change.unchanged()
    return change.repeat(revision)


def require_bounded(partitions: Sequence[object], field: str) -> None:
    count = len(partitions)
    require(count <= MAX_PARTITIONS, field, f"must be at most {MAX_PARTITIONS}, are {count}")


def check_cluster_id(cluster_id: str) -> None:
    """Refuse an id that no cluster has.

    Raises:
        InvalidRequestError: the id is empty, too long, or cannot be stored.
    """
    length, most = len(cluster_id), MAX_CLUSTER_ID_LENGTH
    require(1 <= length <= most, "cluster_id", f"must be 1 to {most} characters, is {length}")
    check_text(cluster_id, "cluster_id")


@dataclass(frozen=True, slots=True)
class Undeletion:
    """The arguments of undelete_partition, but for the context."""

    topic_id_partition: TopicIdPartition


def lock_to_undelete(connection: Connection, tps: Collection[TopicIdPartition]) -> LockedPartitions:
    """Lock the topics, which `undelete` writes, and then the partitions."""
    lock_topics(connection, tps)
    return LockedPartitions.lock(connection, tps)


def undelete(change: Change, undeletion: Undeletion) -> MutationOutcome:
    """Remove the mark for deletion; see RemoteLogMetadataManager.undelete_partition.

    A mark changes nothing else of a partition. The topic's cluster is deleted, so that RLMs that
    watch the topic do not mark it again.
    """
    tp, partition = undeletion.topic_id_partition, change.partition
    present = partition.delete_state
    if present == FINISHED.value:
        raise unknown_partition(tp)
    if present is None:
        return change.unchanged()
    if present != MARKED.value:
        raise InvalidStateTransitionError(
            f"partition {tp} is in {present}: its removal has begun and cannot be undone"
        )
    change.locked.require_expected(change.context)
    partition.delete_state = None
    execute(change.connection, _DELETE_CLUSTER, key_values(partition.key))
    epoch = change.context.broker_leader_epoch
    return change.record(Event("PARTITION_DELETE", present, broker_leader_epoch=epoch))
