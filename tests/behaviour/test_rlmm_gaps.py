"""Test recorded gaps: their maximum number, and the cost of reports and reads."""

from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.partitions import MAX_GAPS, OffsetGap, is_recorded
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.gaps import gaps, known, record
from tests.contract.rlmm.segments import (
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    finished,
    put_deletion,
    revision_of,
)

TP = TopicIdPartition(uuid4(), "orders", 0)

FULL = """
    INSERT INTO gaps (topic_id, partition, start_offset, end_offset, kind, revision)
    SELECT :id, 0, 10 * number, 10 * number + 4, 'LOST_BEFORE_COPY', 1
    FROM generate_series(1, :count) AS number"""


@pytest.fixture
def full(engine: Engine) -> SqlRemoteLogMetadataManager:
    """Provide an RLMM with the maximum number of gaps: 10 to 14, 20 to 24 and so on."""
    rlmm = SqlRemoteLogMetadataManager(engine)
    known(rlmm, TP)
    with engine.begin() as connection:
        connection.execute(text(FULL), {"id": TP.topic_id, "count": MAX_GAPS})
    return rlmm


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM gaps")).scalar_one())


def test_of_more_gaps_than_are_kept_the_lowest_goes(
    full: SqlRemoteLogMetadataManager, engine: Engine
) -> None:
    assert record(full, TP, 5, 9).applied  # joined to the first: there are not more
    assert gaps(full, TP)[0] == (5, 14)
    assert record(full, TP, 20_000, 20_004).applied
    kept = full.partition_state(TP).value
    assert (kept.gaps[0], kept.gaps[-1]) == (OffsetGap(20, 24), OffsetGap(20_000, 20_004))
    assert len(kept.gaps) == rows(engine) == MAX_GAPS


@pytest.mark.deep
def test_gaps_merged_beyond_the_limit_count_as_recorded(full: SqlRemoteLogMetadataManager) -> None:
    record(full, TP, 20_000, 20_004)
    before = revision_of(full, TP)
    kept = full.partition_state(TP).value.gaps
    for start, end in ((10, 14), (0, 18), (15, 16)):
        assert not record(full, TP, start, end).applied
        assert is_recorded(kept, start, end)
    assert revision_of(full, TP) == before
    for start, end in ((19, 19), (25, 26), (10, 30)):
        assert not is_recorded(kept, start, end)
        assert record(full, TP, start, end).applied


def test_one_in_the_middle_of_many_pushes_out_the_lowest_too(
    full: SqlRemoteLogMetadataManager,
) -> None:
    assert record(full, TP, 507, 507).applied
    found = gaps(full, TP)
    assert (found[0], len(found)) == ((20, 24), MAX_GAPS)
    assert (507, 507) in found


def test_there_is_room_again_when_the_log_start_has_risen(
    full: SqlRemoteLogMetadataManager, engine: Engine
) -> None:
    finished(full, TP, 20_000, 20_009)
    full.raise_log_start_offset(TP, 102)
    assert rows(engine) == MAX_GAPS - 9
    assert gaps(full, TP)[0] == (102, 104)
    assert record(full, TP, 106, 107).applied


def test_a_deleted_partition_leaves_no_gaps_behind(
    full: SqlRemoteLogMetadataManager, engine: Engine
) -> None:
    put_deletion(full, TP, MARKED, PARTITION_STARTED)
    assert rows(engine) == MAX_GAPS
    put_deletion(full, TP, PARTITION_FINISHED)
    assert rows(engine) == 0
