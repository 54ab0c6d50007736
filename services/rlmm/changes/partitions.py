"""Record the leaders of partitions, and move their deletion from state to state."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Uuid,
    any_,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import InvalidRequestError, InvalidStateTransitionError
from services.api.ids import TopicIdPartition
from services.api.partitions import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    delete_predecessor,
)
from services.api.remote_log_metadata_manager import MAX_CLUSTER_ID_LENGTH, PartitionLeadership
from services.api.validation import require
from services.rlmm.changes import gaps
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Batch, Change
from services.rlmm.changes.idempotency import Records
from services.rlmm.changes.locked_partitions import LockedPartitions, lock_topics
from services.rlmm.database.limits import check_text
from services.rlmm.database.tables import LIVE, EventRow, PartitionRow, SegmentRow, TopicRow
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

KNOWN = PartitionRow.delete_state.is_distinct_from(FINISHED.value)
"""Condition for the partitions that reads return."""

MAX_LEADERSHIP_CHANGES = 20_000
"""The most partitions in one call of on_partition_leadership_changes, which is one transaction."""


def announce_all(
    session: Session,
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
    lock_topics(session, tps)
    batch = Batch(session, LockedPartitions.lock_or_create(session, tps))
    for change in changes:
        try:
            partition = batch.partitions.of(change.topic_id_partition).row
        except InvalidRequestError as e:
            raise InvalidRequestError(f"{_place(change, leaders, followers)}.{e}") from e
        # A deleted partition stays deleted: its topic id is never used again.
        if partition.delete_state != FINISHED.value:
            note_leader(batch.records, partition, change.leader_epoch, broker_id)
    batch.write()
    if cluster_id is not None:
        topic_ids = {change.topic_id_partition.topic_id for change in changes}
        note_cluster(session, topic_ids, cluster_id)


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


def note_leader(
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
    session, partition, epoch = change.session, change.partition, change.context.broker_leader_epoch
    tp, target = metadata.topic_id_partition, metadata.state
    if target is MARKED:
        fence(partition, tp, epoch)
    present = partition.delete_state
    if present is not None and target.value in (present, MARKED.value):
        return _repeated(change, target)
    before = delete_predecessor(target)
    if present != (before.value if before else None):
        raise illegal_move(f"partition {tp}", present, target.value)
    if target is FINISHED and _has_live_segments(session, partition):
        raise InvalidStateTransitionError(f"partition {tp} still has segments; delete them first")
    change.locked.require_expected(change.context)
    if target is not FINISHED:
        change.locked.require_not_frozen()
    if target is STARTED:
        change.locked.require_no_hold()
    elif target is FINISHED:
        gaps.forget_all(session, partition)
    partition.delete_state = target.value
    event = Event("PARTITION_DELETE", present, target.value, metadata.broker_id, epoch)
    return change.record(event)


def _has_live_segments(session: Session, partition: Partition) -> bool:
    segments = exists().where(
        SegmentRow.topic_id == partition.topic_id,
        SegmentRow.partition == partition.partition,
        LIVE,
    )
    return bool(session.scalar(select(segments)))


def _repeated(change: Change, state: RemotePartitionDeleteState) -> MutationOutcome:
    """Count a repeat of `state` on its latest event.

    If the audit trail no longer has the event, the outcome has the present revision, of another
    event.
    """
    partition = change.partition
    revision = change.session.scalar(
        select(func.max(EventRow.revision)).where(
            EventRow.topic_id == partition.topic_id,
            EventRow.partition == partition.partition,
            EventRow.kind == "PARTITION_DELETE",
            EventRow.to_state == state.value,
        )
    )
    if revision is None:
        return change.unchanged()
    return change.repeat(revision)


def check_cluster_id(cluster_id: str) -> None:
    """Refuse an id that no cluster has.

    Raises:
        InvalidRequestError: the id is empty, too long, or cannot be stored.
    """
    length, most = len(cluster_id), MAX_CLUSTER_ID_LENGTH
    require(1 <= length <= most, "cluster_id", f"must be 1 to {most} characters, is {length}")
    check_text(cluster_id, "cluster_id")


def note_cluster(session: Session, topic_ids: Iterable[UUID], cluster_id: str) -> None:
    """Record the cluster of those topics that have none.

    A recorded cluster stays, because the id of a cluster does not change. The caller has locked the
    topics' partitions. If nothing is new, nothing is locked or written.
    """
    unknown = (
        select(TopicRow.topic_id)
        .where(_among(topic_ids), TopicRow.cluster_id.is_(None))
        .order_by(TopicRow.topic_id)
        .with_for_update(key_share=True)
    )
    found = session.scalars(unknown).all()
    if found:
        _set(session, found, cluster_id)


def forget_cluster(session: Session, topic_id: UUID) -> None:
    """Delete a topic's recorded cluster; the caller locked the topic before its partitions."""
    _set(session, [topic_id], None)


def _set(session: Session, topic_ids: Iterable[UUID], cluster_id: str | None) -> None:
    changed = update(TopicRow).where(_among(topic_ids)).values(cluster_id=cluster_id)
    session.execute(changed, execution_options={"synchronize_session": False})


def _among(topic_ids: Iterable[UUID]) -> ColumnElement[bool]:
    return TopicRow.topic_id == any_(literal(list(topic_ids), ARRAY(Uuid)))


@dataclass(frozen=True, slots=True)
class Undeletion:
    """The arguments of undelete_partition, but for the context."""

    topic_id_partition: TopicIdPartition


def lock_to_undelete(session: Session, tps: Collection[TopicIdPartition]) -> LockedPartitions:
    """Lock the topics, which `undelete` writes, and then the partitions."""
    lock_topics(session, tps)
    return LockedPartitions.lock(session, tps)


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
    forget_cluster(change.session, partition.topic_id)
    epoch = change.context.broker_leader_epoch
    return change.record(Event("PARTITION_DELETE", present, broker_leader_epoch=epoch))
