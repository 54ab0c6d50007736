"""Serve an RLM of a test over gRPC."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from services.api.replicas import ReplicaService
from services.rlm.servicer import RemoteLogManagerServicer
from tests.harness.grpc_server import served
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc


@contextmanager
def served_rlm(rlm: ReplicaService) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve in this process; yield a channel to it, and its HOST:PORT."""

    def add_to(server: grpc.Server) -> None:
        pb_grpc.add_RemoteLogManagerServicer_to_server(RemoteLogManagerServicer(rlm), server)

    with served(add_to, "tieredstorage.v1.RemoteLogManager") as connected:
        yield connected
