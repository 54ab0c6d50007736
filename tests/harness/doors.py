"""Read from RLM through each of its doors: gRPC, Kafka's protocol, and byte by byte."""

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from struct import unpack
from typing import Any, Protocol
from uuid import UUID

from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest
from prometheus_client import REGISTRY

from services.api.ids import TopicIdPartition
from services.api.offset_queries import OffsetAnswer, OffsetQueries, OffsetQuery, OffsetService
from services.api.remote_log_manager import (
    MAX_FETCH_BYTES,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
)
from services.local.process import LOOPBACK
from services.rlm.consumers.backing import Beside
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.consumers.listener import Access, ConsumerLimits, ConsumerListener
from services.rlm.manager import BrokerRemoteLogManager
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.broker_answers import BrokerFetch, broker_answers
from tests.harness.served import served_rlm

DOORS = ("gRPC", "Kafka")
CODES = {
    FetchError.NONE: 0,
    FetchError.OFFSET_OUT_OF_RANGE: 1,
    FetchError.CORRUPT_MESSAGE: 2,
    FetchError.UNKNOWN_TOPIC_ID: 3,
    FetchError.NOT_LEADER_OR_FOLLOWER: 6,
    FetchError.TIERED_STORAGE_NOT_AVAILABLE: 56,
    FetchError.FENCED_LEADER_EPOCH: 74,
    FetchError.UNKNOWN_LEADER_EPOCH: 75,
    FetchError.UNKNOWN_SERVER_ERROR: -1,
}
"""Kafka's codes (kafka-clients: Errors), by topic name."""


class Door(Protocol):
    """What a broker answers, too."""

    def fetch(
        self,
        name: TopicIdPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel,
        *,
        partition_max_bytes: int | None = None,
    ) -> BrokerFetch: ...

    def fetch_all(
        self,
        partitions: Sequence[FetchPartition],
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[BrokerFetch]: ...

    def offsets(
        self, name: TopicIdPartition, times_ms: Sequence[int], isolation: IsolationLevel
    ) -> list[tuple[int, int, int]]: ...


class GrpcDoor:
    """Asks an RLM over gRPC."""

    def __init__(self, rlm: OffsetService) -> None:
        self._rlm = rlm

    def fetch(
        self,
        name: TopicIdPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel,
        *,
        partition_max_bytes: int | None = None,
    ) -> BrokerFetch:
        of_partition = max_bytes if partition_max_bytes is None else partition_max_bytes
        wanted = FetchPartition(name, offset, _allowed(of_partition))
        (answer,) = self.fetch_all([wanted], max_bytes, isolation)
        return answer

    def fetch_all(
        self,
        partitions: Sequence[FetchPartition],
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[BrokerFetch]:
        # Kafka takes any limit.
        wanted = tuple(replace(each, max_bytes=_allowed(each.max_bytes)) for each in partitions)
        request = FetchRequest(wanted, _allowed(max_bytes), isolation)
        found = groupby(self._rlm.fetch(request), lambda part: part.topic_id_partition)
        return [_joined(list(parts)) for _, parts in found]

    def offsets(
        self, name: TopicIdPartition, times_ms: Sequence[int], isolation: IsolationLevel
    ) -> list[tuple[int, int, int]]:
        # One at a time: all queries of one request share the time that it may take.
        answers: list[OffsetAnswer] = []
        for time_ms in times_ms:
            query = OffsetQuery(name, time_ms)
            answers += self._rlm.list_offsets(OffsetQueries((query,), isolation))
        assert {answer.error for answer in answers} <= {FetchError.NONE}
        return [
            (a.timestamp_ms, a.offset, -1 if a.leader_epoch is None else a.leader_epoch)
            for a in answers
        ]


def _allowed(max_bytes: int) -> int:
    return min(max(max_bytes, 1), MAX_FETCH_BYTES)


def _joined(parts: Sequence[FetchPart]) -> BrokerFetch:
    first = parts[0]
    diverging = first.diverging_epoch
    return BrokerFetch(
        CODES[first.error],
        first.high_watermark,
        first.last_stable_offset,
        first.log_start_offset,
        tuple(each for part in parts for each in part.aborted_transactions),
        b"".join(part.record_batches for part in parts),
        None if diverging is None else (diverging.leader_epoch, diverging.end_offset),
    )


@contextmanager
def opened(door: str, rlm: BrokerRemoteLogManager) -> Iterator[Door]:
    """Serve an RLM through one of DOORS, and connect to it."""
    if door == "gRPC":
        with served_rlm(rlm) as (channel, address):
            yield GrpcDoor(RemoteLogManagerClient(channel, address))
        return
    with serving_consumers(rlm) as address, broker_answers(address) as answers:
        yield answers


NODE_ID = 7


@contextmanager
def serving_consumers(
    rlm: ConsumedLog,
    access: Access | None = None,
    beside: Beside | None = None,
    node_id: int = NODE_ID,
    **limits: Any,
) -> Iterator[str]:
    """Serve consumers in this process; yield HOST:PORT."""
    made = ConsumerLimits(**limits)
    listener = ConsumerListener(rlm, (LOOPBACK, 0), access, node_id, limits=made, beside=beside)
    listener.start()
    try:
        yield listener.address
    finally:
        listener.stop()


def fetch_of(
    topic_id: UUID, offset: int, partitions: Iterable[int] = (0,), max_wait_ms: int = 0
) -> Any:
    """Return a request for a batch at most; it waits for one if `max_wait_ms` is set."""
    kind = KafkaFetchRequest.FetchTopic
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
    return KafkaFetchRequest(
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
