"""Serve an RSM over real gRPC in this process, for commands that take its address."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import grpc

from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.harness.grpc_server import served


@dataclass(frozen=True)
class ServedRsm:
    address: str
    client: RemoteStorageManagerClient
    objects: SegmentObjectsClient


@contextmanager
def serving(settings: RsmSettings) -> Iterator[ServedRsm]:
    with closing(build_manager(settings)) as manager:

        def add(server: grpc.Server) -> None:
            add_to_server(manager, server)

        with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
            yield ServedRsm(
                address,
                RemoteStorageManagerClient(channel, address),
                SegmentObjectsClient(channel, address),
            )
