"""Test that a partition's totals are those of its segments, whatever changed them."""

from dataclasses import replace
from uuid import uuid4

from sqlalchemy import text

from services.api.ids import TopicIdPartition
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import all_partitions
from services.api.remote_storage_manager import IndexType
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.maintenance import MaintenancePlan, maintain
from services.rsm.layout import CustomMetadata
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    add,
    finished,
    move,
    put_deletion,
    segment,
)
from tests.harness.databases import OwnRlmm

TP = TopicIdPartition(uuid4(), "orders", 0)


def totals(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition = TP) -> SegmentTotals:
    [found] = [each.totals for each in all_partitions(rlmm) if each.topic_id_partition == tp]
    return found


def test_each_change_of_state_moves_the_totals(rlmm: OwnRlmm) -> None:
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


def test_what_transforms_save_counts_while_a_segment_is_finished(rlmm: OwnRlmm) -> None:
    def custom(stored: int | None) -> bytes:
        sizes = dict.fromkeys(IndexType, 0)
        return CustomMetadata(
            1, "00" * 8, 100, sizes, bytes(16), stored_log_bytes=stored
        ).to_bytes()

    copy = add(rlmm, segment(TP, 0, 9, segment_size_in_bytes=100))
    move(rlmm, copy, FINISHED, custom_metadata=custom(25))
    assert totals(rlmm) == SegmentTotals(1, 100, 1, 100, 75)
    rlmm.replace_segment_data(copy.remote_log_segment_id, custom(25), custom(116))
    assert totals(rlmm).saved_bytes == -16
    rlmm.replace_segment_data(copy.remote_log_segment_id, custom(116), custom(None))
    assert totals(rlmm).saved_bytes == 0
    rlmm.replace_segment_data(copy.remote_log_segment_id, custom(None), custom(25))
    move(rlmm, copy, DELETE_STARTED)
    assert totals(rlmm) == SegmentTotals(0, 0, 1, 100)
    unsized = add(rlmm, segment(TP, 10, 19, segment_size_in_bytes=-1))
    move(rlmm, unsized, FINISHED, custom_metadata=custom(25))
    assert totals(rlmm).saved_bytes == 0


def test_purges_and_removal_leave_nothing(rlmm: OwnRlmm) -> None:
    gone = finished(rlmm, TP, 0, 9)
    move(rlmm, gone, DELETE_STARTED, DELETE_FINISHED)
    maintain(rlmm.database_url, MaintenancePlan(delete_retention_ms=0))
    assert totals(rlmm) == NO_SEGMENTS
    unsized = finished(rlmm, TP, 10, 19, segment_size_in_bytes=-1)
    assert totals(rlmm) == SegmentTotals(1, 0, 1, 0)
    move(rlmm, unsized, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(rlmm, TP, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    with rlmm.engine.connect() as connection:
        stored = connection.execute(text("SELECT live_segments, live_bytes FROM partitions")).one()
    assert tuple(stored) == (0, 0)


def test_a_list_of_partitions_reads_no_segments(rlmm: OwnRlmm) -> None:
    for number in range(3):
        finished(rlmm, replace(TP, partition=number), 0, 9)
    with rlmm.engine.connect() as connection:
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
