"""The managers that are compared with the model: RLMM in process, and through gRPC."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from sqlalchemy import Row

from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.deep.model.comparison import Subject
from tests.deep.model.partition import Event
from tests.harness.databases import events
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
        return [event_of(row) for row in events(engine, tp)]

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (channel, address):
        client = RemoteLogMetadataManagerClient(channel, address)
        yield Subject(manager, trail_of), Subject(client, trail_of)
    engine.dispose()


def event_of(row: Row[*tuple[object, ...]]) -> Event:
    return Event(
        row.revision,
        row.kind,
        row.from_state,
        row.to_state,
        row.segment_id,
        row.broker_id,
        row.broker_leader_epoch,
        row.request_id,
        row.reason,
        row.key if row.kind == "OBJECT_DELETION" else "",
    )
