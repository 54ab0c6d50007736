"""Serve an RLM of a test to consumers of Kafka, and send it requests byte by byte."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from struct import unpack
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import FetchRequest
from prometheus_client import REGISTRY

from services.local.process import LOOPBACK
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.consumers.listener import Anyone, ConsumerLimits, ConsumerListener, Peers

NODE_ID = 7


@contextmanager
def serving_consumers(rlm: ConsumedLog, peers: Peers | None = None, **limits: Any) -> Iterator[str]:
    """Serve consumers in this process; yield HOST:PORT."""
    made = ConsumerLimits(**limits)
    listener = ConsumerListener(rlm, (LOOPBACK, 0), peers or Anyone(), NODE_ID, limits=made)
    listener.start()
    try:
        yield listener.address
    finally:
        listener.stop()


def fetch_of(
    topic_id: UUID, offset: int, partitions: Iterable[int] = (0,), max_wait_ms: int = 0
) -> Any:
    """Return a request for a batch at most; it waits for one if `max_wait_ms` is set."""
    kind = FetchRequest.FetchTopic
    wanted = [
        kind.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1,
        )
        for partition in partitions
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[kind(topic_id=topic_id, partitions=wanted)],
        forgotten_topics_data=[],
        rack_id="",
        min_version=13,
    )


def framed(request: Any, version: int = 13) -> bytes:
    request.API_VERSION = version
    request.with_header(5, "client")
    return bytes(request.encode(header=True, framed=True))


def connected_socket(
    address: str, receive_buffer_bytes: int | None = None, source: str = LOOPBACK
) -> socket.socket:
    host, _, port = address.rpartition(":")
    client = socket.socket()
    client.settimeout(10)
    if receive_buffer_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    client.bind((source, 0))
    client.connect((host, int(port)))
    return client


def answered(client: socket.socket) -> bytes:
    with client.makefile("rb") as stream:
        (size,) = unpack(">i", stream.read(4))
        return stream.read(size)


def value_of(gauge: str) -> float | None:
    return REGISTRY.get_sample_value(gauge)
