"""Listen for consumers of Kafka: one thread a connection, a bounded number of them."""

import logging
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from threading import Lock, Thread
from typing import Protocol

from services.api.calls import Call, serving
from services.api.errors import UnauthenticatedError
from services.rlm.consumers.answers import Answers, Node, UnservedRequestError
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.metrics import CONSUMER_CONNECTIONS, CONSUMER_REFUSALS

MAX_REQUEST_BYTES = 256 * 1024
"""Larger than any request that is served. An item of 2 bytes takes some 300 once it is decoded and
answered, and requests are decoded before the policy is asked.
"""

MAX_WRITE_BYTES = 2 * 1024 * 1024
"""A write of a larger size is not answered."""

_PRODUCE = 0

ACCEPT_PAUSE_S = 0.1

_SENT_AT_ONCE = 64 * 1024

_ANONYMOUS = "anonymous"

# Linux only; elsewhere a client that left during a wait is noticed after the wait.
_LEFT = getattr(select, "POLLRDHUP", select.POLLHUP)

_HEADER = Struct(">hhi")
_SIZE = Struct(">i")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """The bounds of the listener.

    Attributes:
        max_connections: at once; a further one ends the oldest idle one.
        fetch_max_bytes: of the answer to one Fetch; a larger first batch is sent whole.
        idle_timeout_s: how long a connection waits for the next request.
        stall_timeout_s: how long the first request, a handshake, or the rest of a request or an
            answer, may make no progress.
    """

    max_connections: int = 64
    fetch_max_bytes: int = 4 * 1024 * 1024
    idle_timeout_s: float = 600.0
    stall_timeout_s: float = 30.0


class Peers(Protocol):
    """Who connects, and what the policy lets them read."""

    def secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection, to be encrypted if the service has TLS.

        Raises:
            OSError: a file of TLS cannot be used, or the peer has left.
        """
        ...

    def identity(self, connection: socket.socket) -> str:
        """Shake hands on a connection of `secured`, and return the peer's identity.

        Raises:
            OSError: the handshake failed.
            UnauthenticatedError: the certificate has no identity.
        """
        ...

    def may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        """Return whether the policy lets the identity make an RPC of RLM for the topic, or any."""
        ...


class Anyone:
    """Everyone who reaches the port, in plaintext: RLM_PLAINTEXT."""

    def secured(self, connection: socket.socket) -> socket.socket:
        return connection

    def identity(self, connection: socket.socket) -> str:
        return _ANONYMOUS

    def may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        return True


class _Place:
    """The place of one connection.

    Attributes:
        connection: its socket; TLS replaces it.
        address: of the peer.
        holder: the peer's address, and its identity once it is known.
        is_idle: it waits for a request, since `since_s`; otherwise one is answered since then.
        has_asked: its first request has arrived.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection = connection
        self.address = self.holder = address
        self.is_idle = True
        self.since_s = time.monotonic()
        self.has_asked = False

    def turn(self, *, is_idle: bool) -> None:
        self.is_idle, self.since_s, self.has_asked = is_idle, time.monotonic(), True


class ConsumerListener:
    """Serve consumers until it is stopped.

    Args:
        address: HOST and port to listen on; port 0 picks a free one.
        advertised: HOST and port that consumers connect to; None for the address itself.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        rlm: ConsumedLog,
        address: tuple[str, int],
        peers: Peers,
        node_id: int,
        advertised: tuple[str, int] | None = None,
        limits: ConsumerLimits | None = None,
    ) -> None:
        self._rlm = rlm
        self._peers = peers
        self._limits = limits or ConsumerLimits()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._node = Node(node_id, *(advertised or (host, port)))
        self._places: set[_Place] = set()
        self._warned_of = ""
        self._lock = Lock()
        self._is_stopping = False
        self._thread = Thread(target=self._accept, name="consumers", daemon=True)

    def start(self) -> None:
        self._thread.start()
        _log.info(
            "serving consumers on %s, as %s:%d", self.address, self._node.host, self._node.port
        )

    def stop(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        with self._lock:
            self._is_stopping = True
            opened = [place.connection for place in self._places]
        for each in (self._listener, *opened):
            _shut(each)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection, peer = self._listener.accept()
            except OSError as e:
                if self._is_stopping:
                    return
                # No file descriptor is free, or the client is gone already: both pass.
                _log.warning("a consumer cannot connect; accepting again: %s", e)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            place = _Place(connection, str(peer[0]))
            if not self._take(place):
                CONSUMER_REFUSALS.labels("connections").inc()
                connection.close()
                continue
            try:
                Thread(target=self._serve, args=(place,), name="consumer", daemon=True).start()
            except RuntimeError as e:  # No thread can be started.
                _log.warning("a consumer is refused: %s", e)
                CONSUMER_REFUSALS.labels("connections").inc()
                self._leave(place)

    def _take(self, place: "_Place") -> bool:
        """Take a place, that of another connection if all are taken; return whether there is one.

        First ends a connection of an address that has more places than the new one; of those, one
        that waits for a request, of the peer that has most; of those, the oldest, if none has yet
        to send its first request. No other request is cut off.
        """
        with self._lock:
            if self._is_stopping:
                return False
            if len(self._places) >= self._limits.max_connections and not self._end_one(place):
                return False
            self._places.add(place)
            return True

    def _end_one(self, coming: "_Place") -> bool:
        held = Counter(each.holder for each in self._places)
        of_address = Counter(each.address for each in self._places)

        def order(place: _Place) -> tuple[float, ...]:
            has_more = of_address[place.address] > of_address[coming.address] + 1
            by_time = (not place.has_asked, -place.since_s)
            return has_more, place.is_idle, held[place.holder], *by_time

        ended = max(self._places, key=order)
        has_more, is_idle, *_ = order(ended)
        if not (has_more or is_idle):
            return False
        self._places.discard(ended)
        _shut(ended.connection)
        CONSUMER_REFUSALS.labels("connections").inc()
        if ended.holder != self._warned_of:
            self._warned_of = ended.holder
            _log.warning(
                "consumers have all connections that they may; closing one of %s, which has %d of "
                "%d: look at that client, or raise RLM_CONSUMER_MAX_CONNECTIONS",
                ended.holder,
                held[ended.holder],
                self._limits.max_connections,
            )
        return True

    def _leave(self, place: "_Place") -> None:
        with self._lock:
            self._places.discard(place)
        place.connection.close()

    def _serve(self, place: "_Place") -> None:
        CONSUMER_CONNECTIONS.inc()
        try:
            self._converse(place)
        except (OSError, EOFError) as e:
            _log.debug("a consumer left: %s", e)
        except Exception:  # noqa: BLE001 - a boundary: a defect ends one connection only
            _log.exception("the connection of a consumer was closed: a defect of RLM")
        finally:
            CONSUMER_CONNECTIONS.dec()
            self._leave(place)

    def _converse(self, place: "_Place") -> None:
        place.connection.settimeout(self._limits.stall_timeout_s)
        place.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection = self._peers.secured(place.connection)
            with self._lock:
                place.connection = connection
                if self._is_stopping or place not in self._places:
                    raise EOFError
            identity = self._peers.identity(connection)
        except (OSError, UnauthenticatedError) as e:
            if place in self._places:
                CONSUMER_REFUSALS.labels("unauthenticated").inc()
                _log.info("a consumer was refused: %s", e)
            return
        if identity != _ANONYMOUS:
            place.holder = f"{identity} at {place.address}"
        if not self._peers.may_call(identity, "Fetch", None):
            CONSUMER_REFUSALS.labels("no_grant").inc()
            _log.info(
                "consumer %s was refused: it has the role reader for no topic; add a grant to the "
                "policy file",
                place.holder,
            )
            return

        def may_read(rpc: str, topic: str) -> bool:
            return self._peers.may_call(identity, rpc, topic)

        answers = Answers(self._rlm, self._node, may_read, self._limits.fetch_max_bytes)
        try:
            while self._answer_next(place, identity, answers):
                place.turn(is_idle=True)
        except UnservedRequestError as e:
            CONSUMER_REFUSALS.labels("request").inc()
            _log.info("the connection of consumer %s was closed: %s", identity, e)

    def _answer_next(self, place: "_Place", identity: str, answers: Answers) -> bool:
        """Answer one request; return False if the client has closed the connection."""
        connection, limits = place.connection, self._limits
        first_timeout_s = min(limits.idle_timeout_s, limits.stall_timeout_s)
        connection.settimeout(limits.idle_timeout_s if place.has_asked else first_timeout_s)
        first = connection.recv(_SIZE.size)
        if not first:
            return False
        connection.settimeout(self._limits.stall_timeout_s)
        size = _SIZE.unpack(first + _exactly(connection, _SIZE.size - len(first)))[0]
        if not _HEADER.size <= size <= MAX_WRITE_BYTES:
            raise UnservedRequestError(f"a request of {size} bytes; at most {MAX_WRITE_BYTES}")
        data = _exactly(connection, size)
        place.turn(is_idle=False)
        api_key, version, correlation_id = _HEADER.unpack_from(data)
        if api_key != _PRODUCE and size > MAX_REQUEST_BYTES:
            raise UnservedRequestError(f"a request of {size} bytes; at most {MAX_REQUEST_BYTES}")
        call = Call(
            identity,
            f"kafka-{correlation_id}",
            is_active=lambda: not self._is_stopping and not _has_left(connection),
            has_own_thread=True,
        )
        with serving(call):
            answer = answers.answer(api_key, version, data)
        for piece in answer or ():
            # sendall counts the time of all that it sends, however the client progresses.
            for at in range(0, len(piece), _SENT_AT_ONCE):
                connection.sendall(memoryview(piece)[at : at + _SENT_AT_ONCE])
        return True


def _shut(connection: socket.socket) -> None:
    """Wake the thread of a connection, which then closes it."""
    with suppress(OSError):  # The client has left.
        # Not SSLSocket's own: after it, the thread would write to the connection in plaintext.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client has closed the connection, and waits for nothing more."""
    poll = select.poll()
    poll.register(connection, _LEFT)
    return bool(poll.poll(0))


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes; raise EOFError if the connection ends before."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 64 * 1024))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


class TlsPeers:
    """Peers with client certificates.

    Args:
        context: makes the TLS context of one connection, from the present files.
        identity_of: reads the identity of a certificate, as ssl.getpeercert has it.
        may_call: the policy.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        identity_of: Callable[[Mapping[str, object]], str],
        may_call: Callable[[str, str, str | None], bool],
    ) -> None:
        self._context = context
        self._identity_of = identity_of
        self._may_call = may_call

    def secured(self, connection: socket.socket) -> socket.socket:
        return self._context().wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )

    def identity(self, connection: socket.socket) -> str:
        assert isinstance(connection, ssl.SSLSocket)
        connection.do_handshake()
        return self._identity_of(connection.getpeercert() or {})

    def may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        return self._may_call(identity, rpc, topic)
