"""Make the methods of a client from those of the contract: one request, one response."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from services.rpc.client.calls import UNARY_TIMEOUT_S, call_once
from services.rpc.converters.rpcs import rpc_of
from services.rpc.statuses import Peer

P = ParamSpec("P")
R = TypeVar("R")


class ContractClient:
    """Calls the RPCs of a service by their names."""

    def __init__(self, stub: Any, peer: Peer) -> None:
        self._stub = stub
        self._peer = peer

    def call(
        self,
        rpc: str,
        request: object,
        timeout_s: float = UNARY_TIMEOUT_S,
        *,
        is_idempotent: bool = True,
    ) -> Any:
        """Call as call_once does."""
        method = getattr(self._stub, rpc)
        return call_once(method, request, self._peer, timeout_s, is_idempotent=is_idempotent)


def _always(_: Any) -> bool:
    return True


def unary(
    method: Callable[Concatenate[Any, P], R],
    timeout_s: float | Callable[[Any], float] = UNARY_TIMEOUT_S,
    *,
    is_idempotent: Callable[[Any], bool] = _always,
) -> Callable[Concatenate[ContractClient, P], R]:
    """Return the client's method for a method of the contract.

    Args:
        timeout_s: of a call; or what returns it, for a request.
        is_idempotent: whether a request may be sent again if its call was lost.
    """
    rpc = rpc_of(method)

    def call(client: ContractClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        request = rpc.request(args, kwargs)
        ends_s = timeout_s(request) if callable(timeout_s) else timeout_s
        repeats = is_idempotent(request)
        result: R = rpc.result(client.call(rpc.name, request, ends_s, is_idempotent=repeats))
        return result

    return call
