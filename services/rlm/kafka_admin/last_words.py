"""A client of kafka-python that hears a broker's last words.

The library drops what it reads together with the end of a connection, and a broker that refuses a
login says so and hangs up at once: all that was left was "socket disconnected". Methods of its own
are changed for that (docs/adr/0034: the extra takes 3.0 only); tests/kafka/test_secured_broker.py
tells when that no longer helps.
"""

from typing import Any

from kafka.net import KafkaNetClient


def listening_client(**options: Any) -> Any:
    """A KafkaNetClient that takes what came first, and the end of the connection with the next
    read."""
    client = KafkaNetClient(**options)
    build = client._manager._build_transport

    async def build_transport(*args: Any, **kwargs: Any) -> Any:
        transport = await build(*args, **kwargs)
        receive = transport._sock_recv

        def receive_what_came_first() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error

        transport._sock_recv = receive_what_came_first
        return transport

    client._manager._build_transport = build_transport
    return client
