"""Read the partitions that RLMM knows: the table `partitions`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.partitions import PartitionState, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionSummary, RemoteLogMetadataManager
from spark_jobs.sweeps.plan import Row, batches_of
from spark_jobs.tables.columns import EPOCHS, INT, LONG, STRING, TIMESTAMP, epoch_rows, micros
from spark_jobs.tables.table import Table, TableQuery, in_shards, known_partitions

_GAP = pa.struct({"start_offset": LONG, "end_offset": LONG, "kind": STRING})
_GAPS = pa.list_(pa.field("element", _GAP))
_REPORTED = (
    *("broker_id", "leader_epoch", "local_log_start_offset", "log_end_offset"),
    *("high_watermark", "last_stable_offset", "lag_bytes", "copied_through_offset"),
)


class PartitionsTable(Table):
    """Every partition that is known, with the latest report of its leader."""

    name = "partitions"
    columns = pa.schema(
        {
            "topic": STRING,
            "topic_id": STRING,
            "partition": INT,
            "revision": LONG,
            "delete_state": STRING,
            "marked_at": TIMESTAMP,
            "known_since": TIMESTAMP,
            "cluster_id": STRING,
            "log_start_offset": LONG,
            "lineage": EPOCHS,
            "gaps": _GAPS,
            "highest_broker_leader_epoch": INT,
            "reported_at": TIMESTAMP,
            "broker_id": INT,
            "leader_epoch": INT,
            "local_log_start_offset": LONG,
            "log_end_offset": LONG,
            "high_watermark": LONG,
            "last_stable_offset": LONG,
            "lag_bytes": LONG,
            "copied_through_offset": LONG,
        }
    )
    filters: ClassVar = ("topic", "state")
    states: ClassVar = tuple(RemotePartitionDeleteState.__members__)

    def tasks(self, rlmm: RemoteLogMetadataManager, query: TableQuery) -> list[Any]:
        return in_shards(list(known_partitions(rlmm, query)), query.shards)

    def batches(
        self, rlmm: RemoteLogMetadataManager, task: list[PartitionSummary]
    ) -> Iterator[pa.RecordBatch]:
        return batches_of(_rows(rlmm, task), self.columns)


def _rows(rlmm: RemoteLogMetadataManager, task: list[PartitionSummary]) -> Iterator[Row]:
    for summary in task:
        try:
            read = rlmm.partition_state(summary.topic_id_partition)
        except RemoteResourceNotFoundError:
            continue  # it was removed since the driver listed it
        yield _row(replace(summary, revision=read.revision), read.value)


def _row(summary: PartitionSummary, state: PartitionState) -> Row:
    tp, report = summary.topic_id_partition, state.report
    deleting = summary.delete_state
    row: Row = {
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
            **{name: getattr(report, name) for name in _REPORTED},
        }
    return row
