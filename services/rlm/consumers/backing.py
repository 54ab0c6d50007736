"""Give each client one connection to the broker beside this RLM, and send its requests there."""

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from threading import Lock
from typing import Any, Protocol

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

MAX_ANSWER_BYTES = 16 * 1024 * 1024
ANSWER_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 3.0
VERSIONS_TIMEOUT_S = 3.0
REBALANCE_TIMEOUT_S = 1_800.0
"""How long a member may wait for the others of its group: group.max.session.timeout.ms."""

VERSIONS_FOR_S = 60.0
ASKED_AGAIN_AFTER_S = 5.0
READABLE_FOR_S = 30.0
"""How old an answer may be that a user may read a topic."""
KNOWN_TOPICS = 10_000
"""So many names are remembered; a client may invent others."""

_CLIENT_ID = "sediment-rlm"
_METADATA, _API_VERSIONS, _JOIN_GROUP, _SYNC_GROUP = 3, 18, 11, 14
_OPERATIONS_SINCE, _KNOWN_TO_SCHEMA = 8, 12
"""The versions of Metadata with authorized operations that are used."""
_READ = 3
_OWN_CORRELATION_ID = 0
_SIZE = Struct(">i")
_BLOCK_BYTES = 64 * 1024
# Linux only; elsewhere a client that left during a wait is noticed after the wait.
_LEFT = getattr(select, "POLLRDHUP", select.POLLHUP)

_log = logging.getLogger(__name__)


class BrokerAwayError(Exception):
    """The error if the broker beside this RLM does not answer; the client's connection ends."""


class Beside(Protocol):
    """The way to the broker beside this RLM.

    Attributes:
        needs_login: its listener speaks SASL.
    """

    needs_login: bool

    def open(self) -> socket.socket:
        """Connect, and return a socket that does not block.

        Raises:
            OSError: the broker cannot be reached.
        """


class BackingConnection:
    """A connection to the broker, opened by its first request. Not thread-safe.

    Args:
        client: a wait for the broker ends when this connection ends; None: it has no client.
    """

    def __init__(self, beside: Beside, client: socket.socket | None = None) -> None:
        self._beside = beside
        self._client = client
        self._broker: socket.socket | None = None

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def relay(self, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """Send a request as it is, and return the broker's answer; neither has its size.

        Args:
            timeout_s: of requests that wait for no other member of a group.

        Raises:
            BrokerAwayError: there is no answer in time.
            EOFError: the client has left.
        """
        if int.from_bytes(data[:2], "big") in (_JOIN_GROUP, _SYNC_GROUP):
            timeout_s = REBALANCE_TIMEOUT_S
        try:
            answer = self._exchanged(data, time.monotonic() + timeout_s)
        except (OSError, BrokerAwayError) as e:
            self.close()
            raise BrokerAwayError(f"the broker beside this RLM: {e}") from e
        if answer[: _SIZE.size] != data[4:8]:
            raise BrokerAwayError("the broker answered another request")
        return answer

    def _exchanged(self, data: bytes, until_s: float) -> bytes:
        if self._broker is None:
            self._broker = self._beside.open()
        self._broker.settimeout(SEND_TIMEOUT_S)
        self._broker.sendall(_SIZE.pack(len(data)) + data)
        self._broker.settimeout(0)
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size, until_s))
        if not _SIZE.size <= size <= MAX_ANSWER_BYTES:
            raise BrokerAwayError(f"it answers with {size} bytes")
        return self._exactly(size, until_s)

    def ask(
        self, request: Any, response: Any, version: int, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Any:
        """Send a request of this RLM, and return the decoded answer; raises as relay."""
        request.API_VERSION = version
        request.with_header(_OWN_CORRELATION_ID, _CLIENT_ID)
        answer = self.relay(bytes(request.encode(header=True)), timeout_s)
        return response.decode(answer, version=version, header=True)

    def _exactly(self, size: int, until_s: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._received(min(size - len(data), _BLOCK_BYTES))
            if piece is None:
                self._wait(until_s)
            elif not piece:
                raise BrokerAwayError("it has closed the connection")
            else:
                data += piece
        return bytes(data)

    def _received(self, size: int) -> bytes | None:
        """Return what is there, empty at the end of the connection; None if nothing is."""
        assert self._broker is not None
        try:
            return self._broker.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None

    def _wait(self, until_s: float) -> None:
        """Wait for bytes of the broker, or until the client leaves."""
        assert self._broker is not None
        poll = select.poll()
        poll.register(self._broker, select.POLLIN)
        if self._client is not None:
            poll.register(self._client, _LEFT)
        ready = [fd for fd, _ in poll.poll(max(until_s - time.monotonic(), 0) * 1000)]
        if not ready:
            raise BrokerAwayError("it does not answer in time")
        if self._broker.fileno() not in ready:
            raise EOFError


class BrokerVersions:
    """The versions of requests that the broker serves, for all connections. Thread-safe."""

    def __init__(self, beside: Beside, clock: Callable[[], float] = time.monotonic) -> None:
        self._beside = beside
        self._clock = clock
        self._known: dict[int, tuple[int, int]] = {}
        self._ask_again_s = 0.0
        self._lock = Lock()

    def known(self) -> Mapping[int, tuple[int, int]]:
        """Return first and last version by API key; the last ones known if the broker is away."""
        with self._lock:
            if self._clock() >= self._ask_again_s:
                self._ask()
            return self._known

    def _ask(self) -> None:
        connection = BackingConnection(self._beside)
        try:
            request = ApiVersionsRequest(client_software_name="", client_software_version="")
            answer = connection.ask(request, ApiVersionsResponse, 0, VERSIONS_TIMEOUT_S)
        except BrokerAwayError as e:
            self._ask_again_s = self._clock() + ASKED_AGAIN_AFTER_S
            _log.warning("consumers may have no groups: %s", e)
        else:
            self._ask_again_s = self._clock() + VERSIONS_FOR_S
            self._known = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        finally:
            connection.close()


class ReadableTopics:
    """The topics that the user of a connection may read, as the broker says. Not thread-safe."""

    def __init__(
        self,
        connection: BackingConnection,
        versions: BrokerVersions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._versions = versions
        self._clock = clock
        self._known: dict[str, bool] = {}
        self._old_at_s = 0.0

    def check_login(self) -> None:
        """Ask the broker for nothing: it answers only a user who has logged in.

        Raises:
            BrokerAwayError: it does not answer.
        """
        self._ask(())

    def expect(self, topics: Iterable[str]) -> None:
        """Ask for topics at once that `may_read` is about to be asked for."""
        wanted = set(topics)
        if self._clock() >= self._old_at_s or len(self._known) > KNOWN_TOPICS:
            wanted |= {topic for topic, may_read in self._known.items() if may_read}
            self._known, self._old_at_s = {}, self._clock() + READABLE_FOR_S
        wanted -= self._known.keys()
        if wanted:
            self._known |= dict.fromkeys(wanted, False) | self._ask(sorted(wanted))

    def may_read(self, topic: str) -> bool:
        """Return whether the user may; False also if the broker has no such topic.

        Raises:
            BrokerAwayError: the broker does not answer.
        """
        self.expect((topic,))
        return self._known[topic]

    def _ask(self, topics: Iterable[str]) -> dict[str, bool]:
        first, last = self._versions.known().get(_METADATA, (0, 0))
        version = min(last, _KNOWN_TO_SCHEMA)
        if not first <= _OPERATIONS_SINCE <= version:
            raise BrokerAwayError("the broker does not say who may read: it needs Kafka 2.3")
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
        )
        answer = self._connection.ask(request, MetadataResponse, version)
        return {
            topic.name: not topic.error_code and _READ in (topic.authorized_operations or ())
            for topic in answer.topics
        }
