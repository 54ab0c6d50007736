"""The gRPC client is just another RemoteLogMetadataManager: the same suite, across the wire."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import grpc
import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from services.local.postgres import EmbeddedPostgres
from services.rlmm.database import create_database_engine
from services.rlmm.limits import Limits
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.clients.metadata import RemoteLogMetadataManagerClient
from tests.contract.remote_log_metadata_manager_contract import RemoteLogMetadataManagerContract
from tests.contract.rlmm.segments import add, segment
from tests.harness.grpc_server import served
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc


@pytest.fixture(scope="module")
def client(
    postgres: EmbeddedPostgres, migrated_database: str
) -> Iterator[RemoteLogMetadataManagerClient]:
    """On one database for all tests: each has a topic of its own."""
    name = "rlmm_over_grpc"
    with client_over(postgres.create_database(name, template=migrated_database)) as made:
        yield made
    postgres.drop_database(name)


@contextmanager
def client_over(
    database_url: str, limits: Limits | None = None
) -> Iterator[RemoteLogMetadataManagerClient]:
    engine = create_database_engine(database_url)

    def add_to(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(SqlRemoteLogMetadataManager(engine, limits))
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (channel, address):
        yield RemoteLogMetadataManagerClient(channel, address)
    engine.dispose()


class TestRemoteLogMetadataManagerClient(RemoteLogMetadataManagerContract):
    @pytest.fixture
    def rlmm(self, client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManagerClient:
        return client


def test_a_page_of_large_segments_fits_into_a_message(database_url: str) -> None:
    largest = 65_536
    tp = TopicIdPartition(uuid4(), "orders", 0)
    with client_over(database_url, Limits(custom_metadata_bytes=largest)) as rlmm:
        for start in range(80):
            add(rlmm, segment(tp, start, start, custom_metadata=bytes(largest)))
        assert [s.start_offset for s in all_segments(rlmm, tp)] == list(range(80))
