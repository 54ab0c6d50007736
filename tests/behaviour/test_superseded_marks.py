"""Test that RLMM lets a superseded segment be marked in spite of what keeps the others."""

import pytest
from sqlalchemy import Connection, text

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import ConcurrentUpdateError, DeletionRefusedError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.retention import DeletionReason
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    FINISHED,
    finished,
    id_at,
    move,
    segment,
)
from tests.harness.databases import OwnRlmm
from tests.harness.holds import REBUILD, export, hold
from tests.harness.tier import a_topic

pytestmark = pytest.mark.deep

SUPERSEDED = MutationContext(reason=DeletionReason.SUPERSEDED.value)
LARGE_BYTES = 2**31 - 1


@pytest.fixture
def tp() -> TopicIdPartition:
    [made] = a_topic()
    return made


def mark(rlmm: OwnRlmm, superseded: RemoteLogSegmentMetadata) -> MutationOutcome:
    return move(rlmm, superseded, DELETE_STARTED, context=SUPERSEDED)


def test_it_goes_in_spite_of_a_hold_and_of_another_owner(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    tail, whole = finished(rlmm, tp, 10, 14), finished(rlmm, tp, 0, 19)
    hold(rlmm, tp)
    rlmm.put_topic_config(tp.topic_id, {"sediment.retention.owner": "sweep"})
    with pytest.raises(DeletionRefusedError):
        move(rlmm, tail, DELETE_STARTED)
    outcome = mark(rlmm, tail)
    assert outcome.applied
    assert outcome.kept_until_ms is None
    assert {id_at(rlmm, tp, 0, at) for at in range(20)} == {whole.remote_log_segment_id.id}
    with pytest.raises(ConcurrentUpdateError, match="no other finished segment has all records"):
        mark(rlmm, whole)
    assert rlmm.highest_offset_for_epoch(tp, 0).value == 19


def test_a_rebuild_keeps_it(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    tail, _ = finished(rlmm, tp, 0, 4), finished(rlmm, tp, 0, 19)
    rlmm.set_hold(REBUILD)
    with pytest.raises(DeletionRefusedError, match="rebuild"):
        mark(rlmm, tail)
    rlmm.end_hold(REBUILD)
    assert mark(rlmm, tail).applied


def test_an_export_keeps_what_it_has_yet_to_read(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    tails = [finished(rlmm, tp, 0, 4), finished(rlmm, tp, 5, 9)]
    finished(rlmm, tp, 0, 19)
    export(rlmm, tp, 5)
    assert mark(rlmm, tails[0]).applied
    with pytest.raises(DeletionRefusedError, match="lake"):
        mark(rlmm, tails[1])


def test_a_claim_that_is_not_true_is_refused(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    in_part = finished(rlmm, tp, 15, 24)
    finished(rlmm, tp, 0, 19)
    of_another_epoch = finished(rlmm, tp, 2, 4, {1: 2})
    unfinished = segment(tp, 0, 99)
    rlmm.add_remote_log_segment_metadata(unfinished)
    for each in (in_part, of_another_epoch):
        with pytest.raises(ConcurrentUpdateError):
            mark(rlmm, each)
    move(rlmm, unfinished, FINISHED)
    assert mark(rlmm, in_part).applied


def test_of_two_equal_ones_one_stays_whoever_marks_them(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    one, other = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 0, 9)
    updates = [
        SegmentUpdate(
            RemoteLogSegmentMetadataUpdate(each.remote_log_segment_id, 0, DELETE_STARTED, 1),
            SUPERSEDED,
        )
        for each in (one, other)
    ]
    first, second = rlmm.update_remote_log_segment_metadata_batch(updates)
    assert isinstance(first, MutationOutcome)
    assert isinstance(second, ConcurrentUpdateError)
    with pytest.raises(ConcurrentUpdateError):
        mark(rlmm, other)
    assert id_at(rlmm, tp, 0, 5) == other.remote_log_segment_id.id


def test_the_bound_of_a_day_does_not_count_it(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    tails = [finished(rlmm, tp, n, n, segment_size_in_bytes=LARGE_BYTES) for n in range(9)]
    finished(rlmm, tp, 0, 9, segment_size_in_bytes=LARGE_BYTES)
    for each in tails[:8]:
        assert mark(rlmm, each).applied
    with rlmm.engine.connect() as connection:
        assert marked_bytes(connection) == 0
    assert move(rlmm, tails[8], DELETE_STARTED).applied
    with rlmm.engine.connect() as connection:
        assert marked_bytes(connection) == LARGE_BYTES


def marked_bytes(connection: Connection) -> int:
    return int(connection.execute(text("SELECT sum(marked_bytes) FROM partitions")).scalar_one())
