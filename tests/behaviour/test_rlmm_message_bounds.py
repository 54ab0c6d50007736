"""Test that rows which do not fit into a message are not read."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.database.db import key_of, partition_row, run
from services.rlmm.database.limits import MAX_PAGE_BYTES, Limits, segment_size_bytes
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.reads.lookups import BY_ID, SEGMENTS_FOR_OFFSETS
from tests.contract.rlmm.segments import finished, id_of

TP = TopicIdPartition(uuid4(), "orders", 0)
LARGEST_BYTES = 65_536
COUNT = 80
FITTING = 47
"""Segments of that size, with all that is in a segment."""


@pytest.fixture
def made(engine: Engine) -> Sequence[RemoteLogSegmentMetadata]:
    rlmm = SqlRemoteLogMetadataManager(engine, Limits(custom_metadata_bytes=LARGEST_BYTES))
    return [
        finished(rlmm, TP, start, start, custom_metadata=bytes(LARGEST_BYTES))
        for start in range(COUNT)
    ]


def require_bounded(rows: Sequence[Any]) -> None:
    assert len(rows) == FITTING
    sizes = [segment_size_bytes(row) for row in rows]
    assert sum(sizes) <= MAX_PAGE_BYTES < sum(sizes) + sizes[0]


def test_ids_beyond_a_message_are_not_read(
    engine: Engine, made: Sequence[RemoteLogSegmentMetadata]
) -> None:
    keys = {"topic_id": TP.topic_id, "partition": 0, "ids": [id_of(each) for each in made]}
    with engine.connect() as connection:
        require_bounded(connection.exec_driver_sql(BY_ID, keys).all())


def test_look_ups_beyond_a_message_are_not_read(
    engine: Engine, made: Sequence[RemoteLogSegmentMetadata]
) -> None:
    key = partition_row(key_of(TP))
    wanted = [
        {**key, "place": place, "leader_epoch": 0, "offset": offset}
        for place, offset in enumerate([*range(COUNT), COUNT + 100])
    ]
    with engine.connect() as connection:
        rows = sorted(run(connection, SEGMENTS_FOR_OFFSETS, wanted), key=lambda row: row.place)
    assert len(rows) == COUNT + 1
    require_bounded([row for row in rows if row.segment_id is not None])
    assert [row.is_left_out for row in rows] == [n >= FITTING for n in range(COUNT)] + [False]
