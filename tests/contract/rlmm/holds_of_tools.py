"""Test the holds of exports and rebuilds."""

from dataclasses import replace

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    DeletionRefusedError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.holds import MAX_EXPORT_LEASE_MS, HoldKind
from services.api.operations import ObjectDeletion
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
)
from services.api.segment_batches import SegmentImport
from services.api.topic_config import RetentionOwner
from services.api.validation import INT64_MAX
from tests.contract.rlmm.holds import holds_of, is_on_hold
from tests.contract.rlmm.partition_states import report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    id_of,
)
from tests.harness.eventually import eventually
from tests.harness.holds import HOUR_MS, REBUILD, end_export, export, hold, hold_of

KEPT = r"^topic orders, partition 0: hold lake \(export\) keeps offsets from 10 on until \d{4}-"
REBUILT = r"^topic orders, partition 0: hold rebuild \(rebuild\) .*`sediment db confirm-rebuild`"


class HoldsOfExports(RlmmContractPart):
    def test_a_position_keeps_what_ends_at_or_above_it(self) -> None:
        below, at, above = (self.finished(start, start + 9) for start in (0, 1, 11))
        before = self.revision()
        position = export(self.rlmm, self.tp, 10)
        assert holds_of(self.rlmm, self.tp) == (position,)
        assert (self.revision(), is_on_hold(self.rlmm, self.tp)) == (before, False)
        for kept in (at, above):
            for owner in RetentionOwner:
                with pytest.raises(DeletionRefusedError, match=KEPT):
                    self.move(kept, DELETE_STARTED, context=MutationContext(retention_owner=owner))
        assert self.move(below, DELETE_STARTED, DELETE_FINISHED).applied
        export(self.rlmm, self.tp, 11)
        assert self.move(at, DELETE_STARTED).applied

    def test_the_log_start_rises_up_to_the_position(self) -> None:
        only = self.finished(0, 99)
        export(self.rlmm, self.tp, 10)
        with pytest.raises(DeletionRefusedError, match=KEPT):
            self.rlmm.raise_log_start_offset(self.tp, 11)
        assert self.rlmm.raise_log_start_offset(self.tp, 10).applied
        with pytest.raises(DeletionRefusedError, match=KEPT):
            self.move(only, DELETE_STARTED)

    def test_what_ends_below_the_log_start_goes(self) -> None:
        below, kept = self.finished(0, 9), self.finished(10, 19)
        self.rlmm.raise_log_start_offset(self.tp, 10)
        export(self.rlmm, self.tp, 0)
        assert self.move(below, DELETE_STARTED).applied
        with pytest.raises(DeletionRefusedError, match="keeps all offsets"):
            self.move(kept, DELETE_STARTED)
        with pytest.raises(DeletionRefusedError, match="keeps all offsets"):
            self.rlmm.raise_log_start_offset(self.tp, 11)

    def test_a_live_position_never_falls_and_a_lower_one_renews_its_lease(self) -> None:
        self.finished(0, 99)
        first = export(self.rlmm, self.tp, 50)
        again = export(self.rlmm, self.tp, 40, lease_ms=2 * HOUR_MS)
        assert again.first_offset == 50
        assert (again.until_ms or 0) >= (first.until_ms or 0) + HOUR_MS
        assert holds_of(self.rlmm, self.tp) == (again,)

    def test_a_lease_ends_by_itself(self) -> None:
        only = self.finished(0, 9)
        export(self.rlmm, self.tp, 5, lease_ms=1)
        eventually(lambda: holds_of(self.rlmm, self.tp) == ())
        assert self.move(only, DELETE_STARTED).applied
        assert export(self.rlmm, self.tp, 3).first_offset == 3

    def test_a_lease_is_ended(self) -> None:
        only = self.finished(0, 9)
        ended = export(self.rlmm, self.tp, 5)
        other = export(self.rlmm, self.tp, 10, "other")
        for expected in (ended, None):
            assert end_export(self.rlmm, self.tp) == expected
            assert holds_of(self.rlmm, self.tp) == (other,)
        assert self.move(only, DELETE_STARTED).applied

    def test_holds_are_read_by_name_also_in_the_answer_to_a_report(self) -> None:
        self.finished(0, 9)
        made = [export(self.rlmm, self.tp, 5, name) for name in ("b", 'a" é/x')]
        assert list(holds_of(self.rlmm, self.tp)) == made[::-1]
        assert list(taken(self.rlmm, report_of(self.tp)).holds) == made[::-1]

    def test_copies_that_failed_and_deletions_in_progress_are_not_kept(self) -> None:
        going = self.finished(0, 9)
        self.move(going, DELETE_STARTED)
        export(self.rlmm, self.tp, 0)
        self.add(self.segment(10, 19), DELETE_STARTED, DELETE_FINISHED)
        assert self.move(going, DELETE_FINISHED).applied

    def test_a_partition_that_is_removed_goes_and_so_do_orphans(self) -> None:
        only = self.finished(0, 9)
        export(self.rlmm, self.tp, 0)
        self.put_deletion(MARKED)
        with pytest.raises(DeletionRefusedError, match="hold lake"):
            self.move(only, DELETE_STARTED)
        orphan = ObjectDeletion(id_of(only), "1:a.log")
        assert self.rlmm.record_object_deletions(self.tp, [orphan]).applied
        self.put_deletion(PARTITION_STARTED)
        self.move(only, DELETE_STARTED, DELETE_FINISHED)
        self.put_deletion(PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError):
            export(self.rlmm, self.tp, 0)

    def test_an_export_needs_a_partition_and_a_lease(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            export(self.rlmm, self.tp, 0)
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, None)], [], BROKER)
        of = hold_of(self.tp, kind=HoldKind.EXPORT, partition=0)
        for malformed, lease_ms, field in (
            (replace(of, partition=None), HOUR_MS, r"hold\.partition"),
            (replace(of, last_offset=5), HOUR_MS, r"hold\.last_offset"),
            (of, None, "lease_ms"),
            (of, -1, "lease_ms"),
            (of, MAX_EXPORT_LEASE_MS + 1, "lease_ms"),
        ):
            with pytest.raises(InvalidRequestError, match=f"^{field}: "):
                self.rlmm.set_hold(malformed, lease_ms)
        export(self.rlmm, self.tp, INT64_MAX, "x" * 256, MAX_EXPORT_LEASE_MS)


class HoldsOfRebuilds(RlmmContractPart):
    def test_it_lasts_until_it_is_ended_and_stays_as_it_is(self) -> None:
        assert self.rlmm.end_hold(REBUILD) is None
        begun = self.rlmm.set_hold(replace(REBUILD, reason="restored"))
        assert (begun.reason, begun.set_at_ms > 0, begun.actor != "") == ("restored", True, True)
        assert self.rlmm.set_hold(replace(REBUILD, reason="again")) == begun
        assert self.rlmm.end_hold(REBUILD, MutationContext(reason="looks right")) == begun
        assert self.rlmm.end_hold(REBUILD) is None
        assert self.rlmm.set_hold(REBUILD).set_at_ms >= begun.set_at_ms
        self.rlmm.end_hold(REBUILD)

    def test_no_deletion_begins(self) -> None:
        only, copy = self.finished(0, 9), self.add(self.segment(10, 19))
        before = self.revision()
        self.rlmm.set_hold(REBUILD)
        for begin in (
            lambda: self.move(only, DELETE_STARTED),
            lambda: self.move(copy, DELETE_STARTED),
            lambda: self.put_deletion(MARKED),
            lambda: self.rlmm.raise_log_start_offset(self.tp, 5),
            lambda: self.rlmm.list_remote_log_segments(self.tp, deletes_for=RetentionOwner.BROKER),
            lambda: self.rlmm.record_object_deletions(
                self.tp, [ObjectDeletion(id_of(only), "1:a.log")]
            ),
        ):
            with pytest.raises(DeletionRefusedError, match=REBUILT):
                begin()
        assert (self.id_at(0, 5), self.revision()) == (id_of(only), before)
        self.rlmm.end_hold(REBUILD)
        assert self.move(only, DELETE_STARTED).applied
        assert self.move(copy, DELETE_STARTED).applied
        assert self.put_deletion(MARKED).applied

    def test_copies_and_deletions_that_began_continue(self) -> None:
        going, copy = self.finished(0, 9), self.add(self.segment(10, 19))
        self.move(going, DELETE_STARTED)
        self.rlmm.set_hold(REBUILD)
        assert not self.move(going, DELETE_STARTED).applied
        assert self.move(going, DELETE_FINISHED).applied
        assert self.move(copy, FINISHED).applied
        later = self.finished(20, 29)
        assert self.id_at(0, 25) == id_of(later)
        self.rlmm.end_hold(REBUILD)

    def test_removal_of_a_marked_partition_waits(self) -> None:
        self.move(self.add(self.segment(0, 9)), DELETE_STARTED, DELETE_FINISHED)
        self.put_deletion(MARKED)
        self.rlmm.set_hold(REBUILD)
        assert not self.put_deletion(MARKED).applied
        with pytest.raises(DeletionRefusedError, match=REBUILT):
            self.put_deletion(PARTITION_STARTED)
        self.rlmm.end_hold(REBUILD)
        self.put_deletion(PARTITION_STARTED, PARTITION_FINISHED)

    def test_an_import_below_the_log_start_deletes_nothing(self) -> None:
        self.finished(10, 19)
        self.rlmm.raise_log_start_offset(self.tp, 10)
        self.rlmm.set_hold(REBUILD)
        old = replace(self.segment(0, 9), state=FINISHED, custom_metadata=b"1")
        self.rlmm.import_remote_log_segments([SegmentImport((old,))])
        self.rlmm.end_hold(REBUILD)
        [found] = self.rlmm.remote_log_segment_metadata_by_id(self.tp, [id_of(old)]).value
        assert found.state is FINISHED

    def test_a_log_start_is_restored_only_while_it_lasts(self) -> None:
        self.finished(0, 99)
        with pytest.raises(DeletionRefusedError, match="only while a rebuild"):
            self.rlmm.raise_log_start_offset(self.tp, 50, restores=True)
        hold(self.rlmm, self.tp)
        self.rlmm.set_hold(REBUILD)
        assert self.rlmm.raise_log_start_offset(self.tp, 50, restores=True).applied
        self.rlmm.end_hold(REBUILD)

    def test_it_is_of_all_topics_and_has_no_end(self) -> None:
        self.finished(0, 9)
        for malformed in (
            replace(hold_of(self.tp, kind=HoldKind.REBUILD), partition=0),
            replace(REBUILD, first_offset=1),
            replace(REBUILD, last_offset=1),
            replace(REBUILD, until_ms=INT64_MAX >> 16),
        ):
            with pytest.raises(InvalidRequestError, match=r"^hold: "):
                self.rlmm.set_hold(malformed)
