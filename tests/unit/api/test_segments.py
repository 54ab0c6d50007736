"""Test states, transitions and the metadata of a segment (kafka-storage-api's own rules)."""

from dataclasses import replace
from uuid import UUID

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState, delete_predecessor
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    predecessors,
    segment_leader_epochs,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
TP = TopicIdPartition(UUID(int=1), "orders", 0)


def segment(**changes: object) -> RemoteLogSegmentMetadata:
    made = RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(TP, UUID(int=2)),
        start_offset=10,
        end_offset=99,
        max_timestamp_ms=5,
        broker_id=1,
        event_timestamp_ms=7,
        segment_leader_epochs=segment_leader_epochs([(0, 10), (2, 40), (3, 80)]),
        segment_size_in_bytes=1024,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # each test names real fields


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        (STARTED, {FINISHED, DELETING}),
        (FINISHED, {DELETING}),
        (DELETING, {DELETED}),
        (DELETED, set()),
    ],
)
def test_a_segment_moves_only_along_kafkas_arrows(
    source: RemoteLogSegmentState, targets: set[RemoteLogSegmentState]
) -> None:
    assert {t for t in RemoteLogSegmentState if source in predecessors(t)} == targets


def test_partition_deletion_has_one_way_forward() -> None:
    marked, started, finished = RemotePartitionDeleteState
    assert [delete_predecessor(s) for s in (marked, started, finished)] == [None, marked, started]


def test_an_epoch_ends_where_the_next_one_starts() -> None:
    assert segment().epoch_ranges() == ((0, 10, 39), (2, 40, 79), (3, 80, 99))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"start_offset": -1}, "start_offset"),
        ({"end_offset": 9}, "end_offset"),
        ({"end_offset": 2**63}, "end_offset"),
        ({"max_timestamp_ms": -2}, "max_timestamp_ms"),
        ({"broker_id": 2**31}, "broker_id"),
        ({"broker_id": -2}, "broker_id"),
        ({"event_timestamp_ms": -1}, "event_timestamp_ms"),
        ({"segment_size_in_bytes": -2}, "segment_size_in_bytes"),
        ({"segment_size_in_bytes": 2**31}, "segment_size_in_bytes"),
        ({"segment_leader_epochs": ()}, "segment_leader_epochs"),
        ({"segment_leader_epochs": segment_leader_epochs([(1, 10), (0, 20)])}, "segment_leader"),
        ({"segment_leader_epochs": segment_leader_epochs([(0, 20), (1, 10)])}, "segment_leader"),
        ({"segment_leader_epochs": segment_leader_epochs([(0, 100)])}, "segment_leader_epochs"),
        ({"broker_leader_epoch": -1}, "broker_leader_epoch"),
    ],
)
def test_malformed_metadata_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}"):
        segment(**changes)


def test_an_update_takes_state_broker_and_time_and_keeps_the_rest() -> None:
    before = segment(custom_metadata=b"kept")
    update = RemoteLogSegmentMetadataUpdate(before.remote_log_segment_id, 20, DELETING, 9)
    assert before.updated(update) == replace(
        before, state=DELETING, broker_id=9, event_timestamp_ms=20
    )


def test_an_update_with_empty_custom_metadata_replaces_the_stored() -> None:
    before = segment(custom_metadata=b"old")
    update = RemoteLogSegmentMetadataUpdate(before.remote_log_segment_id, 20, FINISHED, 1, b"")
    assert before.updated(update).custom_metadata == b""


def test_an_update_of_another_segment_is_refused() -> None:
    other = RemoteLogSegmentId(TP, UUID(int=3))
    with pytest.raises(InvalidRequestError, match="another segment"):
        segment().updated(RemoteLogSegmentMetadataUpdate(other, 20, FINISHED, 1))


def test_an_update_cannot_start_a_copy() -> None:
    with pytest.raises(InvalidRequestError, match=r"^state"):
        RemoteLogSegmentMetadataUpdate(segment().remote_log_segment_id, 20, STARTED, 1)
