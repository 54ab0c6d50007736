"""Serve an RLM of a test over gRPC."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import grpc

from services.api.replicas import ReplicaService
from services.rlm.servicer import add_to_server
from tests.harness.grpc_server import served


@contextmanager
def served_rlm(rlm: ReplicaService) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve in this process; yield a channel to it, and its HOST:PORT."""
    with served(partial(add_to_server, rlm), "tieredstorage.v1.RemoteLogManager") as connected:
        yield connected
