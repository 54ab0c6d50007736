"""Test export positions: what they keep from deletion, how long, and how they move."""

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    DeletionRefusedError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
from services.api.segments import MAX_EXPORT_LEASE_MS, MAX_EXPORTS, ExportPosition
from services.api.topic_config import RetentionOwner
from services.api.validation import INT64_MAX
from tests.contract.rlmm.partition_states import report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    add,
    finished,
    move,
    put_deletion,
    revision_of,
    segment,
)
from tests.harness.eventually import eventually

HOUR_MS = 3_600_000
KEPT = r"^topic orders, partition 0: export lake keeps offsets from 10 on until \d{4}-"


def positions(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> tuple[ExportPosition, ...]:
    return rlmm.partition_state(tp).value.export_positions


class ExportPositions(RlmmContractPart):
    def test_a_position_keeps_what_ends_at_or_above_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        below, at, above = (finished(rlmm, tp, start, start + 9) for start in (0, 1, 11))
        before = revision_of(rlmm, tp)
        position = rlmm.set_export_position(tp, "lake", 10, HOUR_MS)
        assert position is not None
        assert positions(rlmm, tp) == (position,)
        assert revision_of(rlmm, tp) == before
        for kept in (at, above):
            for owner in RetentionOwner:
                with pytest.raises(DeletionRefusedError, match=KEPT):
                    move(rlmm, kept, DELETE_STARTED, context=MutationContext(retention_owner=owner))
        assert move(rlmm, below, DELETE_STARTED, DELETE_FINISHED).applied
        rlmm.set_export_position(tp, "lake", 11, HOUR_MS)
        assert move(rlmm, at, DELETE_STARTED).applied

    def test_the_log_start_rises_up_to_the_position(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 99)
        rlmm.set_export_position(tp, "lake", 10, HOUR_MS)
        with pytest.raises(DeletionRefusedError, match=KEPT):
            rlmm.raise_log_start_offset(tp, 11)
        assert rlmm.raise_log_start_offset(tp, 10).applied
        with pytest.raises(DeletionRefusedError, match=KEPT):
            move(rlmm, only, DELETE_STARTED)

    def test_what_ends_below_the_log_start_goes(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        below, kept = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 10, 19)
        rlmm.raise_log_start_offset(tp, 10)
        rlmm.set_export_position(tp, "lake", 0, HOUR_MS)
        assert move(rlmm, below, DELETE_STARTED).applied
        with pytest.raises(DeletionRefusedError, match="keeps offsets from 0 on"):
            move(rlmm, kept, DELETE_STARTED)
        with pytest.raises(DeletionRefusedError, match="keeps offsets from 0 on"):
            rlmm.raise_log_start_offset(tp, 11)

    def test_a_live_position_never_falls_and_a_lower_one_renews_its_lease(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        first = rlmm.set_export_position(tp, "lake", 50, HOUR_MS)
        again = rlmm.set_export_position(tp, "lake", 40, 2 * HOUR_MS)
        assert first is not None
        assert again is not None
        assert again.next_offset == 50
        assert again.lease_until_ms >= first.lease_until_ms + HOUR_MS
        assert positions(rlmm, tp) == (again,)

    def test_a_lease_ends_by_itself(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.set_export_position(tp, "lake", 5, 1)
        eventually(lambda: positions(rlmm, tp) == ())
        assert move(rlmm, only, DELETE_STARTED).applied
        lower = rlmm.set_export_position(tp, "lake", 3, HOUR_MS)
        assert lower is not None
        assert lower.next_offset == 3

    def test_a_lease_is_ended(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.set_export_position(tp, "lake", 5, HOUR_MS)
        other = rlmm.set_export_position(tp, "other", 10, HOUR_MS)
        for _ in range(2):
            assert rlmm.set_export_position(tp, "lake", 0, 0) is None
            assert positions(rlmm, tp) == (other,)
        assert move(rlmm, only, DELETE_STARTED).applied

    def test_positions_are_read_by_name_also_in_the_answer_to_a_report(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9)
        made = [rlmm.set_export_position(tp, name, 5, HOUR_MS) for name in ("b", 'a" é/x')]
        assert list(positions(rlmm, tp)) == made[::-1]
        assert list(taken(rlmm, report_of(tp)).export_positions) == made[::-1]

    def test_copies_that_failed_and_deletions_in_progress_are_not_kept(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        going = finished(rlmm, tp, 0, 9)
        move(rlmm, going, DELETE_STARTED)
        rlmm.set_export_position(tp, "lake", 0, HOUR_MS)
        add(rlmm, segment(tp, 10, 19), DELETE_STARTED, DELETE_FINISHED)
        assert move(rlmm, going, DELETE_FINISHED).applied

    def test_a_partition_that_is_removed_goes(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.set_export_position(tp, "lake", 0, HOUR_MS)
        put_deletion(rlmm, tp, MARKED)
        with pytest.raises(DeletionRefusedError, match="export lake"):
            move(rlmm, only, DELETE_STARTED)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
        put_deletion(rlmm, tp, PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.set_export_position(tp, "lake", 0, HOUR_MS)

    def test_unknown_partitions_and_values_out_of_bounds_are_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.set_export_position(tp, "lake", 0, HOUR_MS)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, None)], [], BROKER)
        for name, offset, lease_ms, field in (
            ("", 0, HOUR_MS, "name"),
            ("x" * 257, 0, HOUR_MS, "name"),
            ("a\0b", 0, HOUR_MS, "name"),
            ("lake", -1, HOUR_MS, "next_offset"),
            ("lake", 0, -1, "lease_ms"),
            ("lake", 0, MAX_EXPORT_LEASE_MS + 1, "lease_ms"),
        ):
            with pytest.raises(InvalidRequestError, match=f"^{field}: "):
                rlmm.set_export_position(tp, name, offset, lease_ms)
        assert rlmm.set_export_position(tp, "x" * 256, INT64_MAX, MAX_EXPORT_LEASE_MS)

    def test_only_so_many_exports_have_positions(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, None)], [], BROKER)
        for number in range(MAX_EXPORTS):
            rlmm.set_export_position(tp, f"e{number}", 0, HOUR_MS)
        with pytest.raises(InvalidRequestError, match=r"^name: .* 16 exports"):
            rlmm.set_export_position(tp, "one more", 0, HOUR_MS)
        assert rlmm.set_export_position(tp, "e0", 1, HOUR_MS)
        rlmm.set_export_position(tp, "e0", 0, 0)
        assert rlmm.set_export_position(tp, "one more", 0, HOUR_MS)
