"""Bound the calls that are served and that wait, by kind and address."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from threading import Lock
from typing import Any
from urllib.parse import unquote

import grpc
from grpc._server import _Context

from services.api.errors import ThrottledError

# What a single host is given of global IPv6, at the least.
_HOST_PREFIX_LENGTH = 64

# Unique local, link-local, and this host.
_PRIVATE = tuple(map(IPv6Network, ("fc00::/7", "fe80::/10", "::1/128")))


@lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Of what gRPC calls a peer the part that all connections of one party have.

    "ipv4:192.0.2.1", without the port; of IPv6 the /64, but for private addresses, which count one
    by one; of a socket in the file system its name, which tells nobody apart.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return _counted(ip_address(host))
    except ValueError:
        return f"{kind}:{host}"


def _counted(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return _counted_v6(address) if mapped is None else f"ipv4:{mapped}"
    return f"ipv4:{address}"


def _counted_v6(address: IPv6Address) -> str:
    if any(address in network for network in _PRIVATE):
        return f"ipv6:{address}"
    return f"ipv6:{IPv6Network((address, _HOST_PREFIX_LENGTH), strict=False)}"


def share_of(count: int, percent: int) -> int:
    """What one address may have of `count`: less than all of it, but for 100 % and but for 1."""
    return count if percent == 100 else max(1, min(count - 1, count * percent // 100))


class Place:
    """A call that was let in; `waits`: it has no thread yet."""

    __slots__ = ("address", "serve", "waits")

    def __init__(self, address: str, serve: Callable[[], None]) -> None:
        self.address = address
        self.serve = serve
        self.waits = False


class Places:
    """The threads for calls of one kind, and a bounded number of calls that wait for one.

    One address has a share of both, so that it always leaves some to others, whatever it opens. A
    call that waits holds no thread, and is passed by those of addresses that may have more.
    """

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, waiting_per_thread: int, share_percent: int
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._threads_of_one = share_of(threads, share_percent)
        self._waiting_at_most = waiting_per_thread * threads
        self._waiting_of_one = share_of(self._waiting_at_most, share_percent)
        self._lock = Lock()
        self._running: Counter[str] = Counter()
        # In the order in which they came.
        self._waiting: dict[Place, None] = {}

    def take(self, address: str, serve: Callable[[], None]) -> Place:
        """Have `serve` called once, in a thread of the pool, now or when there is one.

        `address`: of the party that calls (see peers).

        Raises:
            ThrottledError: all places are taken, or all that this address may have.
        """
        place = Place(address, serve)
        with self._lock:
            if self._may_run(address):
                self._start(place)
            elif self._may_wait(address):
                place.waits = True
                self._waiting[place] = None
            else:
                raise ThrottledError(
                    f"calls of this kind: {self._threads} are served at once, "
                    f"{self._threads_of_one} of one address, and as many wait as may; come back in "
                    f"some seconds"
                )
        return place

    def withdraw(self, place: Place) -> None:
        """The call is over; if it still waits it is not served any more."""
        with self._lock:
            self._waiting.pop(place, None)

    def wants_thread_of(self, address: str) -> bool:
        """Whether a call waits that could run if one of this address ended."""
        with self._lock:
            return any(
                place.address == address or self._running[place.address] < self._threads_of_one
                for place in self._waiting
            )

    def _may_run(self, address: str) -> bool:
        free = self._running.total() < self._threads
        return free and self._running[address] < self._threads_of_one

    def _may_wait(self, address: str) -> bool:
        if len(self._waiting) >= self._waiting_at_most:
            return False
        of_address = sum(place.address == address for place in self._waiting)
        return of_address < self._waiting_of_one

    def _start(self, place: Place) -> None:
        place.waits = False
        self._pool.submit(self._serve, place)
        self._running[place.address] += 1

    def _serve(self, place: Place) -> None:
        try:
            place.serve()
        finally:
            with self._lock:
                self._running[place.address] -= 1
                if not self._running[place.address]:
                    del self._running[place.address]
                self._start_waiting()

    def _start_waiting(self) -> None:
        for place in list(self._waiting):
            if self._running.total() >= self._threads:
                return
            if self._may_run(place.address):
                del self._waiting[place]
                self._start(place)


Refuse = Callable[[ThrottledError, Any, grpc.ServicerContext], Any]


class Admission(ThreadPoolExecutor):
    """What grpcio takes for the threads of a method with one answer; it has none of its own.

    A handler's function knows who calls, but is called in a thread, and what waits for one must be
    counted before. So this takes grpcio's work as it comes, and has it done in a place.
    """

    def __init__(self, places: Places, refuse: Refuse) -> None:
        """`refuse` is called instead of the handler's function, and ends the call."""
        super().__init__(1)
        self._places = places
        self._refuse = refuse

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # Not public: what grpcio does with a call, for which event of its core, with which state,
        # by which function.
        work, event, state, behavior, *more = args
        context = _Context(event, state, None)
        serve = partial(fn, work, event, state, behavior, *more, **kwargs)
        try:
            place = self._places.take(address_of(context.peer()), serve)
        except ThrottledError as e:
            fn(work, event, state, partial(self._refuse, e), *more, **kwargs)
            return _DONE
        # Told of the end of each call, gRPC's thread would meet the call's own at the lock.
        if place.waits and not context.add_callback(partial(self._places.withdraw, place)):
            self._places.withdraw(place)
        return _DONE


# gRPC asks for no more of it than to be told of the end, which it needs for a limit of its own.
_DONE: Future[Any] = Future()
_DONE.set_result(None)
