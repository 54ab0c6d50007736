"""Listen for consumers of Kafka: one thread a connection, a bounded number of them."""

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from struct import Struct
from threading import BoundedSemaphore, Lock, Thread
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

# Linux only; elsewhere a client that left during a wait is noticed after the wait.
_LEFT = getattr(select, "POLLRDHUP", select.POLLHUP)

_HEADER = Struct(">hhi")
_SIZE = Struct(">i")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """The bounds of the listener.

    Attributes:
        max_connections: at once; a further one is closed.
        fetch_max_bytes: of the answer to one Fetch; a larger first batch is sent whole.
        idle_timeout_s: how long a connection waits for the next request.
        stall_timeout_s: how long a handshake, or the rest of a request or an answer, may make no
            progress.
    """

    max_connections: int = 64
    fetch_max_bytes: int = 4 * 1024 * 1024
    idle_timeout_s: float = 600.0
    stall_timeout_s: float = 30.0


class Peers(Protocol):
    """Who connects, and what the policy lets them read."""

    def accept(self, connection: socket.socket) -> tuple[socket.socket, str]:
        """Return the connection, encrypted if the service has TLS, and the peer's identity.

        Raises:
            OSError: the handshake failed.
            UnauthenticatedError: the certificate has no identity.
        """
        ...

    def may_call(self, identity: str, rpc: str, topic: str) -> bool:
        """Return whether the policy lets the identity make an RPC of RLM for the topic."""
        ...


class Anyone:
    """Everyone who reaches the port, in plaintext: RLM_PLAINTEXT."""

    def accept(self, connection: socket.socket) -> tuple[socket.socket, str]:
        return connection, "anonymous"

    def may_call(self, identity: str, rpc: str, topic: str) -> bool:
        return True


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
        self._places = BoundedSemaphore(self._limits.max_connections)
        self._open: set[socket.socket] = set()
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
            opened = list(self._open)
        for each in (self._listener, *opened):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError as e:
                if self._is_stopping:
                    return
                # No file descriptor is free, or the client is gone already: both pass.
                _log.warning("a consumer cannot connect; accepting again: %s", e)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            if not self._places.acquire(blocking=False):
                CONSUMER_REFUSALS.labels("connections").inc()
                connection.close()
                continue
            try:
                Thread(target=self._serve, args=(connection,), name="consumer", daemon=True).start()
            except RuntimeError as e:  # No thread can be started.
                _log.warning("a consumer is refused: %s", e)
                CONSUMER_REFUSALS.labels("connections").inc()
                connection.close()
                self._places.release()

    def _serve(self, accepted: socket.socket) -> None:
        CONSUMER_CONNECTIONS.inc()
        try:
            with self._open_until_stop(accepted):
                self._converse(accepted)
        except (OSError, EOFError) as e:
            _log.debug("a consumer left: %s", e)
        except Exception:  # noqa: BLE001 - a boundary: a defect ends one connection only
            _log.exception("the connection of a consumer was closed: a defect of RLM")
        finally:
            CONSUMER_CONNECTIONS.dec()
            self._places.release()

    @contextmanager
    def _open_until_stop(self, connection: socket.socket) -> Iterator[None]:
        """Let `stop` end the connection during the block; close it afterwards."""
        with connection:
            with self._lock:
                if self._is_stopping:
                    raise EOFError
                self._open.add(connection)
            try:
                yield
            finally:
                with self._lock:
                    self._open.discard(connection)

    def _converse(self, accepted: socket.socket) -> None:
        accepted.settimeout(self._limits.stall_timeout_s)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection, identity = self._peers.accept(accepted)
        except (OSError, UnauthenticatedError) as e:
            CONSUMER_REFUSALS.labels("unauthenticated").inc()
            _log.info("a consumer was refused: %s", e)
            return

        def may_read(rpc: str, topic: str) -> bool:
            return self._peers.may_call(identity, rpc, topic)

        answers = Answers(self._rlm, self._node, may_read, self._limits.fetch_max_bytes)
        try:
            # TLS has a socket of its own.
            with nullcontext() if connection is accepted else self._open_until_stop(connection):
                while self._answer_next(connection, identity, answers):
                    pass
        except UnservedRequestError as e:
            CONSUMER_REFUSALS.labels("request").inc()
            _log.info("the connection of consumer %s was closed: %s", identity, e)

    def _answer_next(self, connection: socket.socket, identity: str, answers: Answers) -> bool:
        """Answer one request; return False if the client has closed the connection."""
        connection.settimeout(self._limits.idle_timeout_s)
        first = connection.recv(_SIZE.size)
        if not first:
            return False
        connection.settimeout(self._limits.stall_timeout_s)
        size = _SIZE.unpack(first + _exactly(connection, _SIZE.size - len(first)))[0]
        if not _HEADER.size <= size <= MAX_WRITE_BYTES:
            raise UnservedRequestError(f"a request of {size} bytes; at most {MAX_WRITE_BYTES}")
        data = _exactly(connection, size)
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
        may_call: Callable[[str, str, str], bool],
    ) -> None:
        self._context = context
        self._identity_of = identity_of
        self._may_call = may_call

    def accept(self, connection: socket.socket) -> tuple[socket.socket, str]:
        wrapped = self._context().wrap_socket(connection, server_side=True)
        try:
            return wrapped, self._identity_of(wrapped.getpeercert() or {})
        except BaseException:
            wrapped.close()
            raise

    def may_call(self, identity: str, rpc: str, topic: str) -> bool:
        return self._may_call(identity, rpc, topic)
