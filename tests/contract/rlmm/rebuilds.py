"""Test the freeze of all deletions during a rebuild."""

from dataclasses import replace

import pytest

from services.api.calls import MutationContext
from services.api.errors import DeletionRefusedError, InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.operations import ObjectDeletion
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import SegmentImport
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    add,
    finished,
    id_at,
    id_of,
    move,
    put_deletion,
    revision_of,
    segment,
)

FROZEN = r"^topic orders: all deletions are frozen since .* run `sediment db confirm-rebuild`"
RESTORED = MutationContext(reason="restored")


class Freezes(RlmmContractPart):
    def test_a_freeze_is_kept_until_it_is_confirmed(self, rlmm: RemoteLogMetadataManager) -> None:
        assert rlmm.confirm_rebuild() is None
        begun = rlmm.begin_rebuild(RESTORED)
        assert (begun.reason, begun.since_ms > 0, begun.actor != "") == ("restored", True, True)
        assert rlmm.begin_rebuild(MutationContext(reason="again")) == begun
        assert rlmm.confirm_rebuild(MutationContext(reason="looks right")) == begun
        assert rlmm.confirm_rebuild() is None
        assert rlmm.begin_rebuild().since_ms >= begun.since_ms
        rlmm.confirm_rebuild()

    def test_a_frozen_tier_begins_no_deletion(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only, copy = finished(rlmm, tp, 0, 9), add(rlmm, segment(tp, 10, 19))
        before = revision_of(rlmm, tp)
        rlmm.begin_rebuild()
        for begin in (
            lambda: move(rlmm, only, DELETE_STARTED),
            lambda: move(rlmm, copy, DELETE_STARTED),
            lambda: put_deletion(rlmm, tp, MARKED),
            lambda: rlmm.raise_log_start_offset(tp, 5),
            lambda: rlmm.list_remote_log_segments(tp, deletes_for=RetentionOwner.BROKER),
            lambda: rlmm.record_object_deletions(tp, [ObjectDeletion(id_of(only), "1:a.log")]),
        ):
            with pytest.raises(DeletionRefusedError, match=FROZEN):
                begin()
        assert (id_at(rlmm, tp, 0, 5), revision_of(rlmm, tp)) == (id_of(only), before)
        rlmm.confirm_rebuild()
        assert move(rlmm, only, DELETE_STARTED).applied
        assert move(rlmm, copy, DELETE_STARTED).applied
        assert put_deletion(rlmm, tp, MARKED).applied

    def test_copies_and_deletions_that_began_continue_in_a_frozen_tier(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        going, copy = finished(rlmm, tp, 0, 9), add(rlmm, segment(tp, 10, 19))
        move(rlmm, going, DELETE_STARTED)
        rlmm.begin_rebuild()
        assert not move(rlmm, going, DELETE_STARTED).applied
        assert move(rlmm, going, DELETE_FINISHED).applied
        assert move(rlmm, copy, FINISHED).applied
        later = finished(rlmm, tp, 20, 29)
        assert id_at(rlmm, tp, 0, 25) == id_of(later)
        rlmm.confirm_rebuild()

    def test_removal_of_a_marked_partition_waits_for_the_end_of_the_freeze(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        move(rlmm, add(rlmm, segment(tp, 0, 9)), DELETE_STARTED, DELETE_FINISHED)
        put_deletion(rlmm, tp, MARKED)
        rlmm.begin_rebuild()
        assert not put_deletion(rlmm, tp, MARKED).applied
        with pytest.raises(DeletionRefusedError, match=FROZEN):
            put_deletion(rlmm, tp, PARTITION_STARTED)
        rlmm.confirm_rebuild()
        put_deletion(rlmm, tp, PARTITION_STARTED, PARTITION_FINISHED)

    def test_an_import_below_the_log_start_deletes_nothing_in_a_frozen_tier(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 10, 19)
        rlmm.raise_log_start_offset(tp, 10)
        rlmm.begin_rebuild()
        old = replace(segment(tp, 0, 9), state=FINISHED, custom_metadata=b"1")
        rlmm.import_remote_log_segments([SegmentImport((old,))])
        rlmm.confirm_rebuild()
        [found] = rlmm.remote_log_segment_metadata_by_id(tp, [id_of(old)]).value
        assert found.state is FINISHED

    def test_a_rebuild_takes_a_reason_and_nothing_else(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        for call in (rlmm.begin_rebuild, rlmm.confirm_rebuild):
            with pytest.raises(InvalidRequestError, match=r"^context"):
                call(MutationContext(request_id="one"))
