"""The managers that are compared with the model: RLMM in process, and through gRPC."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.deep.histories import history
from tests.deep.histories.partition import Event
from tests.deep.model.comparison import Subject
from tests.harness.served import served
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc


@contextmanager
def subjects(database_url: str) -> Iterator[tuple[Subject, Subject]]:
    """In process, and over gRPC, on one database with RLMM's schema."""
    engine = create_database_engine(database_url)
    manager = SqlRemoteLogMetadataManager(engine)

    def add_to(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(manager)
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    def trail_of(tp: TopicIdPartition) -> Sequence[Event]:
        return [entry.event for entry in history.trail_of(engine, tp)]

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (channel, address):
        client = RemoteLogMetadataManagerClient(channel, address)
        yield Subject(manager, trail_of), Subject(client, trail_of)
    engine.dispose()
