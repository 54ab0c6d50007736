"""Test the bound of what a day deletes, and the confirmation that lifts it."""

import pytest

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    RemoteResourceNotFoundError,
)
from services.api.ids import random_uuid
from services.api.remote_log_metadata_manager import all_partitions
from services.api.segments import RemoteLogSegmentMetadata
from tests.contract.rlmm.segments import DELETE_STARTED, RlmmContractPart, id_of

LARGE_BYTES = 2**31 - 1
"""Five fit into the bytes that a day may delete of any tier."""


class DeletionBounds(RlmmContractPart):
    def large_segments(self, count: int, *, first: int = 0) -> list[RemoteLogSegmentMetadata]:
        starts = range(10 * first, 10 * (first + count), 10)
        return [self.finished(n, n + 9, segment_size_in_bytes=LARGE_BYTES) for n in starts]

    def awaits_confirmation(self) -> bool:
        assert self.rlmm.is_ready(self.tp)
        [it] = [s for s in all_partitions(self.rlmm) if s.topic_id_partition == self.tp]
        return it.awaits_confirmation

    def test_confirmed_deletions_pass_the_bound_until_the_settings_change(self) -> None:
        segments = self.large_segments(12)
        for each in segments[:4]:
            assert self.move(each, DELETE_STARTED).applied
        assert not self.awaits_confirmation()
        refusal = (
            r"^topic orders: \d+\.\d GiB would be deleted today of a tier of [\d,]+\.\d GiB, more "
            r"than 20 % and 10\.0 GiB; .* `sediment deletions confirm orders --revision 0`$"
        )
        with pytest.raises(DeletionRefusedError, match=refusal):
            assert [self.move(each, DELETE_STARTED) for each in segments[4:6]]
        assert self.id_at(0, 119) == id_of(segments[11])
        with pytest.raises(DeletionRefusedError, match=refusal):
            self.rlmm.raise_log_start_offset(self.tp, 120)
        assert self.rlmm.partition_state(self.tp).value.log_start_offset == 0
        assert self.awaits_confirmation()
        stored = self.rlmm.confirm_deletions(self.tp.topic_id, 0)
        assert stored.deletions_confirmed_by
        assert self.rlmm.confirm_deletions(self.tp.topic_id, 0) == stored
        assert not self.awaits_confirmation()
        self.rlmm.raise_log_start_offset(self.tp, 120)
        for each in segments[4:]:
            self.move(each, DELETE_STARTED)
        later = self.large_segments(1, first=12)
        changed = self.rlmm.put_topic_config(self.tp.topic_id, {"retention.ms": "1"})
        assert changed.deletions_confirmed_by is None
        with pytest.raises(DeletionRefusedError, match="--revision 1"):
            self.move(later[0], DELETE_STARTED)
        with pytest.raises(ConcurrentUpdateError, match=r"^expected_config_revision: .* 1, not 0"):
            self.rlmm.confirm_deletions(self.tp.topic_id, 0)
        self.rlmm.confirm_deletions(self.tp.topic_id, 1)
        assert self.move(later[0], DELETE_STARTED).applied

    def test_deletions_of_an_unknown_topic_are_not_confirmed(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.confirm_deletions(random_uuid(), 0)
