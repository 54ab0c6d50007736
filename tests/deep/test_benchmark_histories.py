"""The benchmarks' made-up histories are what RLMM itself would have written."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine

from benchmarks.rlmm.histories import (
    BROKER_ID,
    CUSTOM_METADATA,
    EPOCHS,
    FIRST_EVENT_MS,
    MIN_SEGMENTS,
    OFFSETS_PER_SEGMENT,
    SIZE_BYTES,
    Layout,
    PartitionHistory,
    store,
)
from services.api.ids import RemoteLogSegmentId, uuid_to_text
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.local_servers import DatabaseServer

LAYOUT = Layout(partitions=2, segments=MIN_SEGMENTS, large_segments=25)
TABLES = ("topics", "partitions", "segments", "segment_epochs", "highest_offsets", "events")
# When, by whom and in which transactions; a made-up history has no callers, and is made in one.
IGNORED = frozenset({"at", "created_at", "changed_at", "actor", "call_id", "transaction_id"})


@pytest.fixture
def made_up_url(postgres: DatabaseServer, migrated_database: str) -> Iterator[str]:
    """The URL of a second database."""
    name = f"made_up_{uuid4().hex}"
    yield postgres.create_database(name, template=migrated_database)
    postgres.drop_database(name)


@pytest.mark.parametrize("layout", [LAYOUT, replace(LAYOUT, is_whole=True)])
def test_generated_history_equals_the_rows_of_rlmm(
    layout: Layout, database_url: str, made_up_url: str
) -> None:
    store(made_up_url, layout)
    engine = create_database_engine(database_url)
    for history in layout.partition_histories():
        write(engine, history)
    engine.dispose()
    for table in TABLES:
        written, made_up = rows(database_url, table), rows(made_up_url, table)
        assert len(written) > 0
        assert made_up == written, table


def write(engine: Engine, history: PartitionHistory) -> None:
    """Copy all segments through RLMM, then delete those that are gone."""
    manager = SqlRemoteLogMetadataManager(engine)
    for number in range(history.segments):
        manager.add_remote_log_segment_metadata(segment(history, number))
        manager.update_remote_log_segment_metadata(
            update(history, number, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, CUSTOM_METADATA)
        )
    for number in history.gone_segments:
        for state in (
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
        ):
            manager.update_remote_log_segment_metadata(update(history, number, state))


def segment(history: PartitionHistory, number: int) -> RemoteLogSegmentMetadata:
    first, last = number * OFFSETS_PER_SEGMENT, (number + 1) * OFFSETS_PER_SEGMENT - 1
    starts = {}
    for epoch in range(EPOCHS):
        epoch_first, epoch_last = history.epoch_offsets(epoch)
        if epoch_first <= last and epoch_last >= first:
            starts[epoch] = max(first, epoch_first)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=segment_id(history, number),
        start_offset=first,
        end_offset=last,
        max_timestamp_ms=at_ms(number),
        broker_id=BROKER_ID,
        event_timestamp_ms=at_ms(number),
        segment_leader_epochs=segment_leader_epochs(list(starts.items())),
        segment_size_in_bytes=SIZE_BYTES,
        txn_idx_empty=number % 10 != 0,
        broker_leader_epoch=max(starts),
    )


def update(
    history: PartitionHistory,
    number: int,
    state: RemoteLogSegmentState,
    custom_metadata: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id(history, number), at_ms(number), state, BROKER_ID, custom_metadata
    )


def segment_id(history: PartitionHistory, number: int) -> RemoteLogSegmentId:
    tp = history.topic_id_partition
    text = f"{uuid_to_text(tp.topic_id)}:{tp.partition}:{number}"
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return RemoteLogSegmentId(tp, UUID(digest))


def at_ms(number: int) -> int:
    return FIRST_EVENT_MS + number * 1000


def rows(database_url: str, table: str) -> Sequence[Mapping[str, Any]]:
    """All of them, in one order, without what is IGNORED."""
    with psycopg.connect(database_url.replace("+psycopg", ""), row_factory=dict_row) as connection:
        found = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
    kept = [{name: row[name] for name in row if name not in IGNORED} for row in found]
    return sorted(kept, key=repr)
