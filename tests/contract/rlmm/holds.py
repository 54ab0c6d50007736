"""Test the holds of people: what they keep, how long, and how they are set and ended."""

import time
from dataclasses import replace
from threading import Thread

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    DeletionRefusedError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.holds import MAX_HOLDS, Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.operations import ObjectDeletion
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_holds,
    all_partitions,
)
from services.api.segment_batches import SegmentImport
from services.api.topic_config import RetentionOwner
from services.api.validation import INT64_MAX
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
from tests.harness.holds import HOUR_MS, hold, hold_of, release

LEGAL = HoldKind.LEGAL
BY_PEOPLE = (HoldKind.OPERATOR, LEGAL)


def holds_of(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> tuple[Hold, ...]:
    return rlmm.partition_state(tp).value.holds


def is_on_hold(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> bool:
    """Return whether the list of partitions shows this one on hold."""
    [held] = [s.is_on_hold for s in all_partitions(rlmm) if s.topic_id_partition == tp]
    return held


class HoldsOfPeople(RlmmContractPart):
    @pytest.mark.parametrize("kind", BY_PEOPLE)
    @pytest.mark.parametrize("partition", [None, 0])
    def test_what_has_an_offset_of_it_is_kept_from_every_owner(
        self, kind: HoldKind, partition: int | None
    ) -> None:
        before, first, last, after = (self.finished(start, start + 9) for start in range(0, 40, 10))
        revision = self.revision()
        kept = {"kind": kind, "partition": partition, "first_offset": 15, "last_offset": 20}
        held = hold(self.rlmm, self.tp, **kept, reason="case 7")
        assert (held.actor != "", held.set_at_ms > 0, held.until_ms) == (True, True, None)
        assert holds_of(self.rlmm, self.tp) == (held,)
        text = f"hold audit ({kind.value.lower()}) keeps offsets 15-20 until it is ended: case 7"
        command = f"`{held.how_to_end}` ends it"
        for segment in (first, last):
            for owner in (None, *RetentionOwner):
                with pytest.raises(DeletionRefusedError) as refused:
                    self.move(
                        segment, DELETE_STARTED, context=MutationContext(retention_owner=owner)
                    )
                assert str(refused.value) == f"topic orders, partition 0: {text}; {command}"
        assert self.move(before, DELETE_STARTED).applied
        assert self.move(after, DELETE_STARTED).applied
        assert self.revision() == revision + 2
        assert is_on_hold(self.rlmm, self.tp) is True
        assert release(self.rlmm, self.tp, **kept) == held
        assert is_on_hold(self.rlmm, self.tp) is False
        assert self.move(first, DELETE_STARTED).applied

    def test_another_partition_and_another_topic_go(self) -> None:
        only = self.finished(0, 9)
        self.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(replace(self.tp, partition=1), None)], [], BROKER
        )
        hold(self.rlmm, self.tp, partition=1)
        assert holds_of(self.rlmm, self.tp) == ()
        assert self.move(only, DELETE_STARTED).applied

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_a_partition_in_its_removal_is_kept_as_it_is(self, kind: HoldKind) -> None:
        only = self.finished(0, 9)
        self.put_deletion(MARKED, PARTITION_STARTED)
        hold(self.rlmm, self.tp, kind=kind)
        with pytest.raises(DeletionRefusedError, match="hold audit"):
            self.move(only, DELETE_STARTED)

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_a_removal_is_marked_but_not_started(self, kind: HoldKind) -> None:
        self.finished(0, 9)
        hold(self.rlmm, self.tp, kind=kind, first_offset=1_000)
        assert self.put_deletion(MARKED).applied
        with pytest.raises(DeletionRefusedError, match="hold audit"):
            self.put_deletion(PARTITION_STARTED)
        release(self.rlmm, self.tp, kind=kind)
        started = self.put_deletion(PARTITION_STARTED)
        hold(self.rlmm, self.tp, kind=kind)
        assert self.put_deletion(PARTITION_STARTED).revision == started.revision

    def test_copies_are_made_and_cleaned_up_and_deletions_in_progress_end(self) -> None:
        going = self.add(self.segment(0, 9), FINISHED, DELETE_STARTED)
        hold(self.rlmm, self.tp)
        self.finished(10, 19)
        self.add(self.segment(20, 29), DELETE_STARTED, DELETE_FINISHED)
        assert self.move(going, DELETE_FINISHED).applied

    def test_a_partition_without_segments_finishes_its_deletion(self) -> None:
        self.put_deletion(MARKED, PARTITION_STARTED)
        hold(self.rlmm, self.tp)
        assert self.put_deletion(PARTITION_FINISHED).applied

    def test_a_repeat_is_judged_before_the_hold(self) -> None:
        one, why = self.finished(0, 9), MutationContext(request_id="one")
        first = self.move(one, DELETE_STARTED, context=why)
        hold(self.rlmm, self.tp)
        assert self.move(one, DELETE_STARTED) == MutationOutcome(False, first.revision)
        assert self.move(one, DELETE_STARTED, context=why) == first

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_the_log_start_rises_up_to_it(self, kind: HoldKind) -> None:
        self.finished(0, 99)
        hold(self.rlmm, self.tp, kind=kind, first_offset=10, last_offset=20)
        with pytest.raises(DeletionRefusedError, match="offsets 10-20"):
            self.rlmm.raise_log_start_offset(self.tp, 11)
        with pytest.raises(DeletionRefusedError, match="offsets 10-20"):
            self.rlmm.raise_log_start_offset(self.tp, 50)
        assert self.rlmm.raise_log_start_offset(self.tp, 10).applied

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_what_ends_below_the_log_start_is_kept_too(self, kind: HoldKind) -> None:
        below = self.finished(0, 9)
        self.finished(10, 19)
        self.rlmm.raise_log_start_offset(self.tp, 10)
        hold(self.rlmm, self.tp, kind=kind, first_offset=0, last_offset=9)
        with pytest.raises(DeletionRefusedError, match="offsets 0-9"):
            self.move(below, DELETE_STARTED)
        assert self.rlmm.raise_log_start_offset(self.tp, 15).applied

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_orphans_of_the_partition_are_kept(self, kind: HoldKind) -> None:
        orphan = ObjectDeletion(id_of(self.finished(0, 9)), "1:a.log")
        hold(self.rlmm, self.tp, kind=kind, first_offset=1_000)
        with pytest.raises(DeletionRefusedError, match="hold audit"):
            self.rlmm.record_object_deletions(self.tp, [orphan])
        release(self.rlmm, self.tp, kind=kind)
        assert self.rlmm.record_object_deletions(self.tp, [orphan]).applied

    def test_an_import_below_the_log_start_is_kept(self) -> None:
        self.finished(10, 29)
        self.rlmm.raise_log_start_offset(self.tp, 20)
        hold(self.rlmm, self.tp, first_offset=5, last_offset=5)
        kept, gone = (replace(self.segment(start, start + 4), state=FINISHED) for start in (5, 0))
        self.rlmm.import_remote_log_segments([SegmentImport((gone, kept))])
        ids = [id_of(kept), id_of(gone)]
        found = self.rlmm.remote_log_segment_metadata_by_id(self.tp, ids).value
        assert {id_of(each): each.state for each in found} == {
            id_of(kept): FINISHED,
            id_of(gone): DELETE_STARTED,
        }

    def test_it_ends_by_itself(self) -> None:
        only = self.finished(0, 9)
        held = self.rlmm.set_hold(hold_of(self.tp), 1)
        assert held.until_ms is not None
        eventually(lambda: holds_of(self.rlmm, self.tp) == ())
        assert (release(self.rlmm, self.tp), is_on_hold(self.rlmm, self.tp)) == (None, False)
        assert self.move(only, DELETE_STARTED).applied

    def test_any_of_several_keeps_and_the_one_that_lasts_longest_is_named(self) -> None:
        only = self.finished(0, 9)
        short = hold(self.rlmm, self.tp, name="b", first_offset=5)
        until_ms = short.set_at_ms + HOUR_MS
        hold(self.rlmm, self.tp, name="a", partition=0, until_ms=until_ms)
        with pytest.raises(DeletionRefusedError, match="hold b "):
            self.move(only, DELETE_STARTED)
        release(self.rlmm, self.tp, name="b")
        with pytest.raises(DeletionRefusedError, match="hold a "):
            self.move(only, DELETE_STARTED)

    def test_set_again_it_has_the_new_bounds_and_the_old_time(self) -> None:
        self.finished(0, 9)
        first = hold(self.rlmm, self.tp, last_offset=5, reason="one")
        again = hold(self.rlmm, self.tp, first_offset=2, reason="two")
        assert again == replace(first, first_offset=2, last_offset=None, reason="two")
        assert holds_of(self.rlmm, self.tp) == (again,)

    def test_a_legal_one_only_grows(self) -> None:
        self.finished(0, 9)
        now_ms = time.time_ns() // 1_000_000
        bounds = {"first_offset": 5, "last_offset": 9, "until_ms": now_ms + HOUR_MS}
        hold(self.rlmm, self.tp, kind=LEGAL, **bounds)
        for field, less in (
            ("first_offset", 6),
            ("last_offset", 8),
            ("until_ms", now_ms + HOUR_MS - 1),
        ):
            with pytest.raises(InvalidRequestError, match=rf"^hold\.{field}: a legal hold only"):
                hold(self.rlmm, self.tp, kind=LEGAL, **{**bounds, field: less})
        assert hold(self.rlmm, self.tp, kind=LEGAL, first_offset=4).last_offset is None
        with pytest.raises(InvalidRequestError, match=r"^hold\.last_offset: "):
            hold(self.rlmm, self.tp, kind=LEGAL, last_offset=INT64_MAX - 1)

    def test_no_request_says_who_set_it_and_when(self) -> None:
        self.finished(0, 9)
        held = hold(self.rlmm, self.tp, actor="somebody else", set_at_ms=-2)
        assert (held.actor != "somebody else", held.set_at_ms > 0) == (True, True)
        assert holds_of(self.rlmm, self.tp) == (held,)
        assert self.rlmm.end_hold(replace(held, actor="somebody else", set_at_ms=-2)) == held

    @pytest.mark.parametrize("kind", BY_PEOPLE)
    def test_a_name_is_of_one_kind(self, kind: HoldKind) -> None:
        self.finished(0, 9)
        held = hold(self.rlmm, self.tp, kind=kind)
        [other] = {*BY_PEOPLE} - {kind}
        with pytest.raises(InvalidRequestError, match=r"^hold\.kind: .* a hold audit of the kind"):
            hold(self.rlmm, self.tp, kind=other)
        with pytest.raises(InvalidRequestError, match=r"^hold\.kind: "):
            release(self.rlmm, self.tp, kind=other)
        assert holds_of(self.rlmm, self.tp) == (held,)

    def test_no_hold_of_another_scope_is_ended(self) -> None:
        self.finished(0, 9)
        held = hold(self.rlmm, self.tp)
        assert release(self.rlmm, self.tp, partition=0) is None
        assert holds_of(self.rlmm, self.tp) == (held,)

    def test_all_are_listed_page_by_page(self) -> None:
        self.finished(0, 9)
        made = {hold(self.rlmm, self.tp, name=f"h{number}") for number in range(5)}
        listed, token = set[Hold](), ""
        while True:
            page = self.rlmm.list_holds("orders", page_size=2, page_token=token)
            assert len(page.holds) <= 2
            listed |= {each for each in page.holds if each.topic_id == self.tp.topic_id}
            token = page.next_page_token
            if not token:
                break
        assert listed == made
        others = all_holds(self.rlmm, "nothing of this name")
        assert all(each.topic_id is None for each in others)

    def test_malformed_ones_and_unknown_scopes_are_refused(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            hold(self.rlmm, self.tp)
        self.finished(0, 9)
        with pytest.raises(RemoteResourceNotFoundError):
            hold(self.rlmm, self.tp, partition=7)
        with pytest.raises(InvalidRequestError, match=r"^hold\.topic: .* another topic"):
            self.rlmm.set_hold(replace(hold_of(self.tp), topic="others"))
        with pytest.raises(InvalidRequestError, match=r"^hold\.topic: .* another topic"):
            self.rlmm.end_hold(replace(hold_of(self.tp), topic="others"))
        for field, values in (
            ("name", {"name": "a\0b"}),
            ("reason", {"reason": " "}),
            ("reason", {"reason": "a\0b"}),
            ("until_ms", {"until_ms": 1}),
        ):
            with pytest.raises(InvalidRequestError, match=rf"^hold\.{field}: "):
                hold(self.rlmm, self.tp, **values)
        with pytest.raises(InvalidRequestError, match=r"^lease_ms: "):
            self.rlmm.set_hold(hold_of(self.tp), 0)
        with pytest.raises(InvalidRequestError, match=r"^lease_ms: .* not both"):
            self.rlmm.set_hold(hold_of(self.tp, until_ms=INT64_MAX >> 16), 1)
        with pytest.raises(InvalidRequestError, match=r"^context: only reason"):
            self.rlmm.end_hold(hold_of(self.tp), MutationContext(plan_id="p"))

    def test_a_scope_has_only_so_many(self) -> None:
        self.finished(0, 9)
        for number in range(MAX_HOLDS):
            hold(self.rlmm, self.tp, name=f"h{number}")
        with pytest.raises(InvalidRequestError, match=r"^hold\.name: orders has 16 holds already"):
            hold(self.rlmm, self.tp, name="one more")
        hold(self.rlmm, self.tp, name="h0", first_offset=1)
        hold(self.rlmm, self.tp, name="one more", partition=0)
        release(self.rlmm, self.tp, name="h0")
        hold(self.rlmm, self.tp, name="one more")

    def test_once_it_is_set_nothing_of_it_begins(self) -> None:
        segments = [self.finished(start, start + 9) for start in range(0, 500, 10)]
        marked = list[int]()

        def mark() -> None:
            for each in segments[:-1]:
                try:
                    marked.append(self.move(each, DELETE_STARTED).revision)
                except DeletionRefusedError:
                    return

        deleter = Thread(target=mark)
        deleter.start()
        eventually(lambda: len(marked) > 2)
        hold(self.rlmm, self.tp)
        at_that_time = self.revision()
        deleter.join()
        assert max(marked) == at_that_time == self.revision()
        with pytest.raises(DeletionRefusedError):
            self.move(segments[-1], DELETE_STARTED)
