"""An RSM behind a real gRPC server of this process, for commands that are told its address."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import grpc

from services.rpc.clients.storage import RemoteStorageManagerClient
from services.rsm.factory import build_manager
from services.rsm.servicer import RemoteStorageManagerServicer
from services.rsm.settings import RsmSettings
from tests.harness.grpc_server import served
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc


@dataclass(frozen=True)
class ServedRsm:
    address: str
    client: RemoteStorageManagerClient


@contextmanager
def serving(settings: RsmSettings) -> Iterator[ServedRsm]:
    with closing(build_manager(settings)) as manager:

        def add(server: grpc.Server) -> None:
            servicer = RemoteStorageManagerServicer(manager)
            pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

        with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
            yield ServedRsm(address, RemoteStorageManagerClient(channel, address))
