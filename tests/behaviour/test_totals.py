"""Test that a partition's totals are those of its segments, whatever changed them."""

from dataclasses import replace
from uuid import uuid4

from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import SegmentUpdate, all_partitions
from services.api.segment_batches import SegmentAddition, SegmentImport
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.maintenance import MaintenancePlan, maintain
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    add,
    finished,
    move,
    put_deletion,
    segment,
    update_to,
)

TP = TopicIdPartition(uuid4(), "orders", 0)


def totals(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition = TP) -> SegmentTotals:
    [found] = [each.totals for each in all_partitions(rlmm) if each.topic_id_partition == tp]
    return found


def test_each_change_of_state_moves_the_totals(rlmm: SqlRemoteLogMetadataManager) -> None:
    finished(rlmm, TP, 0, 9, segment_size_in_bytes=5)
    copy = add(rlmm, segment(TP, 10, 19, segment_size_in_bytes=70))
    assert totals(rlmm) == SegmentTotals(1, 5, 2, 75)
    move(rlmm, copy, FINISHED)
    move(rlmm, copy, FINISHED)
    assert totals(rlmm) == SegmentTotals(2, 75, 2, 75)
    move(rlmm, copy, DELETE_STARTED)
    assert totals(rlmm) == SegmentTotals(1, 5, 2, 75)
    move(rlmm, copy, DELETE_FINISHED)
    assert totals(rlmm) == SegmentTotals(1, 5, 1, 5)


def test_batches_move_the_totals_of_several_partitions(rlmm: SqlRemoteLogMetadataManager) -> None:
    other = replace(TP, partition=1)
    copies = [segment(tp, n, n, segment_size_in_bytes=10) for tp in (TP, other) for n in range(3)]
    for _ in range(2):
        rlmm.add_remote_log_segment_metadata_batch([SegmentAddition(each) for each in copies])
    assert totals(rlmm) == totals(rlmm, other) == SegmentTotals(0, 0, 3, 30)
    unknown = segment(TP, 7, 7)
    updates = [SegmentUpdate(update_to(each, FINISHED)) for each in (*copies[1:], unknown)]
    rlmm.update_remote_log_segment_metadata_batch(updates)
    assert totals(rlmm) == SegmentTotals(2, 20, 3, 30)
    assert totals(rlmm, other) == SegmentTotals(3, 30, 3, 30)


def test_imports_count_each_state(rlmm: SqlRemoteLogMetadataManager) -> None:
    states = (STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED)
    imported = tuple(
        segment(TP, n, n, segment_size_in_bytes=10**n, state=state)
        for n, state in enumerate(states)
    )
    for _ in range(2):
        rlmm.import_remote_log_segments([SegmentImport(imported)])
    assert totals(rlmm) == SegmentTotals(1, 10, 3, 111)


def test_purges_and_removal_leave_nothing(
    rlmm: SqlRemoteLogMetadataManager, engine: Engine, database_url: str
) -> None:
    gone = finished(rlmm, TP, 0, 9)
    move(rlmm, gone, DELETE_STARTED, DELETE_FINISHED)
    maintain(database_url, MaintenancePlan(delete_retention_ms=0))
    assert totals(rlmm) == NO_SEGMENTS
    put_deletion(rlmm, TP, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT live_segments, live_bytes FROM partitions")).one()
    assert tuple(stored) == (0, 0)


def test_a_list_of_partitions_reads_no_segments(
    rlmm: SqlRemoteLogMetadataManager, engine: Engine
) -> None:
    for number in range(3):
        finished(rlmm, replace(TP, partition=number), 0, 9)
    with engine.connect() as connection:
        connection.execute(text("DROP TABLE segments CASCADE"))
        connection.execute(
            text(
                "CREATE VIEW segments AS "
                "SELECT p.topic_id, p.partition, 1 AS segment_size_in_bytes, "
                "(1 / (p.revision - p.revision))::text AS state FROM partitions AS p"
            )
        )
        connection.commit()
    assert [each.totals for each in all_partitions(rlmm)] == [
        SegmentTotals(1, 1_048_576, 1, 1_048_576)
    ] * 3
