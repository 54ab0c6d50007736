"""Read the partitions that RLMM knows: the table `partitions`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.partitions import PartitionState, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionSummary, RemoteLogMetadataManager
from spark_jobs.tables.columns import Columns, Kind, epoch_rows, micros
from spark_jobs.tables.table import Table, Wanted, in_shards, known_partitions


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
    filters: ClassVar = ("topic", "state")
    states: ClassVar = tuple(RemotePartitionDeleteState.__members__)

    def tasks(self, rlmm: RemoteLogMetadataManager, wanted: Wanted) -> list[Any]:
        return in_shards(list(known_partitions(rlmm, wanted)), wanted.shards)

    def batches(
        self, rlmm: RemoteLogMetadataManager, task: list[PartitionSummary]
    ) -> Iterator[pa.RecordBatch]:
        return self.columns.batches(_rows(rlmm, task))


def _rows(rlmm: RemoteLogMetadataManager, task: list[PartitionSummary]) -> Iterator[dict[str, Any]]:
    for summary in task:
        try:
            read = rlmm.partition_state(summary.topic_id_partition)
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
