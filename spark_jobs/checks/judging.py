"""Judge segments in tasks, by the rules of `sediment reconcile`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import pyarrow as pa

from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects, shard_of
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.workflows.coverage import COUNTS, Coverage, Outcome
from services.workflows.deletion import Orphan
from services.workflows.reconcile import (
    ReconciliationPlan,
    anomaly_of,
    find_missing,
    findings_of,
    outcome_of,
)
from services.workflows.segment_views import (
    MetadataView,
    PartitionKey,
    ReconcileVerdict,
    StoreView,
    reconcile_verdicts,
    verdict_without_manifest,
)
from services.workflows.unfinished_copies import CopyKind, UnfinishedCopies, line_about
from spark_jobs.checks.objects import OBJECT_FIELDS, object_of, object_row, views_of
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import Row, batches_of, partition_key, rows_in, segment_of

FINDING, COUNTED, VERIFIED = "FINDING", "COUNTED", "VERIFIED"
UNREAD, UNFINISHED = "UNREAD", "UNFINISHED"
SHARDS = 256
"""Shards that distinguish findings."""

_BATCH = 500
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

VERDICTS_SCHEMA = pa.schema(
    [
        pa.field("what", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("segments", pa.int64()),
        pa.field("objects", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS if name != "segments"),
        pa.field("unread", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_id", pa.string()),
        pa.field("named", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("counts", pa.bool_()),
        pa.field("state", pa.string()),
        pa.field("is_committed", pa.bool_()),
        *OBJECT_FIELDS,
    ]
)
"""What judging found. COUNTED: `segments` and `objects` that were compared. VERIFIED: the counts of
RunCounts. UNREAD: a line about what cannot be read. UNFINISHED: a copy that never finished,
its kind and a line. FINDING: an anomaly (`named` is its object); the first of a segment `counts`;
an orphan has its object, and of its segment the state and whether the whole copy goes."""


def judge(
    batches: Iterable[pa.RecordBatch], services: Services, plan: ReconciliationPlan
) -> Iterator[pa.RecordBatch]:
    """Compare segments: rows of SEGMENT_KEY, `objects` and `row` to VERDICTS_SCHEMA.

    A partition's rows are adjacent, by start offset. `objects` are OBJECT_FIELDS of all locations,
    `row` is of a scan that began after the listing; null without them. Safe to run twice.
    """
    with (
        services.connected_rlmm() as rlmm,
        services.connected_rsm() as rsm,
        services.connected_objects() as objects,
    ):
        judging = _Judging(rlmm, rsm, objects, plan)
        for _, rows in groupby(rows_in(batches), key=partition_key):
            copies = UnfinishedCopies(plan.before_ms)
            while batch := list(islice(rows, _BATCH)):
                metadata = {
                    row["segment_id"]: segment_of(row["row"]) for row in batch if row["row"]
                }
                for each in metadata.values():
                    copies.add(each)
                verdict_rows = judging.rows_about(batch, metadata)
                yield from batches_of(verdict_rows, VERDICTS_SCHEMA)
            yield from batches_of(map(_row_of_copy, copies.unfinished()), VERDICTS_SCHEMA)


@dataclass(frozen=True)
class _Judging:
    """Compare segments of one partition at a time, with a row for each result."""

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    plan: ReconciliationPlan

    @cached_property
    def _view(self) -> MetadataView:
        """Read the names of all partitions, only when something is unclear."""
        return MetadataView(self.rlmm)

    def rows_about(
        self, batch: Sequence[Row], metadata: Mapping[str, RemoteLogSegmentMetadata]
    ) -> list[Row]:
        """Return what is found about segments of one partition; `metadata` by segment id."""
        partition = UUID(batch[0]["topic_id"]), batch[0]["partition"]
        views = {row["segment_id"]: views_of(row) for row in batch}
        made: list[Row] = []
        settled: dict[UUID, Outcome] = {}
        for verdict in self._verdicts(partition, views, metadata):
            findings = findings_of(verdict, self.plan)
            made += (_row_of(each, counts=each is findings[0]) for each in findings)
            if verdict.unread:
                made.append({"what": UNREAD, "unread": verdict.unread})
            if outcome := outcome_of(verdict, findings):
                settled[verdict.stored.id] = outcome
        coverage = Coverage()
        for each in metadata.values():
            if each.state is _FINISHED:
                outcome = settled.get(each.remote_log_segment_id.id)
                if outcome is None:
                    rows, outcome = self._of_missing(each)
                    made += rows
                coverage.count(each, outcome)
        stored = [view for of_segment in views.values() for view in of_segment]
        objects = sum(len(view.objects) for view in stored)
        made.append({"what": COUNTED, "segments": len(stored), "objects": objects})
        made += ({"what": VERIFIED, **row} for row in coverage.rows())
        shard = shard_of(partition[0], SHARDS)
        return [{**row, "shard": shard} for row in made]

    def _verdicts(
        self,
        partition: PartitionKey,
        views: dict[str, list[StoreView]],
        metadata: Mapping[str, RemoteLogSegmentMetadata],
    ) -> Iterator[ReconcileVerdict]:
        """Judge by the scanned rows if they suffice, else by rows and manifests that are read."""
        unclear: dict[int, list[StoreView]] = {}
        for segment_id, of_segment in views.items():
            row = metadata.get(segment_id)
            for stored in of_segment:
                # A scan leaves out deleted segments, so that no row may mean either.
                verdict = None if row is None else verdict_without_manifest(stored, row)
                if verdict is not None:
                    yield verdict
                else:
                    location_id = stored.objects[0].location.location_id
                    unclear.setdefault(location_id, []).append(stored)
        for listed in unclear.values():
            yield from reconcile_verdicts(self.objects, self._view, partition, listed)

    def _of_missing(self, metadata: RemoteLogSegmentMetadata) -> tuple[list[Row], Outcome]:
        missing, unread = find_missing(self._view, self.rsm, metadata)
        if unread:
            return [{"what": UNREAD, "unread": unread}], Outcome.UNREAD
        if missing is not None:
            return [_row_of(missing, counts=True)], Outcome.FAILED
        return [], Outcome.VERIFIED


def _row_of_copy(copy: tuple[CopyKind, RemoteLogSegmentMetadata]) -> Row:
    kind, metadata = copy
    return {
        "what": UNFINISHED,
        "shard": shard_of(metadata.topic_id_partition.topic_id, SHARDS),
        "kind": kind.value,
        "detail": line_about(kind, metadata),
    }


def _row_of(finding: Anomaly | Orphan, *, counts: bool) -> Row:
    anomaly = anomaly_of(finding)
    of_orphan: Row = {}
    if isinstance(finding, Orphan):
        state = None if finding.state is None else finding.state.name
        of_orphan = {
            **object_row(finding.stored),
            "state": state,
            "is_committed": finding.is_committed,
        }
    return {
        **of_orphan,
        "what": FINDING,
        "kind": anomaly.kind.value,
        "topic_id": str(anomaly.topic_id),
        "partition": anomaly.partition,
        "segment_id": str(anomaly.segment_id),
        "named": anomaly.object_key,
        "detail": anomaly.detail,
        "counts": counts,
    }


def finding_of(row: dict[str, Any]) -> Anomaly | Orphan:
    """Build the finding of a row of kind FINDING."""
    anomaly = Anomaly(
        AnomalyKind(row["kind"]),
        UUID(row["topic_id"]),
        row["partition"],
        UUID(row["segment_id"]),
        row["named"],
        row["detail"],
    )
    if row["object_key"] is None:
        return anomaly
    state = None if row["state"] is None else RemoteLogSegmentState[row["state"]]
    return Orphan(anomaly, object_of(row, row), state, row["is_committed"])
