"""Read the partitions that RLMM knows, and its topics: the tables `partitions` and `topics`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.partitions import (
    PartitionState,
    RemotePartitionDeleteState,
    VerificationKind,
)
from services.api.remote_log_metadata_manager import PartitionSummary
from spark_jobs.tables.columns import Columns, Kind, epoch_rows, micros
from spark_jobs.tables.conditions import Condition, Relation
from spark_jobs.tables.table import (
    PARTITION_OPTIONS,
    Connected,
    Table,
    check_names,
    in_shards,
    known_partitions,
    known_verifications,
)


class PartitionsTable(Table):
    """Every partition that is known, with the latest report of its leader."""

    name = "partitions"
    columns = Columns(
        {
            "topic": Kind.STRING,
            "topic_id": Kind.STRING,
            "partition": Kind.INT,
            "revision": Kind.LONG,
            "delete_state": Kind.STRING,
            "marked_at": Kind.TIMESTAMP,
            "known_since": Kind.TIMESTAMP,
            "cluster_id": Kind.STRING,
            "log_start_offset": Kind.LONG,
            "lineage": Kind.EPOCHS,
            "gaps": Kind.GAPS,
            "highest_broker_leader_epoch": Kind.INT,
            "reported_at": Kind.TIMESTAMP,
            "broker_id": Kind.INT,
            "leader_epoch": Kind.INT,
            "local_log_start_offset": Kind.LONG,
            "log_end_offset": Kind.LONG,
            "high_watermark": Kind.LONG,
            "last_stable_offset": Kind.LONG,
            "only_local_bytes": Kind.LONG,
            "copied_through_offset": Kind.LONG,
        }
    )
    option_columns: ClassVar = {
        **PARTITION_OPTIONS,
        "state": ("delete_state", Relation.IN),
        "fromTime": ("known_since", Relation.AT_LEAST),
        "toTime": ("known_since", Relation.AT_MOST),
    }

    def check_states(self, states: Sequence[str]) -> None:
        check_names(states, RemotePartitionDeleteState)

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        return in_shards(list(known_partitions(connected, conditions)), shards)

    def batches(
        self,
        connected: Connected,
        task: list[PartitionSummary],
        conditions: Sequence[Condition],
    ) -> Iterator[pa.RecordBatch]:
        return self.columns.batches(self._rows(connected, task))

    def _rows(self, connected: Connected, task: list[PartitionSummary]) -> Iterator[dict[str, Any]]:
        for summary in task:
            try:
                read = connected.call(connected.rlmm.partition_state, summary.topic_id_partition)
            except RemoteResourceNotFoundError:
                continue  # it was removed since the driver listed it
            yield _row(replace(summary, revision=read.revision), read.value)


def _row(summary: PartitionSummary, state: PartitionState) -> dict[str, Any]:
    tp, report = summary.topic_id_partition, state.report
    deleting = summary.delete_state
    row: dict[str, Any] = {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": tp.partition,
        "revision": summary.revision,
        "delete_state": None if deleting is None else deleting.value,
        "marked_at": micros(summary.marked_at_ms),
        "known_since": micros(summary.known_since_ms),
        "cluster_id": summary.cluster_id,
        "log_start_offset": state.log_start_offset,
        "lineage": epoch_rows(state.lineage.entries),
        "gaps": [
            {"start_offset": gap.start_offset, "end_offset": gap.end_offset, "kind": gap.kind}
            for gap in state.gaps
        ],
        "highest_broker_leader_epoch": state.highest_broker_leader_epoch,
    }
    if report is not None:
        row |= {
            "reported_at": micros(state.reported_at_ms),
            "broker_id": report.broker_id,
            "leader_epoch": report.leader_epoch,
            "local_log_start_offset": report.local_log_start_offset,
            "log_end_offset": report.log_end_offset,
            "high_watermark": report.high_watermark,
            "last_stable_offset": report.last_stable_offset,
            "only_local_bytes": report.only_local_bytes,
            "copied_through_offset": report.copied_through_offset,
        }
    return row


@dataclass
class _Topic:
    """A topic, the number of its partitions, and when all of it was verified last."""

    topic_id: UUID
    name: str
    cluster_id: str | None
    partitions: int = 0
    deleting: int = 0
    verified_ms: dict[VerificationKind, int] = field(default_factory=dict)


class TopicsTable(Table):
    """Every topic with a known partition, with its settings."""

    name = "topics"
    columns = Columns(
        {
            "topic": Kind.STRING,
            "topic_id": Kind.STRING,
            "partitions": Kind.INT,
            "deleting_partitions": Kind.INT,
            "cluster_id": Kind.STRING,
            "settings": Kind.SETTINGS,
            "settings_revision": Kind.LONG,
            "reconciled_at": Kind.TIMESTAMP,
            "scrubbed_at": Kind.TIMESTAMP,
        }
    )
    option_columns: ClassVar = {
        "topic": ("topic", Relation.IN),
        "topicId": ("topic_id", Relation.IN),
    }

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        topics: dict[UUID, _Topic] = {}
        for summary in known_partitions(connected, conditions):
            tp = summary.topic_id_partition
            topic = topics.setdefault(
                tp.topic_id, _Topic(tp.topic_id, tp.topic, summary.cluster_id)
            )
            topic.partitions += 1
            topic.deleting += summary.delete_state is not None
        for each in known_verifications(connected, conditions):
            if each.verified.topic_id in topics and each.verified_parts == each.parts:
                topics[each.verified.topic_id].verified_ms[each.kind] = each.ended_ms
        return in_shards(list(topics.values()), shards)

    def batches(
        self, connected: Connected, task: list[_Topic], conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        return self.columns.batches(self._rows(connected, task))

    def _rows(self, connected: Connected, task: list[_Topic]) -> Iterator[dict[str, Any]]:
        for topic in task:
            try:
                stored = connected.call(connected.rlmm.topic_config, topic.topic_id)
            except RemoteResourceNotFoundError:
                continue  # it was removed since the driver listed it
            yield {
                "topic": topic.name,
                "topic_id": uuid_to_text(topic.topic_id),
                "partitions": topic.partitions,
                "deleting_partitions": topic.deleting,
                "cluster_id": topic.cluster_id,
                "settings": dict(stored.entries),
                "settings_revision": stored.revision,
                "reconciled_at": micros(topic.verified_ms.get(VerificationKind.RECONCILE)),
                "scrubbed_at": micros(topic.verified_ms.get(VerificationKind.SCRUB)),
            }
