"""The gRPC client is just another RemoteLogMetadataManager: the same suite, across the wire."""

from collections.abc import Iterator

import grpc
import pytest

from services.local.postgres import EmbeddedPostgres
from services.rlmm.database import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.clients.metadata import RemoteLogMetadataManagerClient
from tests.contract.remote_log_metadata_manager_contract import RemoteLogMetadataManagerContract
from tests.harness.grpc_server import served
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc


@pytest.fixture(scope="module")
def client(
    postgres: EmbeddedPostgres, migrated_database: str
) -> Iterator[RemoteLogMetadataManagerClient]:
    """On one database for all tests: each has a topic of its own."""
    name = "rlmm_over_grpc"
    engine = create_database_engine(postgres.create_database(name, template=migrated_database))

    def add(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(SqlRemoteLogMetadataManager(engine))
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    with served(add, "tieredstorage.v1.RemoteLogMetadataManager") as (channel, address):
        yield RemoteLogMetadataManagerClient(channel, address)
    engine.dispose()
    postgres.drop_database(name)


class TestRemoteLogMetadataManagerClient(RemoteLogMetadataManagerContract):
    @pytest.fixture
    def rlmm(self, client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManagerClient:
        return client
