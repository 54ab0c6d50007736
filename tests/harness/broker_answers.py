"""Send a broker single requests of a consumer: Fetch, ListOffsets, OffsetForLeaderEpoch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
_NOT_LEADER_OR_FOLLOWER = 6
_Topic: Any = FetchRequest.FetchTopic
_Offsets: Any = ListOffsetsRequest.ListOffsetsTopic
_Epochs: Any = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


class NotLeaderError(RuntimeError):
    """The broker does not lead the partition, or does not know yet that it does."""


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
        """Return (timestamp, offset, leader epoch) for each time or special value.

        Raises:
            NotLeaderError: another broker leads the partition.
        """
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
        if answer.error_code == _NOT_LEADER_OR_FOLLOWER:
            raise NotLeaderError(name.topic)
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
