"""Which deleted partitions are to be removed: those whose grace period is over."""

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import pyarrow as pa
from tenacity import Retrying

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partition_queries import PartitionSummary
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from spark_jobs.plan import PartitionPlan, batches_of, rows_of
from spark_jobs.retention_planning import ON_HOLD
from spark_jobs.schemas import PLAN_SCHEMA
from spark_jobs.services import Services

IN_GRACE = "marked for deletion, within the grace period"
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED


def plan_listed(
    batches: Iterable[pa.RecordBatch], services: Services, topics: Sequence[str], grace_ms: int
) -> Iterator[pa.RecordBatch]:
    """The partitions that RLMM lists as MARKED or STARTED, PLAN_SCHEMA without their segments.
    Takes nothing of `batches`: it is for one task alone."""
    with services.connected_rlmm() as rlmm:
        planner = RemovalPlanner(rlmm, services.retrying(), grace_ms)
        plans = (plan for topic in topics or [""] for plan in planner.plans(topic))
        yield from batches_of((row for plan in plans for row in rows_of(plan)), PLAN_SCHEMA)


def plan_removal(summary: PartitionSummary, is_on_hold: bool, grace_ms: int) -> PartitionPlan:
    """A partition that is MARKED or STARTED. A hold that is set after this is RLMM's to refuse."""
    marked_at_ms = summary.marked_at_ms or 0
    waits = summary.delete_state is _MARKED and summary.read_at_ms - marked_at_ms < grace_ms
    return PartitionPlan(
        topic_id_partition=summary.topic_id_partition,
        revision=summary.revision,
        skipped=ON_HOLD if is_on_hold else IN_GRACE if waits else None,
    )


class RemovalPlanner:
    """Plans what RLMM lists, page after page; asks for each topic's settings once. Not
    thread-safe."""

    def __init__(self, rlmm: RemoteLogMetadataManager, retrying: Retrying, grace_ms: int) -> None:
        self._rlmm = rlmm
        self._retrying = retrying
        self._grace_ms = grace_ms
        self._holds: dict[UUID, bool] = {}

    def plans(self, topic: str) -> Iterator[PartitionPlan]:
        """Of the partitions that are MARKED or STARTED of topics of this name; empty: of all."""
        for summary in self._partitions(topic):
            yield plan_removal(summary, self._is_on_hold(summary), self._grace_ms)

    def plan_again(self, topic_id_partition: TopicIdPartition) -> PartitionPlan:
        """As the partition is now.

        Raises:
            RemoteResourceNotFoundError: it is neither MARKED nor STARTED any more.
        """
        for plan in self.plans(topic_id_partition.topic):
            if plan.topic_id_partition == topic_id_partition:
                return plan
        raise RemoteResourceNotFoundError(
            f"partition {topic_id_partition} changed since the plan was made: it is not marked for "
            "deletion any more"
        )

    def _partitions(self, topic: str) -> Iterator[PartitionSummary]:
        token = ""
        while True:
            page = self._retrying(
                self._rlmm.list_partitions,
                topic=topic,
                delete_states=(_MARKED, _STARTED),
                page_token=token,
            )
            yield from page.partitions
            token = page.next_page_token
            if not token:
                return

    def _is_on_hold(self, summary: PartitionSummary) -> bool:
        topic_id = summary.topic_id_partition.topic_id
        if topic_id not in self._holds:
            stored = self._retrying(self._rlmm.topic_config, topic_id)
            self._holds[topic_id] = stored.config.hold
        return self._holds[topic_id]
