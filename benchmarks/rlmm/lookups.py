"""Provide look-ups: the offsets to look up, and the ways to look them up."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import psycopg
from psycopg.rows import tuple_row

from benchmarks.rlmm.database import plain_url
from benchmarks.rlmm.histories import EPOCHS, OFFSETS_PER_SEGMENT, Layout, PartitionHistory
from services.api.ids import uuid_to_text
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.rpc.client.channel import open_channel
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

T = TypeVar("T")

PREPARED = 10_000
"""Look-ups that a client draws before it begins, and then repeats."""

# The least that finds the segment: Kafka's rule alone, without revision, overlaps or topic name.
DIRECT_SQL = """
    SELECT s.segment_id, s.start_offset, s.end_offset, s.max_timestamp_ms, s.broker_id,
        s.event_timestamp_ms, s.leader_epochs, s.epoch_start_offsets, s.segment_size_in_bytes,
        s.custom_metadata, s.state, s.txn_idx_empty, s.broker_leader_epoch
    FROM (
        SELECT topic_id, partition, segment_id, end_offset FROM segment_epochs
        WHERE topic_id = %s AND partition = %s AND leader_epoch = %s AND referenced
            AND start_offset <= %s
        ORDER BY start_offset DESC LIMIT 1
    ) AS e
    JOIN segments AS s USING (topic_id, partition, segment_id)
    WHERE e.end_offset >= %s"""


class Where(Enum):
    """The kind of an offset: which part of the history it hits."""

    HIT = "hit"
    HOLE = "hole"
    PAST_THE_END = "past the end"


@dataclass(frozen=True)
class Lookup:
    history: PartitionHistory
    leader_epoch: int
    offset: int


@dataclass(frozen=True)
class Lookups:
    """Look-ups, uniform over the partitions and their epochs, or only over those of the large one.

    `large_only` selects the large partition.
    """

    layout: Layout
    where: Where = Where.HIT
    large_only: bool = False

    def drawn(self, seed: int, count: int = PREPARED) -> list[Lookup]:
        choose = random.Random(seed)
        histories = self.layout.partition_histories()
        histories = histories[:1] if self.large_only else histories
        return [
            self._lookup(choose, choose.choice(histories), choose.randrange(EPOCHS))
            for _ in range(count)
        ]

    def _lookup(
        self, choose: random.Random, history: PartitionHistory, leader_epoch: int
    ) -> Lookup:
        first, last = history.epoch_offsets(leader_epoch)
        gone = history.gone_segments[leader_epoch]
        match self.where:
            case Where.PAST_THE_END:
                offset = last + 1 + choose.randrange(OFFSETS_PER_SEGMENT)
            case Where.HOLE:
                offset = gone * OFFSETS_PER_SEGMENT + choose.randrange(OFFSETS_PER_SEGMENT)
            case Where.HIT:
                offset = choose.randint(first, last)
                if offset // OFFSETS_PER_SEGMENT == gone:
                    offset = first
        return Lookup(history, leader_epoch, offset)


@dataclass(frozen=True)
class RpcLookups:
    """A Workload: GetRemoteLogSegmentMetadata."""

    address: str
    lookups: Lookups
    security: ClientSecurity = PLAINTEXT

    def caller(self, number: int) -> Callable[[], int]:
        stub = pb_grpc.RemoteLogMetadataManagerStub(open_channel(self.address, self.security))
        requests = endlessly([request_for(lookup) for lookup in self.lookups.drawn(number)])
        is_hit = self.lookups.where is Where.HIT

        def once() -> int:
            answer = stub.GetRemoteLogSegmentMetadata(next(requests))
            _require_found(answer.HasField("metadata"), is_hit)
            return 1

        return once


@dataclass(frozen=True)
class SqlLookups:
    """A Workload: DIRECT_SQL, prepared, on a connection of the client's own."""

    database_url: str
    lookups: Lookups

    def caller(self, number: int) -> Callable[[], int]:
        connection = psycopg.connect(plain_url(self.database_url), autocommit=True)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        cursor = connection.cursor(binary=True, row_factory=tuple_row)
        parameters = endlessly([sql_parameters(each) for each in self.lookups.drawn(number)])

        def once() -> int:
            cursor.execute(DIRECT_SQL, next(parameters), prepare=True)
            _require_found(cursor.fetchone() is not None, True)
            return 1

        return once


@dataclass(frozen=True)
class RpcBatchLookups:
    """A Workload: GetRemoteLogSegmentMetadataBatch."""

    address: str
    lookups: Lookups
    batch: int

    def caller(self, number: int) -> Callable[[], int]:
        stub = pb_grpc.RemoteLogMetadataManagerStub(open_channel(self.address, PLAINTEXT))
        requests = endlessly(
            [
                pb.GetRemoteLogSegmentMetadataBatchRequest(lookups=map(request_for, batch))
                for batch in in_batches(self.lookups.drawn(number), self.batch)
            ]
        )

        def once() -> int:
            outcomes = stub.GetRemoteLogSegmentMetadataBatch(next(requests)).outcomes
            for outcome in outcomes:
                _require_found(outcome.result.HasField("metadata"), True)
            return len(outcomes)

        return once


@dataclass(frozen=True)
class PipelinedSqlLookups:
    """A Workload: DIRECT_SQL, prepared; the client waits for the results together."""

    database_url: str
    lookups: Lookups
    batch: int

    def caller(self, number: int) -> Callable[[], int]:
        connection = psycopg.connect(plain_url(self.database_url), autocommit=True)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        cursors = [connection.cursor(binary=True) for _ in range(self.batch)]
        drawn = [sql_parameters(each) for each in self.lookups.drawn(number)]
        batches = endlessly(in_batches(drawn, self.batch))

        def once() -> int:
            with connection.pipeline():
                for cursor, parameters in zip(cursors, next(batches), strict=True):
                    cursor.execute(DIRECT_SQL, parameters, prepare=True)
            for cursor in cursors:
                _require_found(cursor.fetchone() is not None, True)
            return len(cursors)

        return once


def in_batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split into batches of `size` each; the remainder is left out."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]


def request_for(lookup: Lookup) -> pb.GetRemoteLogSegmentMetadataRequest:
    tp = lookup.history.topic_id_partition
    return pb.GetRemoteLogSegmentMetadataRequest(
        topic_id_partition=segment_pb.TopicIdPartition(
            topic_id=uuid_to_text(tp.topic_id), topic=tp.topic, partition=tp.partition
        ),
        epoch_for_offset=lookup.leader_epoch,
        offset=lookup.offset,
    )


def sql_parameters(lookup: Lookup) -> tuple[object, ...]:
    tp, offset = lookup.history.topic_id_partition, lookup.offset
    return tp.topic_id, tp.partition, lookup.leader_epoch, offset, offset


def endlessly(items: Sequence[T]) -> Iterator[T]:
    """Yield the items one after another, repeatedly."""
    while True:
        yield from items


def _require_found(found: bool, expected: bool) -> None:
    if found is not expected:
        raise RuntimeError(f"a segment was {'' if found else 'not '}found")
