"""RLMM on SQL: who leads a partition, what its leader reports, and its end."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partition_changes import (
    MAX_REPORTED_EPOCHS,
    MAX_REPORTS,
    PartitionLeadership,
    ReportOutcome,
)
from services.api.partition_state import PartitionReport
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.validation import require, require_count, require_int32, require_int64, within
from services.rlmm import clusters, log_starts, partition_states, partitions
from services.rlmm.managing.database import OnDatabase
from services.rlmm.tables import PartitionRow

MAX_LEADERSHIP_CHANGES = 20_000
"""Partitions in one call of on_partition_leadership_changes, which is one transaction."""


class SqlPartitionChanges(OnDatabase):
    """Satisfies services.api.partition_changes.PartitionChanges."""

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        """All or nothing; locks topics, then partitions in the order of (topic id, partition)."""
        require_int32(broker_id, "broker_id", at_least=-1)
        if cluster_id is not None:
            clusters.check_cluster_id(cluster_id)
        count, most = len(leaders) + len(followers), MAX_LEADERSHIP_CHANGES
        require(count <= most, "leaders, followers", f"at most {most} partitions, has {count}")
        changes = sorted({*leaders, *followers}, key=_highest_epoch_of_each_partition_first)

        def work(session: Session) -> None:
            partitions.lock_topics(session, [change.topic_id_partition for change in changes])
            for change in changes:
                try:
                    partitions.announce(session, change, broker_id)
                except InvalidRequestError as e:
                    raise InvalidRequestError(f"{_place(change, leaders, followers)}.{e}") from e
            if cluster_id is not None:
                topic_ids = {change.topic_id_partition.topic_id for change in changes}
                clusters.note_cluster(session, topic_ids, cluster_id)

        self._transactions.change(work)

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """RLMM keeps nothing for a broker's replica that would have to end with it."""
        require_int32(broker_id, "broker_id", at_least=-1)

    def report_partition_state(self, reports: Sequence[PartitionReport]) -> list[ReportOutcome]:
        """Each report is a transaction of its own: one partition's lock at a time."""
        require_count(reports, "reports", MAX_REPORTS)
        epochs, most = sum(len(r.lineage.entries) for r in reports), MAX_REPORTED_EPOCHS
        require(epochs <= most, "reports", f"at most {most} leader epochs together, are {epochs}")
        return [self._take_report(report) for report in reports]

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require_int64(log_start_offset, "log_start_offset")
        change = log_starts.LogStartRaise(topic_id_partition, log_start_offset)
        return self._change_once(
            change,
            context,
            lambda session: partitions.lock_known(session, topic_id_partition),
            lambda session, partition: log_starts.raise_log_start(
                session, partition, change, context
            ),
            # A lower offset repeats no event in particular.
            counts_repeats=False,
        )

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        tp = metadata.topic_id_partition
        is_first = metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        known_or_new = partitions.lock_or_create if is_first else partitions.lock_known

        def lock(session: Session) -> PartitionRow:
            with within("metadata"):
                return known_or_new(session, tp)

        return self._change_once(
            metadata,
            context,
            lock,
            lambda session, partition: partitions.move_deletion(
                session, partition, metadata, context
            ),
            counts_repeats=False,  # of deletions that it knows, it does so itself
        )

    def _take_report(self, report: PartitionReport) -> ReportOutcome:
        try:
            self._limits.check_report(report)
            return self._transactions.change(
                lambda session: partition_states.take_report(session, report)
            )
        except RetriableRemoteStorageError:
            raise  # the database's: it would be every later item's too
        except RemoteStorageError as e:
            return e


def _place(
    change: PartitionLeadership,
    leaders: Sequence[PartitionLeadership],
    followers: Sequence[PartitionLeadership],
) -> str:
    """The path of the field that named it first."""
    if change in leaders:
        return f"leaders[{leaders.index(change)}]"
    return f"followers[{followers.index(change)}]"


def _highest_epoch_of_each_partition_first(change: PartitionLeadership) -> tuple[UUID, int, int]:
    """One that is named twice makes one event."""
    tp, epoch = change.topic_id_partition, change.leader_epoch
    return tp.topic_id, tp.partition, 1 if epoch is None else -epoch
