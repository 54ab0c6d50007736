"""Serve a service of a test over gRPC in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from services.api.replicas import ReplicaService
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.rlm.servicer import add_to_server as add_rlm
from services.rlmm.servicer import add_to_server as add_rlmm
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rpc.server.server import Service, start_grpc
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server as add_rsm
from services.rsm.settings import RsmSettings


@contextmanager
def served(
    add_to: Callable[[grpc.Server], None], full_name: str
) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve the servicers of `add_to` on a free port; yield a channel to it, and its HOST:PORT."""
    service = Service("test", full_name, add_to, check=lambda: None, close=lambda: None)
    with ExitStack() as cleanup:
        address = start_grpc(
            service, ServiceSettings(plaintext=True, drain_timeout_ms=1000), cleanup
        ).address
        yield cleanup.enter_context(open_channel(address, PLAINTEXT)), address


@contextmanager
def served_rlm(rlm: ReplicaService) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve in this process; yield a channel to it, and its HOST:PORT."""
    with served(partial(add_rlm, rlm), "tieredstorage.v1.RemoteLogManager") as connected:
        yield connected


@dataclass(frozen=True)
class ServedRsm:
    address: str
    client: RemoteStorageManagerClient
    objects: SegmentObjectsClient


@contextmanager
def serving(settings: RsmSettings) -> Iterator[ServedRsm]:
    name = "tieredstorage.v1.RemoteStorageManager"
    with (
        closing(build_manager(settings)) as manager,
        served(partial(add_rsm, manager), name) as (channel, address),
    ):
        if settings.deployment_id:
            manager.check()  # It serves nothing before that.
        yield ServedRsm(
            address,
            RemoteStorageManagerClient(channel, address),
            SegmentObjectsClient(channel, address),
        )


@contextmanager
def served_manager(rlmm: Any) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve a manager of RLMM, or what wraps one; yield a channel to it, and its HOST:PORT."""
    with served(partial(add_rlmm, rlmm), "tieredstorage.v1.RemoteLogMetadataManager") as opened:
        yield opened


class RestartedServer:
    """A server with the interceptor, pools and limits of a service's own process."""

    def __init__(self, add_to: Callable[[grpc.Server], None], full_name: str) -> None:
        """Start it on a free port."""
        self._service = Service("test", full_name, add_to, check=lambda: None, close=lambda: None)
        self._running = ExitStack()
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        settings = ServiceSettings(
            plaintext=True, listen_address=self.address, drain_timeout_ms=10_000
        )
        self.address = start_grpc(self._service, settings, self._running).address

    def stop(self) -> None:
        """Stop as a service does at SIGTERM: active calls end first."""
        self._running.close()
