"""Send a broker single requests of a consumer: Fetch, ListOffsets, OffsetForLeaderEpoch."""

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from threading import Event
from typing import Any

from kafka.errors import NodeNotReadyError
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import AbortedTransaction, FetchPartition, IsolationLevel
from services.rlm.kafka_admin.client import BrokerConnection, connected
from services.rlm.kafka_admin.security import KafkaSecurity

_TIMEOUT_S = 30.0
_CONSUMER = -1
_WITH_NAMES = 12  # later versions of Fetch have topic ids only
_LEVELS = {IsolationLevel.READ_UNCOMMITTED: 0, IsolationLevel.READ_COMMITTED: 1}
_Topic: Any = FetchRequest.FetchTopic
_Offsets: Any = ListOffsetsRequest.ListOffsetsTopic
_Epochs: Any = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


@dataclass(frozen=True)
class BrokerFetch:
    """A broker's answer to Fetch for one partition; `diverging` is (epoch, end offset) or None."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    records: bytes
    diverging: tuple[int, int] | None


class BrokerAnswers:
    """Asks a broker that leads the partitions."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    def fetch(
        self,
        name: TopicIdPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel,
        last_fetched_epoch: int = -1,
        current_leader_epoch: int = -1,
        partition_max_bytes: int | None = None,
    ) -> BrokerFetch:
        wanted = FetchPartition(
            name, offset, 1, _known(current_leader_epoch), _known(last_fetched_epoch)
        )
        of_partition = max_bytes if partition_max_bytes is None else partition_max_bytes
        (answer,) = self._fetch([wanted], max_bytes, isolation, of_partition)
        return answer

    def fetch_all(
        self,
        partitions: Sequence[FetchPartition],
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[BrokerFetch]:
        """Fetch several partitions with one request."""
        return self._fetch(partitions, max_bytes, isolation)

    def _fetch(
        self,
        partitions: Sequence[FetchPartition],
        max_bytes: int,
        isolation: IsolationLevel,
        partition_max_bytes: int | None = None,
    ) -> list[BrokerFetch]:
        # Kafka takes limits that FetchPartition refuses.
        topics = [
            _Topic(topic=name, partitions=[_wanted(each, partition_max_bytes) for each in of_topic])
            for name, of_topic in groupby(partitions, lambda each: each.topic_id_partition.topic)
        ]
        request: Any = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=_LEVELS[isolation],
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
            max_version=_WITH_NAMES,
        )
        responses = self._unthrottled(request).responses
        return [_fetched(answer) for topic in responses for answer in topic.partitions]

    def _unthrottled(self, request: Any) -> Any:
        """Ask; again once an earlier answer lets the client, which keeps to its throttle time."""
        while True:
            try:
                return self._connection.call(request)
            except NodeNotReadyError:
                Event().wait(0.01)

    def offsets(
        self,
        name: TopicIdPartition,
        times_ms: Sequence[int],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[tuple[int, int, int]]:
        """Return (timestamp, offset, leader epoch) for each time or special value."""
        return [self._offset(name, time_ms, isolation) for time_ms in times_ms]

    def _offset(
        self, name: TopicIdPartition, time_ms: int, isolation: IsolationLevel
    ) -> tuple[int, int, int]:
        wanted = _Offsets.ListOffsetsPartition(
            partition_index=name.partition, current_leader_epoch=-1, timestamp=time_ms
        )
        request: Any = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=_LEVELS[isolation],
            topics=[_Offsets(name=name.topic, partitions=[wanted])],
            timeout_ms=int(_TIMEOUT_S * 1000),
            min_version=11,
        )
        ((answer,),) = (topic.partitions for topic in self._connection.call(request).topics)
        assert answer.error_code == 0, answer
        return answer.timestamp, answer.offset, answer.leader_epoch

    def epoch_ends(self, name: TopicIdPartition, epochs: Sequence[int]) -> list[tuple[int, int]]:
        """Return (leader epoch, end offset) for each epoch; (-1, -1) if it is not known."""
        found = []
        for epoch in epochs:
            wanted = _Epochs.OffsetForLeaderPartition(
                partition=name.partition, current_leader_epoch=-1, leader_epoch=epoch
            )
            request: Any = OffsetForLeaderEpochRequest(
                replica_id=_CONSUMER, topics=[_Epochs(topic=name.topic, partitions=[wanted])]
            )
            ((answer,),) = (topic.partitions for topic in self._connection.call(request).topics)
            assert answer.error_code == 0, answer
            found.append((answer.leader_epoch, answer.end_offset))
        return found


def _known(epoch: int) -> int | None:
    return epoch if epoch >= 0 else None


def _wanted(partition: FetchPartition, max_bytes: int | None) -> Any:
    current, last = partition.current_leader_epoch, partition.last_fetched_epoch
    return _Topic.FetchPartition(
        partition=partition.topic_id_partition.partition,
        current_leader_epoch=-1 if current is None else current,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=-1 if last is None else last,
        log_start_offset=-1,
        partition_max_bytes=partition.max_bytes if max_bytes is None else max_bytes,
    )


def _fetched(answer: Any) -> BrokerFetch:
    diverging = answer.diverging_epoch
    has_diverged = diverging is not None and diverging.epoch >= 0
    return BrokerFetch(
        answer.error_code,
        answer.high_watermark,
        answer.last_stable_offset,
        answer.log_start_offset,
        tuple(
            AbortedTransaction(each.first_offset, each.producer_id)
            for each in answer.aborted_transactions or ()
        ),
        bytes(answer.records or b""),
        (diverging.epoch, diverging.end_offset) if has_diverged else None,
    )


@contextmanager
def broker_answers(address: str) -> Iterator[BrokerAnswers]:
    """Connect to a broker at HOST:PORT in plaintext."""
    with connected(address, KafkaSecurity().connection_options(), _TIMEOUT_S) as connection:
        yield BrokerAnswers(connection)


_API_KEY, _API_VERSION = 2, 9  # the version that has every Question here
_CORRELATION_ID = 1
_NO_TAGS = b"\0"
_ANSWER = struct.Struct(">ihqqi")
_NOT_LEADER_OR_FOLLOWER = 6


class NotLeaderError(RuntimeError):
    """The client has to retry, or call another broker."""


class Question(IntEnum):
    """A special value in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    EARLIEST_LOCAL = -4  # KIP-405
    LATEST_TIERED = -5  # KIP-1005: the last offset that is in the tier; -1: none


def list_offset(bootstrap_servers: str, topic: str, partition: int, question: Question) -> int:
    """Return the offset from the broker at HOST:PORT, which must lead the partition.

    Raises:
        NotLeaderError: the broker does not lead the partition, or does not know yet that it does.
        RuntimeError: the broker responds with another error.
    """
    host, _, port = bootstrap_servers.rpartition(":")
    request = _request(topic, partition, question)
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            response = stream.read(size)
    return _offset(response, topic)


def _request(topic: str, partition: int, question: Question) -> bytes:
    header = struct.pack(">hhih", _API_KEY, _API_VERSION, _CORRELATION_ID, -1) + _NO_TAGS
    ordinary_client, read_uncommitted, any_epoch = -1, 0, -1
    asked = struct.pack(">iiq", partition, any_epoch, question) + _NO_TAGS
    topics = _array_of_one(_string(topic) + _array_of_one(asked) + _NO_TAGS)
    return header + struct.pack(">ib", ordinary_client, read_uncommitted) + topics + _NO_TAGS


def _offset(response: bytes, topic: str) -> int:
    header = struct.Struct(">i").size + len(_NO_TAGS)
    throttle_time = struct.Struct(">i").size
    place = header + throttle_time + len(_array_of_one(_string(topic))) + len(_array_of_one(b""))
    _, error, _, offset, _ = _ANSWER.unpack_from(response, place)
    if error == _NOT_LEADER_OR_FOLLOWER:
        raise NotLeaderError(topic)
    if error:
        raise RuntimeError(f"ListOffsets of {topic}: error {error}")
    return int(offset)


def _array_of_one(item: bytes) -> bytes:
    return b"\2" + item  # in the compact form a length is written plus one


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 126:
        raise ValueError(f"{text}: more than one byte of length")
    return bytes([len(data) + 1]) + data
