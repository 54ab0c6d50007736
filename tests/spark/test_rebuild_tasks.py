"""A task of a rebuild that is run again counts what its first attempt did; without Spark."""

from typing import Any, cast
from uuid import uuid4

import grpc
import pyarrow as pa
import pytest

from services.api.errors import ThrottledError
from services.api.ids import TopicIdPartition
from services.api.segment_objects import ObjectQuery, all_segment_objects
from services.local.postgres import EmbeddedPostgres
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.workflows.rebuild import RebuildPlan
from services.workflows.rebuild_report import Rebuilt
from services.workflows.segment_views import store_views
from spark_jobs.checks.objects import object_row
from spark_jobs.checks.rebuilding import rebuild_partitions, rebuilt_of
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import Row
from tests.harness.eventually import PATIENT
from tests.harness.served import served
from tests.harness.tier import a_topic
from tests.spark.records_reads import ServedTier
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]


class InterruptedRlmm:
    """The real RLMM, except that the caller does not learn of the first import's success."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        self.interrupted = 0

    def import_remote_log_segments(self, *arguments: Any) -> Any:
        done = self._rlmm.import_remote_log_segments(*arguments)
        if not self.interrupted:
            self.interrupted += 1
            raise ThrottledError("the import was done")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


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
    in_process: ServedTier, postgres: EmbeddedPostgres, migrated_database: str
) -> None:
    [tp] = a_topic()
    in_process.fill(tp, 3)
    name = f"interrupted_{uuid4().hex}"
    engine = create_database_engine(postgres.create_database(name, migrated_database), PATIENT)
    rlmm = InterruptedRlmm(SqlRemoteLogMetadataManager(engine))

    def add_to(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(cast("SqlRemoteLogMetadataManager", rlmm))
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (_, address):
        services = Services(address, in_process.rsm_address, retry_for_s=5.0)
        rows, plan = listed(services, tp), RebuildPlan(uuid4().hex, apply=True)

        def task() -> Rebuilt:
            done = Rebuilt()
            for batch in rebuild_partitions([pa.RecordBatch.from_pylist(rows)], services, plan):
                for row in batch.to_pylist():
                    done.add(rebuilt_of(row))
            return done

        done = task()
        assert (done.imported, done.same, rlmm.interrupted) == (len(rows), 0, 1)
        assert task() == done
    engine.dispose()
    postgres.drop_database(name)
