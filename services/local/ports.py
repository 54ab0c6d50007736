"""Loopback ports that are free now, for servers that cannot be told "any port"."""

import random
import socket
import weakref
from collections.abc import Sequence
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
TWIN_DISTANCE = 10_000
"""SeaweedFS serves gRPC on each of its HTTP ports plus this."""

# Port and twin stay below 32,768, where Linux begins to hand out ports to outgoing connections:
# one of those could take a port between our look and the server's bind.
CANDIDATES = range(10_000, 22_768)


class HeldPorts:
    """Different ports, each free together with its gRPC twin, that nobody else is given until
    `release`, or until nothing refers to this any more: a server that is down keeps its ports.

    Raises:
        RuntimeError: fewer than `count` candidates are free.
    """

    def __init__(self, count: int, candidates: Sequence[int] = CANDIDATES) -> None:
        held = ExitStack()
        self._release = weakref.finalize(self, held.close)
        self.ports: list[int] = []
        for port in random.sample(candidates, len(candidates)):
            if len(self.ports) == count:
                return
            if _hold(held, port) and _hold(held, port + TWIN_DISTANCE):
                self.ports.append(port)
        if len(self.ports) < count:
            self.release()
            raise RuntimeError(f"fewer than {count} loopback ports are free")

    def release(self) -> None:
        self._release()


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> list[int]:
    """Ports as HeldPorts has them, held no longer: whoever starts a server on one tries again with
    others if that fails.

    Raises:
        RuntimeError: fewer than `count` candidates are free.
    """
    held = HeldPorts(count, candidates)
    held.release()
    return held.ports


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now, and nobody holds it."""
    with ExitStack() as held:
        return _hold(held, port)


def _hold(held: ExitStack, port: int) -> bool:
    holder = socket.socket()
    try:
        # Without SO_REUSEADDR this also refuses a port with connections in TIME_WAIT.
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        return False
    # With it from here on, a server that sets it, as all do, can listen there beside the holder.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.enter_context(holder)
    return True
