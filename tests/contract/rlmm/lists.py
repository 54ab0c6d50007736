"""Test lists, sizes and pages: tables B, C, E."""

from dataclasses import replace
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    PartitionLeadership,
    PartitionSummary,
    all_partitions,
    all_segments,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.contract.rlmm.segments import (
    BROKER,
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
)

SEG = 1_048_576


class TableB(RlmmContractPart):
    @pytest.mark.parametrize(
        ("states", "is_found", "is_listed"),
        [
            pytest.param([], False, True, id="COPY_SEGMENT_STARTED"),
            pytest.param([FINISHED], True, True, id="COPY_SEGMENT_FINISHED"),
            pytest.param([DELETE_STARTED], False, True, id="DELETE_SEGMENT_STARTED"),
            pytest.param(
                [DELETE_STARTED, DELETE_FINISHED], False, False, id="DELETE_SEGMENT_FINISHED"
            ),
        ],
    )
    def test_which_query_sees_which_state(
        self, states: list[RemoteLogSegmentState], is_found: bool, is_listed: bool
    ) -> None:
        only = self.add(self.segment(101, 200), *states)
        listed = [id_of(only)] if is_listed else []
        assert (self.id_at(0, 150) == id_of(only)) is is_found
        assert self.ids(0) == listed
        assert self.ids() == listed
        assert self.rlmm.remote_log_size(self.tp, 0).value == SEG * len(listed)

    @pytest.mark.parametrize(
        "states", [[], [FINISHED], [DELETE_STARTED], [FINISHED, DELETE_STARTED]]
    )
    def test_a_list_shows_the_state(self, states: list[RemoteLogSegmentState]) -> None:
        self.add(self.segment(101, 200), *states)
        (listed,) = all_segments(self.rlmm, self.tp)
        assert listed.state is ([STARTED, *states][-1])


class TableC(RlmmContractPart):
    def test_an_epoch_lists_its_segments_by_start_offset(self) -> None:
        s2 = self.finished(201, 400, {0: 201, 1: 301})
        s0, s1 = self.finished(0, 100), self.finished(101, 200)
        assert self.ids(0) == [id_of(s0), id_of(s1), id_of(s2)]
        assert self.ids(1) == [id_of(s2)]
        assert self.ids() == [id_of(s0), id_of(s1), id_of(s2)]

    def test_the_order_is_that_of_the_segments_not_of_the_epochs_part(self) -> None:
        early = self.finished(0, 100, {0: 0, 1: 50})
        late = self.finished(10, 200, {1: 10})
        assert self.ids(1) == [id_of(early), id_of(late)]

    def test_an_unknown_epoch_lists_empty(self) -> None:
        self.finished(0, 100)
        assert self.ids(9001) == []


class TableE(RlmmContractPart):
    def test_segments_of_an_epoch_count_before_they_finish(self) -> None:
        for n in (1, 2, 3):
            self.add(self.segment(10 * n, 10 * n + 9, segment_size_in_bytes=n * SEG))
        assert self.rlmm.remote_log_size(self.tp, 0).value == 6 * SEG

    def test_each_epoch_has_its_own_size(self) -> None:
        for n in (1, 2, 3):
            epochs = {n - 1: 10 * n}
            self.add(self.segment(10 * n, 10 * n + 9, epochs, segment_size_in_bytes=n * SEG))
        sizes = [self.rlmm.remote_log_size(self.tp, epoch).value for epoch in (0, 1, 2, 9001)]
        assert sizes == [SEG, 2 * SEG, 3 * SEG, 0]

    def test_a_segment_that_spans_epochs_counts_whole_in_each(self) -> None:
        self.finished(0, 100, {0: 0, 1: 20}, segment_size_in_bytes=SEG)
        assert [self.rlmm.remote_log_size(self.tp, epoch).value for epoch in (0, 1)] == [SEG, SEG]

    def test_displaced_segments_and_those_under_deletion_count(self) -> None:
        self.finished(10, 100)
        self.finished(5, 150)
        self.move(self.finished(200, 300), DELETE_STARTED)
        assert self.rlmm.remote_log_size(self.tp, 0).value == 3 * SEG

    def test_a_sum_beyond_32_bits_is_exact(self) -> None:
        for n in range(3):
            self.finished(10 * n, 10 * n + 9, segment_size_in_bytes=2**31 - 1)
        assert self.rlmm.remote_log_size(self.tp, 0).value == 3 * (2**31 - 1)

    def test_an_unknown_size_counts_nothing(self) -> None:
        self.finished(0, 9, segment_size_in_bytes=-1)
        assert self.rlmm.remote_log_size(self.tp, 0).value == 0


class Filters(RlmmContractPart):
    def test_only_the_states_asked_for_are_listed(self) -> None:
        started = self.add(self.segment(0, 9))
        done = self.finished(10, 19)
        dying = self.add(self.segment(20, 29), DELETE_STARTED)
        some = self.rlmm.list_remote_log_segments(self.tp, states=[STARTED, DELETE_STARTED])
        assert [id_of(each) for each in some.segments] == [id_of(started), id_of(dying)]
        of_epoch = self.rlmm.list_remote_log_segments(self.tp, 0, states=[FINISHED])
        assert [id_of(each) for each in of_epoch.segments] == [id_of(done)]

    def test_deleted_segments_are_not_listed_even_when_asked_for(self) -> None:
        self.add(self.segment(0, 9), DELETE_STARTED, DELETE_FINISHED)
        assert self.rlmm.list_remote_log_segments(self.tp, states=[DELETE_FINISHED]).segments == ()

    def test_min_offset_keeps_segments_that_reach_it(self) -> None:
        self.finished(0, 9)
        kept = [self.finished(10, 19), self.finished(20, 29)]
        for epoch in (None, 0):
            page = self.rlmm.list_remote_log_segments(self.tp, epoch, min_offset=19)
            assert [id_of(each) for each in page.segments] == [id_of(each) for each in kept]


class Revisions(RlmmContractPart):
    def test_every_read_carries_the_revision_of_the_last_mutation(self) -> None:
        only = self.add(self.segment(0, 9))
        revision = self.move(only, FINISHED).revision
        reads = {
            self.rlmm.remote_log_segment_metadata(self.tp, 0, 5).revision,
            self.rlmm.remote_log_segment_metadata(self.tp, 7, 5).revision,
            self.rlmm.highest_offset_for_epoch(self.tp, 0).revision,
            self.rlmm.remote_log_size(self.tp, 0).revision,
            self.rlmm.next_segment_with_txn_index(self.tp, 0, 0).revision,
            self.rlmm.list_remote_log_segments(self.tp).revision,
            self.rlmm.list_remote_log_segments(self.tp, 7).revision,
        }
        assert reads == {revision}

    def test_an_unchanged_partition_answers_not_modified(self) -> None:
        only = self.add(self.segment(0, 9))
        seen = self.revision()
        page = self.rlmm.list_remote_log_segments(self.tp, if_revision_not=seen)
        assert (page.not_modified, page.segments, page.revision) == (True, (), seen)
        self.move(only, FINISHED)
        page = self.rlmm.list_remote_log_segments(self.tp, if_revision_not=seen)
        assert (page.not_modified, len(page.segments)) == (False, 1)
        assert page.revision > seen

    def test_a_known_empty_partition_lists_empty(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 3)], [], BROKER)
        page = self.rlmm.list_remote_log_segments(self.tp)
        assert (page.segments, page.next_page_token, page.not_modified) == ((), "", False)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 3).value is None


class Pages(RlmmContractPart):
    @pytest.mark.parametrize("epoch", [None, 0])
    @pytest.mark.parametrize("page_size", [1, 2, 3, 5, 6])
    def test_pages_hold_every_segment_once_and_in_order(
        self, epoch: int | None, page_size: int
    ) -> None:
        # Two with the same start offset: the id decides.
        starts = (0, 10, 10, 20, 30)
        added = [self.finished(start, start + 9) for start in starts]
        seen: list[RemoteLogSegmentMetadata] = []
        token = ""
        for _ in range(len(starts)):
            page = self.rlmm.list_remote_log_segments(
                self.tp, epoch, page_size=page_size, page_token=token
            )
            assert len(page.segments) <= page_size
            seen += page.segments
            token = page.next_page_token
            if not token:
                break
        assert token == ""
        assert sorted(map(id_of, seen)) == sorted(map(id_of, added))
        assert [each.start_offset for each in seen] == list(starts)

    def test_a_token_of_another_query_is_refused(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        for each in (self.tp, other):
            finished(self.rlmm, each, 0, 9)
            finished(self.rlmm, each, 10, 19)
        token = self.rlmm.list_remote_log_segments(self.tp, page_size=1).next_page_token
        assert token
        for ask in (
            lambda: self.rlmm.list_remote_log_segments(other, page_token=token),
            lambda: self.rlmm.list_remote_log_segments(self.tp, 0, page_token=token),
            lambda: self.rlmm.list_remote_log_segments(
                self.tp, states=[FINISHED], page_token=token
            ),
            lambda: self.rlmm.list_remote_log_segments(self.tp, min_offset=3, page_token=token),
            lambda: self.rlmm.list_partitions(page_token=token),
        ):
            with pytest.raises(InvalidRequestError, match="page_token"):
                ask()

    def test_a_page_may_have_another_size_than_the_one_before(self) -> None:
        for start in (0, 10, 20):
            self.finished(start, start + 9)
        token = self.rlmm.list_remote_log_segments(self.tp, page_size=1).next_page_token
        rest = self.rlmm.list_remote_log_segments(self.tp, page_size=50, page_token=token)
        assert [each.start_offset for each in rest.segments] == [10, 20]

    @pytest.mark.parametrize("token", ["x", "not a token", "A" * 43, "é", "=" * 44, "A" * 5000])
    def test_invented_token_is_refused(self, token: str) -> None:
        self.finished(0, 9)
        with pytest.raises(InvalidRequestError, match="page_token"):
            self.rlmm.list_remote_log_segments(self.tp, page_token=token)
        with pytest.raises(InvalidRequestError, match="page_token"):
            self.rlmm.list_partitions(page_token=token)

    def test_a_negative_page_size_is_refused_and_a_large_one_is_not(self) -> None:
        self.finished(0, 9)
        with pytest.raises(InvalidRequestError, match="page_size"):
            self.rlmm.list_remote_log_segments(self.tp, page_size=-1)
        with pytest.raises(InvalidRequestError, match="page_size"):
            self.rlmm.list_partitions(page_size=-1)
        assert (
            len(self.rlmm.list_remote_log_segments(self.tp, page_size=MAX_PAGE_SIZE + 1).segments)
            == 1
        )


class Partitions(RlmmContractPart):
    def test_known_partitions_are_listed_once_in_order_with_state_and_revision(self) -> None:
        topic_id = uuid4()
        tps = [TopicIdPartition(topic_id, "listed", partition) for partition in (2, 0, 1)]
        self.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(tp) for tp in tps], [], BROKER
        )
        put_deletion(self.rlmm, tps[0], MARKED)
        put_deletion(self.rlmm, tps[1], MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        listed = [
            each
            for each in all_partitions(self.rlmm)
            if each.topic_id_partition.topic_id == topic_id
        ]
        assert [each.topic_id_partition for each in listed] == [tps[2], tps[0]]
        assert [each.delete_state for each in listed] == [None, MARKED]
        assert [each.revision for each in listed] == [revision_of(self.rlmm, tps[2]), 2]

    def test_pages_of_partitions_follow_each_other(self) -> None:
        tps = [replace(self.tp, partition=number) for number in range(3)]
        self.rlmm.on_partition_leadership_changes(
            [], [PartitionLeadership(each) for each in tps], BROKER
        )
        whole = [each.topic_id_partition for each in all_partitions(self.rlmm)]
        paged, token = [], ""
        for _ in range(len(whole)):
            page = self.rlmm.list_partitions(page_size=2, page_token=token)
            paged += [each.topic_id_partition for each in page.partitions]
            token = page.next_page_token
            if not token:
                break
        assert paged == whole == sorted(whole, key=lambda each: (each.topic_id, each.partition))
        assert set(tps) <= set(paged)


class PartitionFilters(RlmmContractPart):
    @pytest.fixture
    def tps(self) -> list[TopicIdPartition]:
        """Provide partitions of a topic of their own: not being deleted, MARKED, STARTED,
        FINISHED.
        """
        topic_id, topic = uuid4(), f"filtered-{uuid4().hex}"
        tps = [TopicIdPartition(topic_id, topic, partition) for partition in range(4)]
        self.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(tp) for tp in tps], [], BROKER
        )
        for reached, tp in enumerate(tps[1:], start=1):
            put_deletion(self.rlmm, tp, *[MARKED, PARTITION_STARTED, PARTITION_FINISHED][:reached])
        return tps

    @pytest.mark.parametrize(
        ("states", "partitions"),
        [
            ([], [0, 1, 2]),
            ([MARKED], [1]),
            ([PARTITION_STARTED], [2]),
            ([PARTITION_STARTED, MARKED], [1, 2]),
            ([PARTITION_FINISHED], [3]),
        ],
    )
    def test_only_those_of_the_topic_in_one_of_the_states(
        self,
        tps: list[TopicIdPartition],
        states: list[RemotePartitionDeleteState],
        partitions: list[int],
    ) -> None:
        listed = all_partitions(self.rlmm, topic=tps[0].topic, delete_states=states)
        assert [each.topic_id_partition.partition for each in listed] == partitions

    def test_states_count_without_a_topic_too(self, tps: list[TopicIdPartition]) -> None:
        listed = list(all_partitions(self.rlmm, delete_states=[MARKED]))
        assert tps[1] in [each.topic_id_partition for each in listed]
        assert {each.delete_state for each in listed} == {MARKED}

    def test_every_topic_of_the_name_is_listed(self, tps: list[TopicIdPartition]) -> None:
        again = TopicIdPartition(uuid4(), tps[0].topic, 0)
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(again)], [], BROKER)
        listed = [each.topic_id_partition for each in all_partitions(self.rlmm, topic=again.topic)]
        assert sorted(listed) == sorted([*tps[:3], again])

    def test_pages_of_a_filter_follow_each_other(self, tps: list[TopicIdPartition]) -> None:
        first = self.rlmm.list_partitions(topic=tps[0].topic, page_size=2)
        rest = self.rlmm.list_partitions(topic=tps[0].topic, page_token=first.next_page_token)
        paged = [each.topic_id_partition for each in (*first.partitions, *rest.partitions)]
        assert (paged, rest.next_page_token) == (tps[:3], "")

    def test_a_token_of_another_filter_is_refused(self, tps: list[TopicIdPartition]) -> None:
        topic = tps[0].topic
        token = self.rlmm.list_partitions(topic=topic, page_size=1).next_page_token
        assert token
        for other, states in (("", []), ("other", []), (topic, [MARKED])):
            with pytest.raises(InvalidRequestError, match="page_token"):
                self.rlmm.list_partitions(topic=other, delete_states=states, page_token=token)

    def test_a_topic_that_no_text_can_name_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"^topic"):
            self.rlmm.list_partitions(topic="a\0")

    def test_the_time_of_the_mark_is_returned_and_stays(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp)], [], BROKER)
        unmarked = self.summary()
        assert unmarked.marked_at_ms is None
        self.put_deletion(MARKED)
        marked = self.summary()
        assert marked.marked_at_ms is not None
        assert 0 < unmarked.read_at_ms <= marked.marked_at_ms <= marked.read_at_ms
        self.put_deletion(PARTITION_STARTED)
        self.put_deletion(MARKED)
        assert self.summary().marked_at_ms == marked.marked_at_ms

    def summary(self) -> PartitionSummary:
        [found] = [each for each in all_partitions(self.rlmm) if each.topic_id_partition == self.tp]
        return found
