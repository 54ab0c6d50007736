"""Test leases of copies: which client may abandon a copy, and from when."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_events,
)
from services.api.segment_batches import (
    MAX_BATCH,
    MAX_LEASE_MS,
    MIN_LEASE_MS,
    SegmentAddition,
    SegmentScan,
)
from services.api.segments import RemoteLogSegmentMetadata
from tests.contract.rlmm.scans import scanned
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    OTHER_BROKER,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    id_of,
    segment,
    update_to,
)
from tests.harness.eventually import eventually

LONG_MS, SHORT_MS = MAX_LEASE_MS, MIN_LEASE_MS
NO_BROKER = -1
RENEWALS_AT_MOST = 20


def leased(
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    start: int = 0,
    *,
    lease_ms: int | None = LONG_MS,
) -> RemoteLogSegmentMetadata:
    """Begin a copy of ten offsets."""
    made = segment(tp, start, start + 9)
    rlmm.add_remote_log_segment_metadata(made, lease_ms=lease_ms)
    return made


def leases(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> dict[int, bool]:
    """Return the leases in lists by start offset."""
    page = rlmm.list_remote_log_segments(tp)
    return {each.start_offset: each.copy_leased for each in page.segments}


def wait_out(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> None:
    """Wait until a lease of the shortest length, which begins now, has expired."""
    other = TopicIdPartition(tp.topic_id, tp.topic, tp.partition + 1)
    clock = leased(rlmm, other, lease_ms=SHORT_MS)
    eventually(lambda: leases(rlmm, other) == {clock.start_offset: False}, deadline_ms=60_000)


def renew(
    rlmm: RemoteLogMetadataManager,
    *copies: RemoteLogSegmentMetadata,
    lease_ms: int = LONG_MS,
    broker_id: int = BROKER,
) -> list[type]:
    """Return the outcomes' types; retry after a lost response as clients do.

    Over gRPC the response to a short lease has a second to arrive.
    """
    ids = [each.remote_log_segment_id for each in copies]
    for _ in range(RENEWALS_AT_MOST - 1):
        with suppress(RetriableRemoteStorageError):
            return [type(outcome) for outcome in rlmm.renew_copy_leases(ids, lease_ms, broker_id)]
    return [type(outcome) for outcome in rlmm.renew_copy_leases(ids, lease_ms, broker_id)]


HOLDS = type(None)


class CopyLeaseReads(RlmmContractPart):
    def test_every_answer_with_segments_shows_which_copies_are_leased(self) -> None:
        copies = [leased(self.rlmm, self.tp, 0), leased(self.rlmm, self.tp, 10, lease_ms=None)]
        reported = [True, False]
        assert leases(self.rlmm, self.tp) == {0: True, 10: False}
        of_epoch = self.rlmm.list_remote_log_segments(self.tp, 0).segments
        assert [each.copy_leased for each in of_epoch] == reported
        by_id = self.rlmm.remote_log_segment_metadata_by_id(
            self.tp, [id_of(each) for each in copies]
        ).value
        assert [each.copy_leased for each in by_id] == reported
        rows = [
            row
            for row in scanned(self.rlmm, SegmentScan())
            if row["topic_id"] == str(self.tp.topic_id)
        ]
        assert [row["copy_leased"] for row in rows] == reported

    def test_a_copy_that_has_ended_is_not_leased(self) -> None:
        copies = [leased(self.rlmm, self.tp, start) for start in (0, 10, 20)]
        self.move(copies[0], FINISHED)
        self.move(copies[1], DELETE_STARTED)
        self.move(copies[2], FINISHED, DELETE_STARTED)
        assert leases(self.rlmm, self.tp) == {0: False, 10: False, 20: False}
        rows = [
            row
            for row in scanned(self.rlmm, SegmentScan())
            if row["topic_id"] == str(self.tp.topic_id)
        ]
        assert [row["copy_leased"] for row in rows] == [False] * 3
        found = self.rlmm.remote_log_segment_metadata(self.tp, 0, 5).value
        assert found is not None
        assert not found.copy_leased

    def test_a_lease_ends_by_itself_and_is_no_change_of_the_partition(self) -> None:
        leased(self.rlmm, self.tp, lease_ms=SHORT_MS)
        before = self.revision()
        eventually(lambda: leases(self.rlmm, self.tp) == {0: False}, deadline_ms=60_000)
        assert self.revision() == before
        assert self.rlmm.list_remote_log_segments(self.tp, if_revision_not=before).not_modified


class CopyLeaseGuards(RlmmContractPart):
    @pytest.mark.parametrize("broker_id", [OTHER_BROKER, NO_BROKER])
    def test_leased_copy_cannot_be_abandoned_by_another_broker(self, broker_id: int) -> None:
        copy = leased(self.rlmm, self.tp)
        before = self.rlmm.list_remote_log_segments(self.tp)
        text = rf"broker {BROKER} copies it under a lease that ends 20\d\d-\d\d-\d\dT"
        with pytest.raises(DeletionRefusedError, match=text):
            self.move(copy, DELETE_STARTED, broker_id=broker_id)
        update = SegmentUpdate(update_to(copy, DELETE_STARTED, broker_id=broker_id))
        [outcome] = self.rlmm.update_remote_log_segment_metadata_batch([update])
        assert isinstance(outcome, DeletionRefusedError)
        assert self.rlmm.list_remote_log_segments(self.tp) == before
        assert leases(self.rlmm, self.tp) == {0: True}

    def test_its_own_broker_may_give_it_up(self) -> None:
        first, second = leased(self.rlmm, self.tp), leased(self.rlmm, self.tp, 10)
        assert self.move(first, DELETE_STARTED, DELETE_FINISHED).applied
        updates = [SegmentUpdate(update_to(second, DELETE_STARTED))]
        [outcome] = self.rlmm.update_remote_log_segment_metadata_batch(updates)
        assert isinstance(outcome, MutationOutcome)
        assert outcome.applied

    def test_copy_with_an_expired_lease_can_be_abandoned_by_any_broker(self) -> None:
        first, second = [leased(self.rlmm, self.tp, start, lease_ms=SHORT_MS) for start in (0, 10)]
        eventually(lambda: leases(self.rlmm, self.tp) == {0: False, 10: False}, deadline_ms=60_000)
        assert self.move(first, DELETE_STARTED, broker_id=OTHER_BROKER).applied
        update = SegmentUpdate(update_to(second, DELETE_STARTED, broker_id=OTHER_BROKER))
        [outcome] = self.rlmm.update_remote_log_segment_metadata_batch([update])
        assert isinstance(outcome, MutationOutcome)

    def test_copy_without_a_lease_can_be_abandoned_by_any_broker(self) -> None:
        copy = leased(self.rlmm, self.tp, lease_ms=None)
        assert self.move(copy, DELETE_STARTED, broker_id=OTHER_BROKER).applied

    def test_a_lease_holds_for_the_copy_alone(self) -> None:
        copy = leased(self.rlmm, self.tp)
        assert self.move(copy, FINISHED, DELETE_STARTED, broker_id=OTHER_BROKER).applied

    def test_a_deleted_partition_waits_for_its_leased_copies(self) -> None:
        copy = leased(self.rlmm, self.tp)
        self.put_deletion(MARKED, PARTITION_STARTED)
        with pytest.raises(DeletionRefusedError):
            self.move(copy, DELETE_STARTED, broker_id=NO_BROKER)
        with pytest.raises(InvalidStateTransitionError):
            self.put_deletion(PARTITION_FINISHED)
        assert renew(self.rlmm, copy) == [HOLDS]
        self.move(copy, FINISHED)
        self.move(copy, DELETE_STARTED, DELETE_FINISHED, broker_id=NO_BROKER)
        assert self.put_deletion(PARTITION_FINISHED).applied

    def test_a_deletion_that_was_decided_on_another_revision_looks_again_first(self) -> None:
        copy = leased(self.rlmm, self.tp)
        late = MutationContext(expected_revision=self.revision() + 1)
        with pytest.raises(ConcurrentUpdateError):
            self.move(copy, DELETE_STARTED, context=late, broker_id=OTHER_BROKER)


class CopyLeaseAdditions(RlmmContractPart):
    @pytest.mark.parametrize(
        ("lease_ms", "again_ms"), [(LONG_MS, None), (LONG_MS, SHORT_MS), (None, LONG_MS)]
    )
    def test_a_repeat_leaves_the_lease_as_it_is(
        self, lease_ms: int | None, again_ms: int | None
    ) -> None:
        copy = leased(self.rlmm, self.tp, lease_ms=lease_ms)
        assert not self.rlmm.add_remote_log_segment_metadata(copy, lease_ms=again_ms).applied
        items = [SegmentAddition(copy, lease_ms=again_ms)]
        [outcome] = self.rlmm.add_remote_log_segment_metadata_batch(items)
        assert isinstance(outcome, MutationOutcome)
        assert not outcome.applied
        if again_ms == SHORT_MS:
            wait_out(self.rlmm, self.tp)
        assert leases(self.rlmm, self.tp) == {0: lease_ms is not None}

    def test_a_repeat_makes_no_lease_longer(self) -> None:
        copy = leased(self.rlmm, self.tp, lease_ms=SHORT_MS)
        self.rlmm.add_remote_log_segment_metadata(copy, lease_ms=LONG_MS)
        eventually(lambda: leases(self.rlmm, self.tp) == {0: False}, deadline_ms=60_000)

    def test_a_request_id_again_may_come_with_another_lease(self) -> None:
        copy, once = self.segment(0, 9), MutationContext(request_id="once")
        first = self.rlmm.add_remote_log_segment_metadata(copy, once, lease_ms=LONG_MS)
        reported = replace(copy, copy_leased=True)
        assert self.rlmm.add_remote_log_segment_metadata(reported, once, lease_ms=SHORT_MS) == first
        assert self.rlmm.add_remote_log_segment_metadata(copy, once) == first
        assert leases(self.rlmm, self.tp) == {0: True}

    def test_copy_leased_of_a_request_is_ignored(self) -> None:
        reported = self.segment(0, 9, copy_leased=True)
        assert self.rlmm.add_remote_log_segment_metadata(reported).applied
        assert leases(self.rlmm, self.tp) == {0: False}
        again = replace(reported, copy_leased=False)
        assert not self.rlmm.add_remote_log_segment_metadata(again).applied

    def test_each_item_of_a_batch_has_its_own_lease(self) -> None:
        chosen: Sequence[int | None] = (LONG_MS, None, SHORT_MS)
        self.rlmm.add_remote_log_segment_metadata_batch(
            [
                SegmentAddition(self.segment(10 * place, 10 * place + 9), NO_CONTEXT, lease_ms)
                for place, lease_ms in enumerate(chosen)
            ]
        )
        eventually(lambda: not leases(self.rlmm, self.tp)[20], deadline_ms=60_000)
        assert leases(self.rlmm, self.tp) == {0: True, 10: False, 20: False}

    @pytest.mark.parametrize("lease_ms", [-1, 0, MIN_LEASE_MS - 1, MAX_LEASE_MS + 1])
    def test_a_lease_out_of_bounds_is_refused(self, lease_ms: int) -> None:
        with pytest.raises(InvalidRequestError, match=r"^lease_ms: must be 1000 to 3600000"):
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), lease_ms=lease_ms)
        with pytest.raises(RemoteResourceNotFoundError):
            leases(self.rlmm, self.tp)

    def test_lease_without_a_broker_id_is_refused(self) -> None:
        unknown = self.segment(0, 9, broker_id=NO_BROKER)
        with pytest.raises(InvalidRequestError, match=r"^lease_ms: .*broker_id"):
            self.rlmm.add_remote_log_segment_metadata(unknown, lease_ms=LONG_MS)
        assert self.rlmm.add_remote_log_segment_metadata(unknown).applied


class CopyLeaseRenewals(RlmmContractPart):
    def test_a_renewed_lease_lasts_longer(self) -> None:
        copies = [leased(self.rlmm, self.tp, start, lease_ms=SHORT_MS) for start in (0, 10, 20)]
        assert renew(self.rlmm, *copies[:2]) == [HOLDS, HOLDS]
        eventually(lambda: not leases(self.rlmm, self.tp)[20], deadline_ms=60_000)
        assert leases(self.rlmm, self.tp) == {0: True, 10: True, 20: False}
        with pytest.raises(DeletionRefusedError):
            self.move(copies[0], DELETE_STARTED, broker_id=OTHER_BROKER)

    def test_no_lease_gets_shorter(self) -> None:
        copy = leased(self.rlmm, self.tp)
        assert renew(self.rlmm, copy, lease_ms=SHORT_MS) == [HOLDS]
        wait_out(self.rlmm, self.tp)
        assert leases(self.rlmm, self.tp) == {0: True}

    def test_a_lease_that_has_ended_and_a_copy_without_one_are_leased_again(self) -> None:
        ended, never = (
            leased(self.rlmm, self.tp, lease_ms=SHORT_MS),
            leased(self.rlmm, self.tp, 10, lease_ms=None),
        )
        eventually(lambda: leases(self.rlmm, self.tp) == {0: False, 10: False}, deadline_ms=60_000)
        assert renew(self.rlmm, ended, never) == [HOLDS, HOLDS]
        assert leases(self.rlmm, self.tp) == {0: True, 10: True}

    def test_a_renewal_is_no_event(self) -> None:
        copy = leased(self.rlmm, self.tp)
        before = self.revision(), list(all_events(self.rlmm, EventQuery(self.tp)))
        renew(self.rlmm, copy)
        renew(self.rlmm, copy, broker_id=OTHER_BROKER)
        assert (self.revision(), list(all_events(self.rlmm, EventQuery(self.tp)))) == before

    def test_each_copy_has_its_outcome_and_a_refused_one_stops_no_other(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 7)
        copies = [leased(self.rlmm, at, lease_ms=None) for at in (other, self.tp)]
        ended = [
            self.add(self.segment(10, 19), FINISHED),
            self.add(self.segment(20, 29), DELETE_STARTED),
            self.add(self.segment(30, 39), DELETE_STARTED, DELETE_FINISHED),
        ]
        elsewhere = self.segment(40, 49, broker_id=OTHER_BROKER)
        self.rlmm.add_remote_log_segment_metadata(elsewhere)
        unknown = self.segment(50, 59)
        nowhere = segment(TopicIdPartition(uuid4(), "orders", 0), 0, 9)
        renamed = segment(TopicIdPartition(self.tp.topic_id, "payments", 0), 0, 9)
        asked = [copies[0], *ended, elsewhere, unknown, nowhere, renamed, copies[1]]
        assert renew(self.rlmm, *asked) == [
            HOLDS,
            *[InvalidStateTransitionError] * 4,
            *[RemoteResourceNotFoundError] * 2,
            InvalidRequestError,
            HOLDS,
        ]
        assert leases(self.rlmm, other) == {0: True}
        assert {start for start, is_leased in leases(self.rlmm, self.tp).items() if is_leased} == {
            0
        }

    def test_the_reason_of_a_lost_lease_is_returned(self) -> None:
        copy, over = leased(self.rlmm, self.tp), self.add(self.segment(10, 19), DELETE_STARTED)
        ids = [each.remote_log_segment_id for each in (copy, over)]
        outcomes = self.rlmm.renew_copy_leases(ids, LONG_MS, OTHER_BROKER)
        assert "is copied by broker 1, not 2" in str(outcomes[0])
        assert "is in DELETE_SEGMENT_STARTED: its copy has ended" in str(outcomes[1])

    @pytest.mark.parametrize(
        ("lease_ms", "broker_id", "field"),
        [
            (MIN_LEASE_MS - 1, BROKER, "lease_ms"),
            (MAX_LEASE_MS + 1, BROKER, "lease_ms"),
            (0, BROKER, "lease_ms"),
            (-1, BROKER, "lease_ms"),
            (LONG_MS, NO_BROKER, "broker_id"),
        ],
    )
    def test_a_renewal_out_of_bounds_is_refused(
        self, lease_ms: int, broker_id: int, field: str
    ) -> None:
        copy = leased(self.rlmm, self.tp, lease_ms=None)
        with pytest.raises(InvalidRequestError, match=f"^{field}: "):
            renew(self.rlmm, copy, lease_ms=lease_ms, broker_id=broker_id)
        assert leases(self.rlmm, self.tp) == {0: False}

    @pytest.mark.parametrize(
        ("copies", "text"),
        [
            (lambda tp: [], r"^segments: must be 1 to 1000, are 0"),
            (
                lambda tp: [segment(tp, 0, 9) for _ in range(MAX_BATCH + 1)],
                r"^segments: must be 1 to 1000, are 1001",
            ),
            (lambda tp: [segment(tp, 0, 9)] * 2, r"^segments\[1\]: segments\[0\] has .* too"),
        ],
    )
    def test_none_too_many_or_one_twice_are_refused(
        self, copies: Callable[[TopicIdPartition], list[RemoteLogSegmentMetadata]], text: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=text):
            renew(self.rlmm, *copies(self.tp))
