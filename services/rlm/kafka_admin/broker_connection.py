"""One connection to one broker, for as long as a few questions take."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kafka.net import KafkaNetClient

from services.rlm.kafka_admin.client_security import ClientSecurity
from services.rlm.kafka_admin.last_words import listening_client

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 3.0
_GIVEN_UP_AFTER_S = 1.0
"""The request has timed out by then, if the library does what it says."""


class BrokerConnection:
    """What `connected` gives."""

    def __init__(self, client: KafkaNetClient, node_id: str, timeout_s: float) -> None:
        self._client = client
        self._node_id = node_id
        self._timeout_s = timeout_s

    def ask(self, request: Any) -> Any:
        """The answer, in bounded time. Raises whatever the library raises."""
        answer = self._client.send(self._node_id, request)
        self._client.poll(timeout_ms=(self._timeout_s + _GIVEN_UP_AFTER_S) * 1000, future=answer)
        if not answer.is_done:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        if answer.exception is not None:
            raise answer.exception
        return answer.value


@contextmanager
def connected(
    server: str, security: ClientSecurity, timeout_s: float
) -> Iterator[BrokerConnection]:
    """Connect to HOST:PORT; nothing is left of it afterwards, neither thread nor file.

    Args:
        timeout_s: of each request; of the connection, and of a TLS handshake, no more than
            CONNECT_TIMEOUT_S.
    """
    connect_timeout_s = min(timeout_s, CONNECT_TIMEOUT_S)
    client = listening_client(
        bootstrap_servers=[server],
        client_id="sediment-rlm",
        request_timeout_ms=timeout_s * 1000,
        socket_connection_setup_timeout_ms=connect_timeout_s * 1000,
        receive_message_max_bytes=MAX_ANSWER_BYTES,
        **security.options,
    )
    with closing(client):
        (broker,) = client.cluster.bootstrap_brokers()
        _try(broker.host, broker.port, connect_timeout_s, security.ssl_context)
        yield BrokerConnection(client, broker.node_id, timeout_s)


def _try(host: str, port: int, timeout_s: float, context: ssl.SSLContext | None) -> None:
    """The library leaves the socket of a refused connection, and of a TLS handshake that fails, to
    the garbage collector, and waits for a handshake without an end."""
    with socket.create_connection((host, port), timeout_s) as connection:
        if context is not None:
            context.wrap_socket(connection, server_hostname=host.rstrip(".")).close()
