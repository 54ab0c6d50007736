"""Loopback ports that are free now, for servers that cannot be told "any port"."""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
TWIN_DISTANCE = 10_000
"""SeaweedFS serves gRPC on each of its HTTP ports plus this."""

# Port and twin stay below 32,768, where Linux begins to hand out ports to outgoing connections:
# one of those could take a port between our look and the server's bind.
CANDIDATES = range(10_000, 22_768)


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> list[int]:
    """Return `count` different ports, each free on the loopback together with its gRPC twin.

    Nothing reserves them: whoever starts a server on one tries again with others if that fails.

    Raises:
        RuntimeError: fewer than `count` candidates are free.
    """
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(candidates, len(candidates)):
            if _hold(held, port) and _hold(held, port + TWIN_DISTANCE):
                ports.append(port)
            if len(ports) == count:
                return ports
    raise RuntimeError(f"fewer than {count} loopback ports are free")


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with ExitStack() as held:
        return _hold(held, port)


def _hold(held: ExitStack, port: int) -> bool:
    probe = held.enter_context(socket.socket())
    try:
        # Without SO_REUSEADDR this also refuses a port with connections in TIME_WAIT.
        probe.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
