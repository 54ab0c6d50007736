"""RLMM in process, on PostgreSQL: satisfies services.api's RemoteLogMetadataManager."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    PartitionPage,
    RemoteLogMetadataManager,
    SegmentPage,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.validation import require, require_int32, require_int64
from services.rlmm import listings, lookups, page_tokens, partitions, segments
from services.rlmm.limits import Limits, check_storable
from services.rlmm.outcomes import applied_once
from services.rlmm.schema import known_revision, revision_in
from services.rlmm.transactions import Transactions

MAX_LEADERSHIP_CHANGES = 20_000
"""Partitions in one call of on_partition_leadership_changes, which is one transaction."""


class SqlRemoteLogMetadataManager:
    """The contract is the Protocol's. Stateless over the database: any number may run beside
    each other. The schema is made by services.rlmm.schema.upgrade, never here."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._transactions = Transactions(engine)
        self._limits = limits or Limits()
        self._known_revision = known_revision()
        self._database = f"{engine.url.host}:{engine.url.port}/{engine.url.database}"

    def add_remote_log_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        is_start = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        require(
            is_start, "metadata.state", f"must be COPY_SEGMENT_STARTED, is {metadata.state.value}"
        )
        self._limits.check_segment(metadata)
        check_storable(context)

        def work(session: Session) -> MutationOutcome:
            partition = partitions.lock_or_create(session, metadata.topic_id_partition)
            return applied_once(
                session,
                partition,
                metadata,
                context,
                lambda: segments.add(session, partition, metadata, context),
            )

        return self._transactions.change(work)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_update(update)
        check_storable(context)
        tp = update.remote_log_segment_id.topic_id_partition

        def work(session: Session) -> MutationOutcome:
            partition = partitions.lock_known(session, tp)
            return applied_once(
                session,
                partition,
                update,
                context,
                lambda: segments.move(session, partition, update, context),
            )

        return self._transactions.change(work)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        check_storable(context)
        tp = metadata.topic_id_partition
        is_first = metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        lock = partitions.lock_or_create if is_first else partitions.lock_known

        def work(session: Session) -> MutationOutcome:
            partition = lock(session, tp)
            return applied_once(
                session,
                partition,
                metadata,
                context,
                lambda: partitions.move_deletion(session, partition, metadata, context),
            )

        return self._transactions.change(work)

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
    ) -> None:
        """All or nothing; locks in the order of (topic id, partition), as every batch does."""
        require_int32(broker_id, "broker_id", at_least=-1)
        count, most = len(leaders) + len(followers), MAX_LEADERSHIP_CHANGES
        require(count <= most, "leaders, followers", f"at most {most} partitions, has {count}")
        changes = sorted(
            {*leaders, *followers},
            key=lambda each: (
                each.topic_id_partition.topic_id,
                each.topic_id_partition.partition,
            ),
        )

        def work(session: Session) -> None:
            for change in changes:
                partitions.announce(session, change, broker_id)

        self._transactions.change(work)

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """RLMM keeps nothing for a broker's replica that would have to end with it."""
        require_int32(broker_id, "broker_id", at_least=-1)

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        return self._transactions.read(
            lambda connection: lookups.find_segment(
                connection,
                lookups.SEGMENT_FOR_OFFSET,
                topic_id_partition,
                epoch_for_offset,
                offset,
            )
        )

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        return self._transactions.read(
            lambda connection: lookups.find_segment(
                connection, lookups.NEXT_WITH_TXN_INDEX, topic_id_partition, epoch, offset
            )
        )

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        return self._transactions.read(
            lambda connection: lookups.highest_offset(connection, topic_id_partition, leader_epoch)
        )

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        return self._transactions.read(
            lambda connection: lookups.log_size(connection, topic_id_partition, leader_epoch)
        )

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        *,
        states: Sequence[RemoteLogSegmentState] = (),
        min_offset: int | None = None,
        if_revision_not: int | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> SegmentPage:
        query = listings.SegmentQuery(topic_id_partition, leader_epoch, states, min_offset)
        if if_revision_not is not None:
            require_int64(if_revision_not, "if_revision_not")
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(query.fingerprint(), page_token)
        return self._transactions.read(
            lambda connection: listings.list_segments(
                connection, query, if_revision_not=if_revision_not, limit=limit, after=after
            )
        )

    def list_partitions(self, *, page_size: int = 0, page_token: str = "") -> PartitionPage:
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(listings.PARTITIONS, page_token)
        return self._transactions.read(
            lambda connection: listings.list_partitions(connection, limit=limit, after=after)
        )

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        try:
            self.check()
        except RemoteStorageError:
            return False
        return True

    def check(self) -> None:
        """Is the database usable at all?

        Raises:
            RetriableRemoteStorageError: it is unreachable, or its schema is not this release's.
        """
        try:
            revision = self._transactions.read(revision_in)
        except RetriableRemoteStorageError as e:
            raise RetriableRemoteStorageError(f"{self._database}: {e}") from e
        if revision != self._known_revision:
            raise RetriableRemoteStorageError(
                f"{self._database}: the database has schema revision {revision}, this release "
                f"knows {self._known_revision}; `sediment db upgrade` makes it"
            )


if TYPE_CHECKING:

    def _satisfies(manager: SqlRemoteLogMetadataManager) -> RemoteLogMetadataManager:
        return manager
