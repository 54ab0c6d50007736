"""Compare manifests and metadata of partitions in tasks, by the rules of `sediment db rebuild`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import groupby
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteStorageError
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.workflows.rebuild import (
    NO_CHANGES,
    READERS,
    Rebuild,
    RebuildPlan,
    earlier_changes,
)
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt
from services.workflows.segment_views import MetadataView
from spark_jobs.checks.objects import views_of
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import Row, batches_of, partition_key, rows_in, topic_id_partition_of

_COUNTS = ("segments", "same", "incomplete", "imported", "finished")

REBUILT_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in (*_COUNTS, *(k.value for k in DifferenceKind))),
        pa.field("kind", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_id", pa.string()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
"""What a task has found and done: a row with its counts and no `kind`, then its differences."""


def rebuild_partitions(
    batches: Iterable[pa.RecordBatch], services: Services, plan: RebuildPlan
) -> Iterator[pa.RecordBatch]:
    """Compare and import partitions: rows of SEGMENT_KEY, `objects`, `topic` to REBUILT_SCHEMA.

    A partition's rows are adjacent, by start offset. `objects` are OBJECT_FIELDS of all locations;
    null in the one row of a partition that has none in the stores. `topic` is null if RLMM did not
    know the partition. Safe to run twice: what a task that failed has imported is counted then.
    """
    done = Rebuilt()
    with (
        services.connected_rlmm(retries=False) as rlmm,
        services.connected_rsm() as rsm,
        services.connected_objects() as objects,
        ThreadPoolExecutor(READERS) as readers,
    ):
        # Whole partitions: only from the audit trail is it known what a lost answer has imported.
        comparing = services.retried(_Comparing(rlmm, rsm, objects, plan, readers))
        for _, rows in groupby(rows_in(batches), key=partition_key):
            done.add(comparing.partition(list(rows)))
    yield from batches_of(_rows_of(done), REBUILT_SCHEMA)


@dataclass(frozen=True)
class _Comparing:
    """Compare one partition at a time."""

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    plan: RebuildPlan
    readers: ThreadPoolExecutor

    @cached_property
    def _view(self) -> MetadataView:
        return MetadataView(self.rlmm)

    def partition(self, rows: Sequence[Row]) -> Rebuilt:
        """Compare and import one partition from all its rows."""
        try:
            return self._compared(rows)
        except RemoteStorageError:
            self.__dict__.pop("_view", None)  # RLMM may know the partition by now
            raise

    def _compared(self, rows: Sequence[Row]) -> Rebuilt:
        rebuild = Rebuild(self.rlmm, self.rsm, self.objects, self.plan)
        listed = [each for row in rows for each in views_of(row)]
        if not listed:
            return rebuild.check_missing(topic_id_partition_of(rows[0]))
        partition = UUID(rows[0]["topic_id"]), rows[0]["partition"]
        tp, earlier = self._view.named(partition), NO_CHANGES
        if tp is not None and self.plan.apply:
            earlier = earlier_changes(self.rlmm, tp, self.plan.run_id)
        return rebuild.compare(self._view, partition, listed, self.readers, earlier)


def _rows_of(done: Rebuilt) -> Iterator[Row]:
    counts = {kind.value: done.counts[kind] for kind in DifferenceKind}
    yield {**{name: getattr(done, name) for name in _COUNTS}, **counts}
    for each in done.differences:
        ids = {"topic_id": str(each.topic_id), "segment_id": str(each.segment_id)}
        yield {**asdict(each), "kind": each.kind.value, **ids}


def rebuilt_of(row: Row) -> Rebuilt:
    """Build the result that a row of REBUILT_SCHEMA describes."""
    if row["kind"] is None:
        counts = Counter({kind: row[kind.value] for kind in DifferenceKind})
        return Rebuilt(**{name: row[name] for name in _COUNTS}, counts=counts)
    difference = {each.name: row[each.name] for each in fields(Difference)}
    difference["kind"] = DifferenceKind(row["kind"])
    difference |= {name: UUID(row[name]) for name in ("topic_id", "segment_id")}
    return Rebuilt(differences=[Difference(**difference)])
