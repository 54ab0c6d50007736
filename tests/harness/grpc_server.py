"""A service's gRPC in this process, served as its own process would: interceptor, pools, limits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc

from services.common.settings import ServiceSettings
from services.rpc.client.calls import open_channel
from services.rpc.server.server import Service, start_grpc


@contextmanager
def served(
    add_to: Callable[[grpc.Server], None], full_name: str
) -> Iterator[tuple[grpc.Channel, str]]:
    """Serve what `add_to` registers on a free port; yields a channel to it, and its HOST:PORT."""
    service = Service("test", full_name, add_to, check=lambda: None, close=lambda: None)
    with ExitStack() as cleanup:
        address = start_grpc(service, ServiceSettings(drain_timeout_ms=1000), cleanup)
        yield cleanup.enter_context(open_channel(address)), address
