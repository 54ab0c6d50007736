"""A task of a rebuild that is run again counts what its first attempt did; without Spark."""

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from services.api.errors import ThrottledError
from services.api.ids import TopicIdPartition
from services.api.segment_objects import ObjectQuery, all_segment_objects
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.workflows.rebuild import RebuildPlan
from services.workflows.rebuild_report import Rebuilt
from services.workflows.segment_views import store_views
from spark_jobs.checks.objects import object_row
from spark_jobs.checks.rebuilding import rebuild_partitions, rebuilt_of
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import Row
from tests.harness.served import served_manager
from tests.harness.tier import a_topic
from tests.harness.wrapper import Wrapper
from tests.spark.records_reads import ServedTier

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]


class InterruptedRlmm(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM, except that the caller does not learn of the first import's success."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.interrupted = 0

    def import_remote_log_segments(self, *arguments: Any) -> Any:
        done = self.real.import_remote_log_segments(*arguments)
        if not self.interrupted:
            self.interrupted += 1
            raise ThrottledError("the import was done")
        return done


def listed(services: Services, tp: TopicIdPartition) -> list[Row]:
    """Return a row for each segment of a partition in the store, as a rebuild's tasks get them."""
    with services.connected_objects() as objects:
        views = list(store_views(all_segment_objects(objects, ObjectQuery())))
    return [
        {
            "topic_id": str(view.partition[0]),
            "topic": None,
            "partition": view.partition[1],
            "segment_id": str(view.id),
            "objects": [object_row(each) for each in view.objects],
        }
        for view in views
        if view.partition == (tp.topic_id, tp.partition)
    ]


def test_an_import_that_is_repeated_is_counted(
    in_process: ServedTier, rlmm: SqlRemoteLogMetadataManager
) -> None:
    [tp] = a_topic()
    in_process.fill(tp, 3)
    interrupted = InterruptedRlmm(rlmm)
    with served_manager(interrupted) as (_, address):
        services = Services(address, in_process.rsm_address, retry_for_s=5.0)
        rows, plan = listed(services, tp), RebuildPlan(uuid4().hex, apply=True)

        def task() -> Rebuilt:
            done = Rebuilt()
            for batch in rebuild_partitions([pa.RecordBatch.from_pylist(rows)], services, plan):
                for row in batch.to_pylist():
                    done.add(rebuilt_of(row))
            return done

        done = task()
        assert (done.imported, done.same, interrupted.interrupted) == (len(rows), 0, 1)
        assert task() == done
