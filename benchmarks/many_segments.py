"""Store many small segments at once: rows into the tables, objects into the bucket.

The rows and objects are those of RLMM and RSM, without the time that both would need.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
from minio import Minio

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import IndexType
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rsm.layout import CustomMetadata, segment_keys

OFFSETS_PER_SEGMENT = 100
SIZE_BYTES = 1024
_LOCATION_ID = 1
_UPLOAD_THREADS = 8
_INDEXES = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]

_SEGMENT_COLUMNS = (
    "topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms, leader_epochs, "
    "epoch_start_offsets, segment_size_in_bytes, txn_idx_empty, state, custom_metadata, broker_id, "
    "event_timestamp_ms, state_revision, finished_revision"
)


@dataclass(frozen=True)
class ManySegments:
    """Finished segments of one epoch in partitions of one new topic."""

    topic_id: UUID
    topic: str
    segments: Sequence[RemoteLogSegmentMetadata]

    def keys(self) -> list[str]:
        """Return the keys of all their objects."""
        found = []
        for segment in self.segments:
            keys = segment_keys("", segment)
            attempt = CustomMetadata.from_bytes(segment.custom_metadata or b"").attempt
            found += [keys.manifest, keys.log(attempt), keys.indexes(attempt)]
        return found


def make_segments(
    topic: str, partitions: int, per_partition: int, topic_id: UUID | None = None
) -> ManySegments:
    """Describe segments without storing them; of a new topic, unless its id is given."""
    topic_id = topic_id or uuid4()
    segments = [
        _segment(TopicIdPartition(topic_id, topic, partition), number)
        for partition in range(partitions)
        for number in range(per_partition)
    ]
    return ManySegments(topic_id, topic, segments)


def store_rows(database_url: str, many: ManySegments) -> None:
    """Write the rows of RLMM after COPY_SEGMENT_FINISHED, each with a recent report of its
    leader.
    """
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "INSERT INTO topics (topic_id, name) VALUES (%s, %s)", (many.topic_id, many.topic)
        )
        partitions = sorted({s.topic_id_partition.partition for s in many.segments})
        per_partition = len(many.segments) // len(partitions)
        end = per_partition * OFFSETS_PER_SEGMENT
        for partition in partitions:
            cursor.execute(
                "INSERT INTO partitions (topic_id, partition, revision, finished_segments,"
                " finished_bytes, live_segments, live_bytes)"
                " VALUES (%(id)s, %(partition)s, %(revision)s, %(count)s, %(bytes)s, %(count)s,"
                " %(bytes)s)",
                {
                    "id": many.topic_id,
                    "partition": partition,
                    "revision": 2 * per_partition,
                    "count": per_partition,
                    "bytes": per_partition * SIZE_BYTES,
                },
            )
            cursor.execute(
                "INSERT INTO highest_offsets VALUES (%s, %s, 0, %s, %s)",
                (many.topic_id, partition, end - 1, OFFSETS_PER_SEGMENT - 1),
            )
            cursor.execute(
                "INSERT INTO partition_states (topic_id, partition, leader_epochs,"
                " epoch_start_offsets, broker_id, leader_epoch, report_number,"
                " reported_leader_epochs, reported_epoch_start_offsets, local_log_start_offset,"
                " log_end_offset, high_watermark, last_stable_offset, only_local_bytes,"
                " copied_through_offset, lag_bytes, local_trim_offset)"
                " VALUES (%s, %s, '{0}', '{0}', 1, 0, 1, '{0}', '{0}', 0, %s, %s, %s, 0, %s,"
                " 0, -1)",
                (many.topic_id, partition, end + 1, end + 1, end + 1, end - 1),
            )
        with cursor.copy(f"COPY segments ({_SEGMENT_COLUMNS}) FROM STDIN") as copy:
            for row in _segment_rows(many):
                copy.write_row(row)
        with cursor.copy(
            "COPY segment_epochs (topic_id, partition, segment_id, leader_epoch,"
            " segment_start_offset, start_offset, end_offset, referenced, overlapped) FROM STDIN"
        ) as copy:
            for segment in many.segments:
                tp, first, last = (
                    segment.topic_id_partition,
                    segment.start_offset,
                    segment.end_offset,
                )
                copy.write_row(
                    (
                        tp.topic_id,
                        tp.partition,
                        segment.remote_log_segment_id.id,
                        0,
                        first,
                        first,
                        last,
                        True,
                        False,
                    )
                )
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("ANALYZE")


def store_objects(client: Minio, bucket: str, keys: Sequence[str]) -> None:
    """Store a small object under each key."""

    def put(key: str) -> None:
        client.put_object(bucket, key, io.BytesIO(b"sediment"), 8)

    with ThreadPoolExecutor(_UPLOAD_THREADS) as pool:
        list(pool.map(put, keys))


def _segment(tp: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
    segment_id = uuid4()
    sizes: dict[IndexType, int] = dict.fromkeys(_INDEXES, 0)
    custom = CustomMetadata(_LOCATION_ID, segment_id.hex[:16], SIZE_BYTES, sizes, bytes(16))
    start = number * OFFSETS_PER_SEGMENT
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(tp, segment_id),
        start_offset=start,
        end_offset=start + OFFSETS_PER_SEGMENT - 1,
        max_timestamp_ms=1_000 + number,
        broker_id=1,
        event_timestamp_ms=1_000 + number,
        segment_leader_epochs=segment_leader_epochs([(0, start)]),
        segment_size_in_bytes=SIZE_BYTES,
        custom_metadata=custom.to_bytes(),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        txn_idx_empty=True,
    )


def _segment_rows(many: ManySegments) -> Iterator[tuple[object, ...]]:
    for number, segment in enumerate(many.segments):
        tp = segment.topic_id_partition
        yield (
            tp.topic_id,
            tp.partition,
            segment.remote_log_segment_id.id,
            segment.start_offset,
            segment.end_offset,
            segment.max_timestamp_ms,
            [0],
            [segment.start_offset],
            segment.segment_size_in_bytes,
            segment.txn_idx_empty,
            segment.state.value,
            segment.custom_metadata,
            segment.broker_id,
            segment.event_timestamp_ms,
            number + 1,
            number + 1,
        )
