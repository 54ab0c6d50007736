"""Read a partition through RLM's Kafka listener as an ordinary consumer does, counting bytes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct, unpack_from

from kafka.protocol.consumer import FetchRequest

from services.api.ids import TopicIdPartition

_VERSION = 11
_MOST_EMPTY = 20
_SIZE = Struct(">i")
_PARTITION_HEAD = Struct(">ihqqqi")  # index, error, two ends, log start, aborted transactions
_BATCH_HEAD = Struct(">qi11xi")
_BATCH_HEADER_BYTES = 12


class ListenerReader:
    """Read by fetches of one size, each after the answer to the one before."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self._connection = connection
        self._answer = memoryview(bytearray(2 * most_bytes))

    def read_all(
        self, name: TopicIdPartition, fetch_bytes: int, size: int, is_committed: bool = False
    ) -> int:
        """Read from offset 0 until `size` bytes have come; return how many came.

        Args:
            is_committed: with READ_COMMITTED, as librdkafka's consumers do by default.
        """
        offset = got = empty = 0
        while got < size:
            self._connection.sendall(_request(name, offset, fetch_bytes, is_committed))
            before = got
            for next_offset, batch_bytes in _batches(self._received()):
                offset, got = next_offset, got + batch_bytes
            # On a busy machine a read may run out of its wait: consumers ask again.
            empty = 0 if got > before else empty + 1
            if empty > _MOST_EMPTY:
                raise RuntimeError(f"no records at offset {offset}")
        return got

    def _received(self) -> memoryview:
        self._fill(_SIZE.size)
        (size,) = _SIZE.unpack_from(self._answer)
        self._fill(size)
        return self._answer[:size]

    def _fill(self, size: int) -> None:
        at = 0
        while at < size:
            at += self._connection.recv_into(self._answer[at:size])


@contextmanager
def connected(address: str, most_bytes: int) -> Iterator[ListenerReader]:
    """Connect to a listener without TLS."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ListenerReader(connection, most_bytes)


def _request(name: TopicIdPartition, offset: int, fetch_bytes: int, is_committed: bool) -> bytes:
    topic = FetchRequest.FetchTopic
    wanted = topic.FetchPartition(
        partition=name.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=fetch_bytes,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=fetch_bytes,
        isolation_level=int(is_committed),
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=name.topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
    )
    request.with_header(correlation_id=1, client_id="bench")
    return bytes(request.encode(version=_VERSION, header=True, framed=True))


def _batches(answer: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the offset behind each whole batch of an answer, and its size."""
    at = 4 + 4 + 2 + 4 + 4  # correlation id, throttle time, error, session, topics
    (name_bytes,) = unpack_from(">h", answer, at)
    at += 2 + name_bytes + 4
    _, error, _, _, _, aborted = _PARTITION_HEAD.unpack_from(answer, at)
    if error:
        raise RuntimeError(f"the listener answered with error {error}")
    at += _PARTITION_HEAD.size + 16 * max(aborted, 0) + 4 + 4  # replica, size of the records
    while at + _BATCH_HEAD.size <= len(answer):
        base_offset, length, last_delta = _BATCH_HEAD.unpack_from(answer, at)
        at += _BATCH_HEADER_BYTES + length
        if at > len(answer):
            return
        yield base_offset + last_delta + 1, _BATCH_HEADER_BYTES + length
