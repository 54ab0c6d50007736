"""Test which segment answers for an epoch and an offset: tables A, B, F, G and our additions."""

import pytest

from services.api.calls import AtRevision, MutationContext, MutationOutcome
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segment_batches import SegmentLookup
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import INT64_MAX
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    RlmmContractPart,
    finished,
    id_at,
    id_of,
    segment,
    update_to,
)

UNREACHABLE_ROWS_OF_TABLE_F = (
    "FIN(0,s1,10), then list with a map lacking s1: RemoteResourceNotFoundException. Rows and "
    "their epochs are one database with a foreign key; no call makes one without the other.",
    "nothing, list: empty. Below the API that is an epoch's state object; through it, the list of "
    "an unknown epoch, which test_an_unknown_epoch_lists_empty holds.",
)
"""The two rows of table F that no API can reach as Kafka's test does."""


class TableA(RlmmContractPart):
    @pytest.fixture
    def table_a(self) -> list[RemoteLogSegmentMetadata]:
        return [
            self.finished(0, 100, {0: 0, 1: 20, 2: 80}),
            self.finished(101, 200, {2: 101}),
            self.finished(201, 300, {2: 201, 3: 240}),
            self.finished(250, 400, {3: 250, 4: 370}),
        ]

    @pytest.mark.parametrize(
        ("epoch", "offset", "answer"),
        [
            (1, 40, 0),
            (2, 110, 1),
            (3, 240, 2),
            (3, 250, 3),
            (4, 375, 3),
            (1, 110, None),
            (4, 401, None),
            (5, 301, None),
            # The edges of each epoch's range.
            (0, 0, 0),
            (0, 19, 0),
            (0, 20, None),
            (2, 79, None),
            (2, 239, 2),
            (2, 240, None),
            (3, 369, 3),
            (3, 370, None),
            (4, 400, 3),
            (0, INT64_MAX, None),
        ],
    )
    def test_an_offset_is_found_in_the_segment_of_its_epoch(
        self, table_a: list[RemoteLogSegmentMetadata], epoch: int, offset: int, answer: int | None
    ) -> None:
        expected = None if answer is None else id_of(table_a[answer])
        assert self.id_at(epoch, offset) == expected

    @pytest.mark.parametrize(
        ("epoch", "highest"), [(0, 19), (1, 79), (2, 239), (3, 369), (4, 400), (5, None)]
    )
    def test_the_highest_offset_of_an_epoch_survives_the_segments_deletion(
        self, table_a: list[RemoteLogSegmentMetadata], epoch: int, highest: int | None
    ) -> None:
        for each in table_a:
            self.move(each, DELETE_STARTED, DELETE_FINISHED)
        assert self.rlmm.highest_offset_for_epoch(self.tp, epoch).value == highest

    @pytest.mark.parametrize("states", [[DELETE_STARTED], [DELETE_STARTED, DELETE_FINISHED]])
    def test_a_segment_is_not_found_from_the_start_of_its_deletion_on(
        self, table_a: list[RemoteLogSegmentMetadata], states: list[RemoteLogSegmentState]
    ) -> None:
        self.move(table_a[0], *states)
        assert self.id_at(0, 10) is None
        assert self.id_at(2, 110) == id_of(table_a[1])

    def test_a_started_copy_has_no_highest_offset_and_is_not_found(self) -> None:
        self.add(self.segment(0, 100, {0: 0, 1: 20, 2: 80}))
        highest = [self.rlmm.highest_offset_for_epoch(self.tp, epoch).value for epoch in range(3)]
        assert highest == [None, None, None]
        assert self.id_at(1, 40) is None


class TableF(RlmmContractPart):
    """Test Kafka's referenced and unreferenced sets, as look-ups and lists of epoch 0 show them."""

    def test_segments_side_by_side_are_both_found(self) -> None:
        s1, s2 = self.finished(10, 100), self.finished(101, 200)
        assert self.id_at(0, 90) == id_of(s1)
        assert self.id_at(0, 150) == id_of(s2)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 200

    @pytest.mark.parametrize(
        ("first", "second", "highest"),
        [
            pytest.param((10, 100), (5, 150), 150, id="starts before and reaches further"),
            pytest.param((10, 100), (10, 100), 100, id="the same range"),
            pytest.param((10, 100), (10, 150), 150, id="the same start, reaches further"),
        ],
    )
    def test_a_later_segment_that_reaches_as_far_displaces_the_earlier_one(
        self, first: tuple[int, int], second: tuple[int, int], highest: int
    ) -> None:
        s1, s2 = self.finished(*first), self.finished(*second)
        assert self.id_at(0, 50) == id_of(s2)
        assert sorted(self.ids(0)) == sorted([id_of(s1), id_of(s2)])
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == highest

    def test_deletion_takes_both_out_of_look_ups_and_leaves_them_listed(self) -> None:
        s1, s2 = self.finished(10, 100), self.finished(101, 200)
        self.move(s1, DELETE_STARTED)
        self.move(s2, DELETE_STARTED)
        assert (self.id_at(0, 50), self.id_at(0, 150)) == (None, None)
        assert self.ids(0) == [id_of(s1), id_of(s2)]

    def test_a_failed_copy_is_unlisted_when_its_deletion_finishes(self) -> None:
        self.add(self.segment(10, 100), DELETE_STARTED, DELETE_FINISHED)
        assert self.ids(0) == []

    def test_a_short_late_segment_sits_alongside_longer_ones(self) -> None:
        long = self.finished(10, 200)
        short = self.finished(5, 50)
        assert self.id_at(0, 7) == id_of(short)
        assert self.id_at(0, 30) == id_of(long)
        assert self.id_at(0, 200) == id_of(long)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 200

    def test_a_finish_displaces_every_segment_after_its_start(self) -> None:
        before = self.finished(0, 9)
        for start in range(10, 100, 10):
            self.finished(start, start + 9)
        wide = self.finished(10, 99)
        assert {self.id_at(0, offset) for offset in range(10, 100, 5)} == {id_of(wide)}
        assert self.id_at(0, 9) == id_of(before)


class OverlapsBeyondKafka(RlmmContractPart):
    """Test a declared difference: if Kafka's choice does not hold the offset, another segment
    may.
    """

    def test_a_range_behind_a_short_late_segment_stays_readable(self) -> None:
        long, _far = self.finished(10, 200), self.finished(201, 300)
        short = self.finished(50, 60)
        assert self.id_at(0, 55) == id_of(short)
        assert self.id_at(0, 61) == id_of(long)

    def test_a_displaced_segment_is_found_again_when_its_displacer_goes(self) -> None:
        displaced, displacer = self.finished(10, 100), self.finished(5, 150)
        self.move(displacer, DELETE_STARTED)
        assert self.id_at(0, 50) == id_of(displaced)
        assert self.id_at(0, 7) is None

    def test_a_segment_that_kafkas_quirk_would_drop_stays_listed_and_found(self) -> None:
        long, short = self.finished(10, 100), self.finished(10, 50)
        assert self.id_at(0, 30) == id_of(short)
        # Up to its last offset, though nothing longer has finished.
        assert (self.id_at(0, 51), self.id_at(0, 100)) == (id_of(long), id_of(long))
        assert sorted(self.ids(0)) == sorted([id_of(long), id_of(short)])

    def test_epoch_without_offsets_hides_no_segment_with_the_same_start(self) -> None:
        whole = self.finished(30, 40)
        self.finished(20, 35, {0: 30, 1: 30})
        assert self.id_at(0, 35) == id_of(whole)

    def test_a_displaced_segment_under_deletion_is_never_the_answer(self) -> None:
        displaced, displacer = self.finished(10, 100), self.finished(5, 150)
        self.move(displaced, DELETE_STARTED)
        self.move(displacer, DELETE_STARTED)
        assert self.id_at(0, 50) is None

    @pytest.mark.parametrize(
        ("epochs", "chosen"),
        [
            pytest.param([7, 6], 0, id="the higher broker leader epoch"),
            pytest.param([6, 7], 1, id="the higher one, finished later"),
            pytest.param([7, 7], 1, id="equal: the later finish"),
            pytest.param([7, None], 1, id="one has none: the later finish"),
            pytest.param([None, 7], 1, id="the other has none: the later finish"),
            pytest.param([None, None], 1, id="none has one: the later finish"),
            pytest.param([9, None, 4, 6], 3, id="of those since the last one without"),
            pytest.param([9, 6, None], 2, id="the last one has none"),
        ],
    )
    def test_of_several_the_higher_broker_leader_epoch_or_the_later_finish_answers(
        self, epochs: list[int | None], chosen: int
    ) -> None:
        copies = [self.segment(10, 100, broker_leader_epoch=epoch) for epoch in epochs]
        displacer = self.segment(5, 150)
        for each in [*copies, displacer]:
            # Without a fence: an old leader's copies may come in late.
            self.rlmm.add_remote_log_segment_metadata(
                each, MutationContext(broker_leader_epoch=max(filter(None, [*epochs, 1])))
            )
            self.move(each, FINISHED)
        self.move(displacer, DELETE_STARTED)
        assert self.id_at(0, 50) == id_of(copies[chosen])

    def test_offsets_beyond_every_copy_are_not_found(self) -> None:
        for _ in range(2):
            for start in range(0, 50, 10):
                self.finished(start, start + 7)
        found = [self.id_at(0, offset) is not None for offset in (7, 8, 9, 10, 47, 48)]
        assert found == [True, False, False, True, True, False]


class TableG(RlmmContractPart):
    """Test the search for the next segment that may have a transaction index."""

    def chain(self, *txn_idx_empty: bool) -> list[RemoteLogSegmentMetadata]:
        return [
            self.finished(10 * n, 10 * n + 9, txn_idx_empty=empty)
            for n, empty in enumerate(txn_idx_empty)
        ]

    def test_segments_without_a_transaction_index_are_passed_over(self) -> None:
        chain = self.chain(True, True, False)
        found = self.rlmm.next_segment_with_txn_index(self.tp, 0, 0).value
        assert found is not None
        assert id_of(found) == id_of(chain[2])

    def test_the_segment_of_the_offset_itself_may_be_the_answer(self) -> None:
        chain = self.chain(False, False)
        found = self.rlmm.next_segment_with_txn_index(self.tp, 0, 5).value
        assert found is not None
        assert id_of(found) == id_of(chain[0])

    @pytest.mark.parametrize(
        ("empty", "offset"),
        [
            pytest.param([True, True, False], 30, id="after the last segment"),
            pytest.param([True, True, True], 0, id="none has one"),
            pytest.param([], 0, id="nothing is there"),
        ],
    )
    def test_the_end_of_the_epoch_is_the_end_of_the_search(
        self, empty: list[bool], offset: int
    ) -> None:
        self.chain(*empty)
        self.finished(30, 39, {1: 30}, txn_idx_empty=False)
        assert self.rlmm.next_segment_with_txn_index(self.tp, 0, offset).value is None

    def test_a_gap_does_not_end_the_search(self) -> None:
        self.finished(0, 9, txn_idx_empty=True)
        beyond = self.finished(11, 19, txn_idx_empty=False)
        for offset in (0, 10, 11, 19):
            found = self.rlmm.next_segment_with_txn_index(self.tp, 0, offset).value
            assert found is not None
            assert id_of(found) == id_of(beyond)

    def test_a_wide_segment_that_a_short_one_displaced_is_found(self) -> None:
        wide = self.finished(0, 99, txn_idx_empty=False)
        self.finished(40, 59, txn_idx_empty=True)
        found = self.rlmm.next_segment_with_txn_index(self.tp, 0, 50).value
        assert found is not None
        assert id_of(found) == id_of(wide)

    def test_a_segment_that_spans_epochs_ends_the_search_in_the_earlier_one(self) -> None:
        self.finished(0, 19, {0: 0, 1: 10}, txn_idx_empty=True)
        self.finished(20, 29, {1: 20}, txn_idx_empty=False)
        assert self.rlmm.next_segment_with_txn_index(self.tp, 0, 0).value is None
        assert self.rlmm.next_segment_with_txn_index(self.tp, 1, 10).value is not None

    def test_the_greatest_offset_that_there_is_ends_the_search(self) -> None:
        self.finished(0, INT64_MAX, txn_idx_empty=True)
        assert self.rlmm.next_segment_with_txn_index(self.tp, 0, 5).value is None


class EpochsWithoutOffsets(RlmmContractPart):
    """Test segments without offsets of one of their leader epochs: it starts where the next one
    does.
    """

    def test_a_segment_replaces_one_without_offsets_at_its_start(self) -> None:
        empty = [self.finished(10, 20, {0: 10, 1: 10}), self.finished(4, 8, {0: 4, 1: 4})]
        whole = self.finished(4, 8, {0: 4})
        assert [self.id_at(0, offset) for offset in (3, 4, 8, 9)] == [
            None,
            id_of(whole),
            id_of(whole),
            None,
        ]
        assert self.id_at(1, 4) == id_of(empty[1])
        assert sorted(self.ids(0)) == sorted(map(id_of, [*empty, whole]))

    def test_no_item_of_a_batch_fails_for_it(self) -> None:
        self.finished(10, 20, {0: 10, 1: 10})
        self.finished(4, 8, {0: 4, 1: 4})
        copies = [self.add(self.segment(4, 8)), self.add(self.segment(30, 39))]
        updates = [SegmentUpdate(update_to(each, FINISHED)) for each in copies]
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(updates)
        assert [isinstance(each, MutationOutcome) for each in outcomes] == [True, True]

    @pytest.mark.parametrize("offset", [0, 101, INT64_MAX])
    def test_no_offset_is_found_in_them(self, offset: int) -> None:
        self.finished(101, 101, {0: 101, 1: 101})
        assert self.id_at(0, offset) is None
        assert self.rlmm.next_segment_with_txn_index(self.tp, 0, offset).value is None

    def test_a_batch_of_look_ups_answers_all_its_items(self) -> None:
        whole = self.finished(101, 101, {0: 101, 1: 101})
        lookups = [SegmentLookup(self.tp, 0, INT64_MAX), SegmentLookup(self.tp, 1, 101)]
        found = self.rlmm.remote_log_segment_metadata_batch(lookups)
        values = [each.value for each in found if isinstance(each, AtRevision)]
        assert [None if each is None else id_of(each) for each in values] == [None, id_of(whole)]


class LookUpInput(RlmmContractPart):
    def test_look_up_returns_the_segment_unchanged(self) -> None:
        begun = self.segment(
            5,
            9,
            {3: 5, 8: 7},
            max_timestamp_ms=-1,
            segment_size_in_bytes=-1,
            txn_idx_empty=True,
            broker_leader_epoch=8,
        )
        self.add(begun)
        self.move(begun, FINISHED, custom_metadata=b"\x00\xff", event_timestamp_ms=8_000)
        found = self.rlmm.remote_log_segment_metadata(self.tp, 8, 7).value
        assert found is not None
        assert found.segment_leader_epochs == begun.segment_leader_epochs
        assert (found.custom_metadata, found.event_timestamp_ms) == (b"\x00\xff", 8_000)
        assert (found.max_timestamp_ms, found.segment_size_in_bytes) == (-1, -1)
        assert (found.txn_idx_empty, found.broker_leader_epoch) == (True, 8)

    def test_an_unknown_partition_is_named(self) -> None:
        for read in (
            lambda: self.rlmm.remote_log_segment_metadata(self.tp, 0, 0),
            lambda: self.rlmm.highest_offset_for_epoch(self.tp, 0),
            lambda: self.rlmm.list_remote_log_segments(self.tp),
            lambda: self.rlmm.remote_log_size(self.tp, 0),
            lambda: self.rlmm.next_segment_with_txn_index(self.tp, 0, 0),
        ):
            with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
                read()

    def test_negative_epochs_and_offsets_are_refused(self) -> None:
        self.finished(0, 9)
        for read, field in (
            (lambda: self.rlmm.remote_log_segment_metadata(self.tp, -1, 0), "epoch_for_offset"),
            (lambda: self.rlmm.remote_log_segment_metadata(self.tp, 0, -1), "offset"),
            (lambda: self.rlmm.highest_offset_for_epoch(self.tp, -1), "leader_epoch"),
            (lambda: self.rlmm.remote_log_size(self.tp, -1), "leader_epoch"),
            (lambda: self.rlmm.next_segment_with_txn_index(self.tp, -1, 0), "epoch"),
            (lambda: self.rlmm.list_remote_log_segments(self.tp, -1), "leader_epoch"),
            (lambda: self.rlmm.list_remote_log_segments(self.tp, min_offset=-1), "min_offset"),
        ):
            with pytest.raises(InvalidRequestError, match=field):
                read()

    def test_a_partition_by_another_topic_name_is_refused(self) -> None:
        self.finished(0, 9)
        renamed = TopicIdPartition(self.tp.topic_id, "payments", self.tp.partition)
        with pytest.raises(InvalidRequestError, match="topic"):
            self.rlmm.remote_log_segment_metadata(renamed, 0, 0)
        with pytest.raises(InvalidRequestError, match="topic"):
            self.rlmm.list_remote_log_segments(renamed)
        with pytest.raises(InvalidRequestError, match="topic"):
            self.rlmm.add_remote_log_segment_metadata(segment(renamed, 10, 19))

    def test_another_partition_of_the_topic_has_its_own_segments(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        self.finished(0, 9)
        finished(self.rlmm, other, 10, 19)
        assert id_at(self.rlmm, other, 0, 5) is None
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 9
