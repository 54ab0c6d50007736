"""Read from RLM through each of its doors, gRPC and Kafka's protocol, in the form of a broker."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from services.api.ids import TopicIdPartition
from services.api.offset_queries import FoundOffset, OffsetQueries, OffsetQuery, OffsetService
from services.api.remote_log_manager import (
    MAX_FETCH_BYTES,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
)
from services.rlm.manager import BrokerRemoteLogManager
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.broker_answers import BrokerFetch, broker_answers
from tests.harness.consumer_listener import serving_consumers
from tests.harness.served_rlm import served_rlm

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
        answers: list[FoundOffset] = []
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
