"""Listen for consumers of Kafka: one thread a connection, a bounded number of them."""

import logging
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from threading import Lock, Thread
from typing import Protocol

from services.api.calls import Call, serving
from services.api.errors import UnauthenticatedError
from services.common.addresses import joined_address
from services.rlm.consumers.answers import Answers, MayRead
from services.rlm.consumers.backing import BackingConnection, Beside, BrokerAwayError
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.consumers.framing import UnservedRequestError
from services.rlm.consumers.groups import GROUP_APIS
from services.rlm.consumers.relay import Broker, Relay
from services.rlm.metrics import CONSUMER_CONNECTIONS, CONSUMER_REFUSALS
from services.rlm.partition_readers import Readers

MAX_REQUEST_BYTES = 256 * 1024
"""Larger than any request that is served. An item of 2 bytes takes some 300 once it is decoded and
answered, and requests are decoded before the policy is checked.
"""

MAX_WRITE_BYTES = 2 * 1024 * 1024
"""A write, or a request of a group that the broker answers, of a larger size is not answered."""

LOGIN_TIMEOUT_S = 10.0
"""How long a connection is held for a handshake, or before it has logged in."""

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


class Access(Protocol):
    """The TLS contexts and the policy of the service.

    Attributes:
        context: makes the TLS context of one connection, from the present files.
    """

    context: Callable[[], ssl.SSLContext]

    def identity_of(self, certificate: Mapping[str, object]) -> str:
        """Return the identity of a certificate, as ssl.getpeercert has it.

        Raises:
            UnauthenticatedError: it has none.
        """

    def may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        """Return whether the policy lets the identity make an RPC of RLM for the topic, or any."""

    def may_use_group(self, identity: str, group: str) -> bool:
        """Return whether the policy lets the identity use a group of consumers."""


class _Connection:
    """A connection of a consumer.

    Attributes:
        socket: TLS replaces it.
        address: of the peer.
        peer: the peer's address, and its identity once it is known.
        is_idle: it waits for a request, since `since_s`, or for the client to receive the last
            bytes of an answer; otherwise one is answered since then.
        begun_s: when it was accepted.
        has_requested: its first request has arrived.
    """

    def __init__(self, connected: socket.socket, address: str) -> None:
        self.socket = connected
        self.address = self.peer = address
        self.is_idle = True
        self.begun_s = self.since_s = time.monotonic()
        self.has_requested = False

    def set_idle(self, is_idle: bool) -> None:
        self.is_idle, self.since_s, self.has_requested = is_idle, time.monotonic(), True


class ConsumerListener:
    """Serve consumers until it is stopped.

    Args:
        address: HOST and port to listen on; port 0 picks a free one.
        access: None to serve everyone in plaintext (RLM_PLAINTEXT).
        beside: the way to the broker, for users and groups; None: there are neither.
        advertised: HOST and port that consumers connect to; None for the address itself.
        readers: the RLMs of the broker's cluster; None: this one alone.

    Attributes:
        address, advertised: HOST:PORT that it listens on, and that consumers connect to.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        rlm: ConsumedLog,
        address: tuple[str, int],
        access: Access | None,
        node_id: int,
        advertised: tuple[str, int] | None = None,
        limits: ConsumerLimits | None = None,
        readers: Readers | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._rlm = rlm
        self._access = access
        self._broker = None if beside is None else Broker(beside)
        self._limits = limits or ConsumerLimits()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        own = Node(node_id, *(advertised or (host, port)))
        self.advertised = joined_address(own.host, own.port)
        self._cluster = ReaderCluster(own, readers or Readers())
        self._connections: set[_Connection] = set()
        self._warned_of = ""
        self._lock = Lock()
        self._is_stopping = False
        self._thread = Thread(target=self._accept, name="consumers", daemon=True)

    def start(self) -> None:
        self._thread.start()
        _log.info("serving consumers on %s, as %s", self.address, self.advertised)

    def stop(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        with self._lock:
            self._is_stopping = True
            opened = [connection.socket for connection in self._connections]
        for each in (self._listener, *opened):
            _shut(each)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connected, peer = self._listener.accept()
            except OSError as e:
                if self._is_stopping:
                    return
                # No file descriptor is free, or the client is gone already: both pass.
                _log.warning("a consumer cannot connect; accepting again: %s", e)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            connection = _Connection(connected, str(peer[0]))
            if not self._admit(connection):
                CONSUMER_REFUSALS.labels("connections").inc()
                connected.close()
                continue
            try:
                Thread(target=self._serve, args=(connection,), name="consumer", daemon=True).start()
            except RuntimeError as e:  # No thread can be started.
                _log.warning("a consumer is refused: %s", e)
                CONSUMER_REFUSALS.labels("connections").inc()
                self._close(connection)

    def _admit(self, connection: _Connection) -> bool:
        """Admit a connection if there is room, or if another one can be ended for it.

        First ends a connection of an address that has more of them than the new one; of those, one
        that waits for a request, of the peer that has most; of those, the oldest, if none has yet
        to send its first request. No other request is cut off.
        """
        with self._lock:
            if self._is_stopping:
                return False
            if len(self._connections) >= self._limits.max_connections and not self._end_one(
                connection.address
            ):
                return False
            self._connections.add(connection)
            return True

    def _end_one(self, address: str) -> bool:
        """End a connection for a new one from `address`; return False if none may be ended."""
        of_peer = Counter(each.peer for each in self._connections)
        of_address = Counter(each.address for each in self._connections)

        def order(connection: _Connection) -> tuple[float, ...]:
            has_more = of_address[connection.address] > of_address[address] + 1
            by_time = (not connection.has_requested, -connection.since_s)
            return has_more, connection.is_idle, of_peer[connection.peer], *by_time

        ended = max(self._connections, key=order)
        has_more, is_idle, *_ = order(ended)
        if not (has_more or is_idle):
            return False
        self._connections.discard(ended)
        # The answer to an idle one may still be on its way.
        _shut(ended.socket, socket.SHUT_RD if is_idle else socket.SHUT_RDWR)
        CONSUMER_REFUSALS.labels("connections").inc()
        if ended.peer != self._warned_of:
            self._warned_of = ended.peer
            _log.warning(
                "consumers have all connections that they may; closing one of %s, which has %d of "
                "%d: check that client, or raise RLM_CONSUMER_MAX_CONNECTIONS",
                ended.peer,
                of_peer[ended.peer],
                self._limits.max_connections,
            )
        return True

    def _close(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.socket.close()

    def _serve(self, connection: _Connection) -> None:
        CONSUMER_CONNECTIONS.inc()
        try:
            self._serve_requests(connection)
        except (OSError, EOFError) as e:
            _log.debug("a consumer left: %s", e)
        except Exception:  # noqa: BLE001 - a boundary: a defect ends one connection only
            _log.exception("the connection of a consumer was closed: a defect of RLM")
        finally:
            CONSUMER_CONNECTIONS.dec()
            self._close(connection)

    def _serve_requests(self, connection: _Connection) -> None:
        connection.socket.settimeout(min(self._limits.stall_timeout_s, LOGIN_TIMEOUT_S))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            identity = self._identity_of(connection)
        except (OSError, UnauthenticatedError) as e:
            if connection in self._connections:
                CONSUMER_REFUSALS.labels("unauthenticated").inc()
                _log.info("a consumer was refused: %s", e)
            return

        if self._broker is None:
            self._answer_all(connection, identity, None)
            return
        with closing(BackingConnection(self._broker.beside, connection.socket)) as backing:
            relay = self._relay_of(self._broker, backing, identity)
            self._answer_all(connection, identity, relay)

    def _relay_of(self, broker: Broker, backing: BackingConnection, identity: str) -> Relay:
        access = self._access
        may_use_group = None
        if access is not None and not broker.needs_login:
            may_use_group = partial(access.may_use_group, identity)
        may_read = partial(self._may_call, identity, "Fetch")
        return Relay(broker, backing, self._rlm, self._cluster, may_read, may_use_group)

    def _may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        return self._access is None or self._access.may_call(identity, rpc, topic)

    def _answer_all(self, connection: _Connection, identity: str, relay: Relay | None) -> None:
        """Answer the requests of a connection until it ends."""
        may_read: MayRead = partial(self._may_call, identity)
        if relay is not None and not relay.is_logged_in:
            may_read = relay.may_call
        elif not self._may_call(identity, "Fetch", None):
            CONSUMER_REFUSALS.labels("no_grant").inc()
            _log.info(
                "consumer %s was refused: it has the role reader for no topic; add a grant to the "
                "policy file",
                connection.peer,
            )
            return
        answers = Answers(self._rlm, self._cluster, may_read, self._limits.fetch_max_bytes, relay)
        try:
            while self._answer_next(connection, identity, answers, relay):
                pass
        except UnservedRequestError as e:
            CONSUMER_REFUSALS.labels("request").inc()
            _log.info("the connection of consumer %s was closed: %s", identity, e)
        except BrokerAwayError as e:
            CONSUMER_REFUSALS.labels("broker").inc()
            _log.info("the connection of consumer %s was closed: %s", identity, e)

    def _identity_of(self, connection: _Connection) -> str:
        """Encrypt a connection if the service has TLS, and return its peer's identity.

        Raises:
            EOFError: the connection was ended for another one.
            OSError: a file of TLS cannot be used, the handshake failed, or the peer has left.
            UnauthenticatedError: the certificate has no identity.
        """
        needs_login = self._broker is not None and self._broker.needs_login
        if self._access is None:
            return connection.address if needs_login else _ANONYMOUS
        context = self._access.context()
        encrypted = context.wrap_socket(
            connection.socket, server_side=True, do_handshake_on_connect=False
        )
        with self._lock:
            connection.socket = encrypted
            if self._is_stopping or connection not in self._connections:
                raise EOFError
        encrypted.do_handshake()
        if needs_login:
            return connection.address  # Only the broker knows the user.
        identity = self._access.identity_of(encrypted.getpeercert() or {})
        connection.peer = f"{identity} at {connection.address}"
        return identity

    def _timeout_s(self, connection: _Connection, relay: Relay | None) -> float:
        """Return how long to wait for the next request."""
        limits = self._limits
        if relay is not None and not relay.is_logged_in:
            left_s = connection.begun_s + LOGIN_TIMEOUT_S - time.monotonic()
            if left_s <= 0:
                raise UnservedRequestError(f"it did not log in within {LOGIN_TIMEOUT_S:g} s")
            return min(limits.idle_timeout_s, limits.stall_timeout_s, left_s)
        if not connection.has_requested:
            return min(limits.idle_timeout_s, limits.stall_timeout_s, LOGIN_TIMEOUT_S)
        return limits.idle_timeout_s

    def _answer_next(
        self, connection: _Connection, identity: str, answers: Answers, relay: Relay | None
    ) -> bool:
        """Answer one request; return False if the client has closed the connection."""
        peer = connection.socket
        peer.settimeout(self._timeout_s(connection, relay))
        first = peer.recv(_SIZE.size)
        if not first:
            return False
        peer.settimeout(self._limits.stall_timeout_s)
        size = _SIZE.unpack(first + _exactly(peer, _SIZE.size - len(first)))[0]
        if not _HEADER.size <= size <= MAX_WRITE_BYTES:
            raise UnservedRequestError(f"a request of {size} bytes; at most {MAX_WRITE_BYTES}")
        data = _exactly(peer, size)
        connection.set_idle(False)
        api_key, version, correlation_id = _HEADER.unpack_from(data)
        is_small = api_key != _PRODUCE and (relay is None or api_key not in GROUP_APIS)
        if is_small and size > MAX_REQUEST_BYTES:
            raise UnservedRequestError(f"a request of {size} bytes; at most {MAX_REQUEST_BYTES}")
        call = Call(
            identity,
            f"kafka-{correlation_id}",
            is_active=lambda: not self._is_stopping and not _has_left(peer),
            has_own_thread=True,
        )
        with serving(call):
            answer = answers.answer(api_key, version, data)
        # sendall counts the time of all that it sends, however the client progresses.
        pieces = [
            memoryview(piece)[at : at + _SENT_AT_ONCE]
            for piece in answer
            for at in range(0, len(piece), _SENT_AT_ONCE)
        ]
        for piece in pieces[:-1]:
            peer.sendall(piece)
        # Before the last bytes: who has the answer is idle.
        connection.set_idle(True)
        peer.sendall(pieces[-1])
        return True


def _shut(connected: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Wake the thread of a connection, which then closes it."""
    with suppress(OSError):  # The client has left.
        # Not SSLSocket's own: after it, the thread would write to the connection in plaintext.
        socket.socket.shutdown(connected, how)


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
