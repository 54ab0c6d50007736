"""Test scans: the segments of whole partitions in columns."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from services.api.calls import MutationContext
from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import SCAN_COLUMNS, SegmentBatch, SegmentScan
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    RlmmContractPart,
    finished,
    id_of,
    put_deletion,
    revision_of,
    segment,
)

Row = dict[str, Any]


def rows_of(batch: SegmentBatch) -> list[Row]:
    """The rows of one batch, which must be one Arrow IPC stream with one record batch."""
    with pa.ipc.open_stream(batch.arrow_ipc) as reader:
        [record_batch] = list(reader)
    assert record_batch.num_rows == batch.rows
    rows: list[Row] = record_batch.to_pylist()
    return rows


def scanned(rlmm: RemoteLogMetadataManager, scan: SegmentScan) -> list[Row]:
    return [row for batch in rlmm.scan_remote_log_segments(scan) for row in rows_of(batch)]


def starts(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["partition"], row["start_offset"]) for row in rows]


def assert_partitions_are_contiguous_and_ascend(rows: list[Row]) -> None:
    partitions = [key for key, _ in groupby(rows, lambda row: (row["topic_id"], row["partition"]))]
    assert len(partitions) == len(set(partitions))
    for _, group in groupby(rows, lambda row: (row["topic_id"], row["partition"])):
        order = [(row["start_offset"], row["segment_id"]) for row in group]
        assert all(before < after for before, after in pairwise(order))


class Scans(RlmmContractPart):
    @pytest.fixture
    def scan_tp(self) -> TopicIdPartition:
        """Return a partition of the test's own topic, to which scans are limited."""
        return TopicIdPartition(uuid4(), f"scan-{uuid4().hex}", 0)

    def test_a_batch_has_the_columns_of_the_contract(self, scan_tp: TopicIdPartition) -> None:
        finished(self.rlmm, scan_tp, 0, 9)
        [batch] = self.rlmm.scan_remote_log_segments(SegmentScan(topic=scan_tp.topic))
        schema = pa.ipc.open_stream(batch.arrow_ipc).schema
        types = [str(field.type).replace("item: ", "") for field in schema]
        assert list(zip(schema.names, types, strict=True)) == list(SCAN_COLUMNS)
        assert batch.rows == 1
        assert batch.began_at_ms > 0

    def test_a_row_says_all_of_a_segment_and_of_its_partition(
        self, scan_tp: TopicIdPartition
    ) -> None:
        only = segment(scan_tp, 5, 20, {3: 2, 4: 10}, broker_leader_epoch=4, txn_idx_empty=True)
        self.add(only)
        self.move(only, FINISHED, custom_metadata=b"\x00\xff")
        self.move(only, DELETE_STARTED, context=MutationContext(plan_id="sweep-1"))
        put_deletion(self.rlmm, scan_tp, MARKED)
        assert scanned(self.rlmm, SegmentScan(topic=scan_tp.topic)) == [
            {
                "topic_id": str(scan_tp.topic_id),
                "topic": scan_tp.topic,
                "partition": 0,
                "revision": revision_of(self.rlmm, scan_tp),
                "delete_state": "DELETE_PARTITION_MARKED",
                "segment_id": str(id_of(only)),
                "start_offset": 5,
                "end_offset": 20,
                "max_timestamp_ms": 1_000,
                "broker_id": 1,
                "broker_leader_epoch": 4,
                "event_timestamp_ms": 6_000,
                "leader_epochs": [3, 4],
                "epoch_start_offsets": [2, 10],
                "segment_size_in_bytes": 1_048_576,
                "custom_metadata": b"\x00\xff",
                "state": "DELETE_SEGMENT_STARTED",
                "txn_idx_empty": True,
                "plan_id": "sweep-1",
                "copy_leased": False,
                "kept_until_ms": None,
            }
        ]

    @pytest.mark.parametrize(
        "columns",
        [
            ("segment_size_in_bytes", "topic"),
            ("epoch_start_offsets",),
            ("leader_epochs", "start_offset"),
            ("topic_id",),
        ],
    )
    def test_a_scan_can_be_of_some_columns(
        self, scan_tp: TopicIdPartition, columns: tuple[str, ...]
    ) -> None:
        finished(self.rlmm, scan_tp, 0, 9)
        self.add(segment(scan_tp, 10, 29, {3: 10, 4: 20}))
        whole = scanned(self.rlmm, SegmentScan(topic=scan_tp.topic))
        rows = scanned(self.rlmm, SegmentScan(topic=scan_tp.topic, columns=columns))
        assert rows == [{name: row[name] for name in columns} for row in whole]
        assert [list(row) for row in rows] == 2 * [
            [name for name, _ in SCAN_COLUMNS if name in columns]
        ]

    def test_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="columns: must be some of topic_id, topic"):
            list(self.rlmm.scan_remote_log_segments(SegmentScan(columns=("size",))))

    def test_absent_values_are_null(self, scan_tp: TopicIdPartition) -> None:
        self.add(segment(scan_tp, 0, 9))
        self.add(segment(scan_tp, 10, 19, custom_metadata=b""))
        rows = scanned(self.rlmm, SegmentScan(topic=scan_tp.topic))
        for name in ("delete_state", "broker_leader_epoch", "plan_id"):
            assert [row[name] for row in rows] == [None, None]
        assert [row["custom_metadata"] for row in rows] == [None, b""]

    def test_rows_are_ordered_within_their_partition(self, scan_tp: TopicIdPartition) -> None:
        other = TopicIdPartition(scan_tp.topic_id, scan_tp.topic, 1)
        for start in (20, 0, 10, 0):
            finished(self.rlmm, scan_tp, start, start + 9)
            finished(self.rlmm, other, start, start + 9)
        rows = scanned(self.rlmm, SegmentScan(topic=scan_tp.topic))
        assert starts(rows) == [(p, start) for p in (0, 1) for start in (0, 0, 10, 20)]
        assert_partitions_are_contiguous_and_ascend(rows)
        revisions = {row["partition"]: row["revision"] for row in rows}
        assert revisions == {0: revision_of(self.rlmm, scan_tp), 1: revision_of(self.rlmm, other)}

    def test_states_choose_segments(self, scan_tp: TopicIdPartition) -> None:
        steps = [(), (FINISHED,), (DELETE_STARTED,), (DELETE_STARTED, DELETE_FINISHED)]
        for start, states in enumerate(steps):
            self.add(segment(scan_tp, start, start), *states)

        def chosen(*states: Any) -> list[int]:
            scan = SegmentScan(topic=scan_tp.topic, states=states)
            return [row["start_offset"] for row in scanned(self.rlmm, scan)]

        assert chosen() == [0, 1, 2]
        assert chosen(FINISHED) == [1]
        assert chosen(STARTED, DELETE_STARTED) == [0, 2]
        with pytest.raises(InvalidRequestError, match="states"):
            chosen(DELETE_FINISHED)

    def test_only_partitions_that_are_being_deleted(self, scan_tp: TopicIdPartition) -> None:
        tps = [TopicIdPartition(scan_tp.topic_id, scan_tp.topic, p) for p in range(4)]
        for tp in tps[:3]:
            finished(self.rlmm, tp, 0, 9)
        self.add(segment(tps[3], 0, 9), DELETE_STARTED, DELETE_FINISHED)
        put_deletion(self.rlmm, tps[1], MARKED)
        put_deletion(self.rlmm, tps[2], MARKED, PARTITION_STARTED)
        put_deletion(self.rlmm, tps[3], MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        everything = scanned(self.rlmm, SegmentScan(topic=scan_tp.topic))
        assert starts(everything) == [(0, 0), (1, 0), (2, 0)]
        deleted = SegmentScan(topic=scan_tp.topic, delete_states=[MARKED, PARTITION_STARTED])
        assert starts(scanned(self.rlmm, deleted)) == [(1, 0), (2, 0)]

    def test_only_one_partition_of_a_topic(self, scan_tp: TopicIdPartition) -> None:
        for partition in range(3):
            finished(self.rlmm, TopicIdPartition(scan_tp.topic_id, scan_tp.topic, partition), 0, 9)
        for partition in (0, 2):
            scan = SegmentScan(topic=scan_tp.topic, partition=partition)
            assert starts(scanned(self.rlmm, scan)) == [(partition, 0)]
        assert scanned(self.rlmm, SegmentScan(topic=scan_tp.topic, partition=3)) == []
        with pytest.raises(InvalidRequestError, match="partition: needs topic"):
            SegmentScan(partition=0)

    def test_shards_are_whole_partitions_and_together_all(self, scan_tp: TopicIdPartition) -> None:
        for partition in range(8):
            tp = TopicIdPartition(scan_tp.topic_id, scan_tp.topic, partition)
            finished(self.rlmm, tp, 0, 9)
            finished(self.rlmm, tp, 10, 19)

        def shards() -> list[list[Row]]:
            scans = [SegmentScan(shard=n, shards=3, topic=scan_tp.topic) for n in range(3)]
            return [scanned(self.rlmm, scan) for scan in scans]

        first = shards()
        assert first == shards()
        every = [start for shard in first for start in starts(shard)]
        assert sorted(every) == [(p, start) for p in range(8) for start in (0, 10)]
        for shard in first:
            assert_partitions_are_contiguous_and_ascend(shard)
            assert len(shard) == 2 * len({row["partition"] for row in shard})

    def test_nothing_to_see_is_no_batch(self, scan_tp: TopicIdPartition) -> None:
        put_deletion(self.rlmm, scan_tp, MARKED)
        assert list(self.rlmm.scan_remote_log_segments(SegmentScan(topic=scan_tp.topic))) == []
        assert list(self.rlmm.scan_remote_log_segments(SegmentScan(topic="nobody.has.it"))) == []

    def test_a_scan_that_is_left_early_hinders_nothing(self, scan_tp: TopicIdPartition) -> None:
        only = finished(self.rlmm, scan_tp, 0, 9)
        scan: Iterator[SegmentBatch] = self.rlmm.scan_remote_log_segments(
            SegmentScan(topic=scan_tp.topic)
        )
        assert next(scan).rows == 1
        getattr(scan, "close", lambda: None)()
        assert self.move(only, DELETE_STARTED).applied
