"""Serve gRPC in this process on a port that stays the same when the server is restarted."""

from collections.abc import Callable
from contextlib import ExitStack

import grpc

from services.common.settings import ServiceSettings
from services.rpc.server.server import Service, start_grpc


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
