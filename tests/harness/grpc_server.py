"""Serve a service's gRPC in this process with the interceptor, pools and limits of its own
process.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc

from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.server.server import Service, start_grpc


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
