"""Test lists, sizes and pages: tables B, C, E."""

from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    PartitionLeadership,
    PartitionSummary,
    RemoteLogMetadataManager,
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
    add,
    finished,
    id_at,
    id_of,
    ids,
    move,
    put_deletion,
    revision_of,
    segment,
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
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        states: list[RemoteLogSegmentState],
        is_found: bool,
        is_listed: bool,
    ) -> None:
        only = add(rlmm, segment(tp, 101, 200), *states)
        listed = [id_of(only)] if is_listed else []
        assert (id_at(rlmm, tp, 0, 150) == id_of(only)) is is_found
        assert ids(rlmm, tp, 0) == listed
        assert ids(rlmm, tp) == listed
        assert rlmm.remote_log_size(tp, 0).value == SEG * len(listed)

    @pytest.mark.parametrize(
        "states", [[], [FINISHED], [DELETE_STARTED], [FINISHED, DELETE_STARTED]]
    )
    def test_a_list_shows_the_state(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        states: list[RemoteLogSegmentState],
    ) -> None:
        add(rlmm, segment(tp, 101, 200), *states)
        (listed,) = all_segments(rlmm, tp)
        assert listed.state is ([STARTED, *states][-1])


class TableC(RlmmContractPart):
    def test_an_epoch_lists_its_segments_by_start_offset(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        s2 = finished(rlmm, tp, 201, 400, {0: 201, 1: 301})
        s0, s1 = finished(rlmm, tp, 0, 100), finished(rlmm, tp, 101, 200)
        assert ids(rlmm, tp, 0) == [id_of(s0), id_of(s1), id_of(s2)]
        assert ids(rlmm, tp, 1) == [id_of(s2)]
        assert ids(rlmm, tp) == [id_of(s0), id_of(s1), id_of(s2)]

    def test_the_order_is_that_of_the_segments_not_of_the_epochs_part(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        early = finished(rlmm, tp, 0, 100, {0: 0, 1: 50})
        late = finished(rlmm, tp, 10, 200, {1: 10})
        assert ids(rlmm, tp, 1) == [id_of(early), id_of(late)]

    def test_an_unknown_epoch_lists_empty(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 100)
        assert ids(rlmm, tp, 9001) == []


class TableE(RlmmContractPart):
    def test_segments_of_an_epoch_count_before_they_finish(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        for n in (1, 2, 3):
            add(rlmm, segment(tp, 10 * n, 10 * n + 9, segment_size_in_bytes=n * SEG))
        assert rlmm.remote_log_size(tp, 0).value == 6 * SEG

    def test_each_epoch_has_its_own_size(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        for n in (1, 2, 3):
            epochs = {n - 1: 10 * n}
            add(rlmm, segment(tp, 10 * n, 10 * n + 9, epochs, segment_size_in_bytes=n * SEG))
        sizes = [rlmm.remote_log_size(tp, epoch).value for epoch in (0, 1, 2, 9001)]
        assert sizes == [SEG, 2 * SEG, 3 * SEG, 0]

    def test_a_segment_that_spans_epochs_counts_whole_in_each(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 100, {0: 0, 1: 20}, segment_size_in_bytes=SEG)
        assert [rlmm.remote_log_size(tp, epoch).value for epoch in (0, 1)] == [SEG, SEG]

    def test_displaced_segments_and_those_under_deletion_count(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 10, 100)
        finished(rlmm, tp, 5, 150)
        move(rlmm, finished(rlmm, tp, 200, 300), DELETE_STARTED)
        assert rlmm.remote_log_size(tp, 0).value == 3 * SEG

    def test_a_sum_beyond_32_bits_is_exact(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        for n in range(3):
            finished(rlmm, tp, 10 * n, 10 * n + 9, segment_size_in_bytes=2**31 - 1)
        assert rlmm.remote_log_size(tp, 0).value == 3 * (2**31 - 1)

    def test_an_unknown_size_counts_nothing(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9, segment_size_in_bytes=-1)
        assert rlmm.remote_log_size(tp, 0).value == 0


class Filters(RlmmContractPart):
    def test_only_the_states_asked_for_are_listed(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        started = add(rlmm, segment(tp, 0, 9))
        done = finished(rlmm, tp, 10, 19)
        dying = add(rlmm, segment(tp, 20, 29), DELETE_STARTED)
        some = rlmm.list_remote_log_segments(tp, states=[STARTED, DELETE_STARTED])
        assert [id_of(each) for each in some.segments] == [id_of(started), id_of(dying)]
        of_epoch = rlmm.list_remote_log_segments(tp, 0, states=[FINISHED])
        assert [id_of(each) for each in of_epoch.segments] == [id_of(done)]

    def test_deleted_segments_are_not_listed_even_when_asked_for(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        add(rlmm, segment(tp, 0, 9), DELETE_STARTED, DELETE_FINISHED)
        assert rlmm.list_remote_log_segments(tp, states=[DELETE_FINISHED]).segments == ()

    def test_min_offset_keeps_segments_that_reach_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9)
        kept = [finished(rlmm, tp, 10, 19), finished(rlmm, tp, 20, 29)]
        for epoch in (None, 0):
            page = rlmm.list_remote_log_segments(tp, epoch, min_offset=19)
            assert [id_of(each) for each in page.segments] == [id_of(each) for each in kept]


class Revisions(RlmmContractPart):
    def test_every_read_carries_the_revision_of_the_last_mutation(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        revision = move(rlmm, only, FINISHED).revision
        reads = {
            rlmm.remote_log_segment_metadata(tp, 0, 5).revision,
            rlmm.remote_log_segment_metadata(tp, 7, 5).revision,
            rlmm.highest_offset_for_epoch(tp, 0).revision,
            rlmm.remote_log_size(tp, 0).revision,
            rlmm.next_segment_with_txn_index(tp, 0, 0).revision,
            rlmm.list_remote_log_segments(tp).revision,
            rlmm.list_remote_log_segments(tp, 7).revision,
        }
        assert reads == {revision}

    def test_an_unchanged_partition_answers_not_modified(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        seen = revision_of(rlmm, tp)
        page = rlmm.list_remote_log_segments(tp, if_revision_not=seen)
        assert (page.not_modified, page.segments, page.revision) == (True, (), seen)
        move(rlmm, only, FINISHED)
        page = rlmm.list_remote_log_segments(tp, if_revision_not=seen)
        assert (page.not_modified, len(page.segments)) == (False, 1)
        assert page.revision > seen

    def test_a_known_empty_partition_lists_empty(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3)], [], BROKER)
        page = rlmm.list_remote_log_segments(tp)
        assert (page.segments, page.next_page_token, page.not_modified) == ((), "", False)
        assert rlmm.highest_offset_for_epoch(tp, 3).value is None


class Pages(RlmmContractPart):
    @pytest.mark.parametrize("epoch", [None, 0])
    @pytest.mark.parametrize("page_size", [1, 2, 3, 5, 6])
    def test_pages_hold_every_segment_once_and_in_order(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        epoch: int | None,
        page_size: int,
    ) -> None:
        # Two with the same start offset: the id decides.
        starts = (0, 10, 10, 20, 30)
        added = [finished(rlmm, tp, start, start + 9) for start in starts]
        seen: list[RemoteLogSegmentMetadata] = []
        token = ""
        for _ in range(len(starts)):
            page = rlmm.list_remote_log_segments(tp, epoch, page_size=page_size, page_token=token)
            assert len(page.segments) <= page_size
            seen += page.segments
            token = page.next_page_token
            if not token:
                break
        assert token == ""
        assert sorted(map(id_of, seen)) == sorted(map(id_of, added))
        assert [each.start_offset for each in seen] == list(starts)

    def test_a_token_of_another_query_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        other = TopicIdPartition(tp.topic_id, tp.topic, 1)
        for each in (tp, other):
            finished(rlmm, each, 0, 9)
            finished(rlmm, each, 10, 19)
        token = rlmm.list_remote_log_segments(tp, page_size=1).next_page_token
        assert token
        for ask in (
            lambda: rlmm.list_remote_log_segments(other, page_token=token),
            lambda: rlmm.list_remote_log_segments(tp, 0, page_token=token),
            lambda: rlmm.list_remote_log_segments(tp, states=[FINISHED], page_token=token),
            lambda: rlmm.list_remote_log_segments(tp, min_offset=3, page_token=token),
            lambda: rlmm.list_partitions(page_token=token),
        ):
            with pytest.raises(InvalidRequestError, match="page_token"):
                ask()

    def test_a_page_may_have_another_size_than_the_one_before(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        for start in (0, 10, 20):
            finished(rlmm, tp, start, start + 9)
        token = rlmm.list_remote_log_segments(tp, page_size=1).next_page_token
        rest = rlmm.list_remote_log_segments(tp, page_size=50, page_token=token)
        assert [each.start_offset for each in rest.segments] == [10, 20]

    @pytest.mark.parametrize("token", ["x", "not a token", "A" * 43, "é", "=" * 44, "A" * 5000])
    def test_invented_token_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, token: str
    ) -> None:
        finished(rlmm, tp, 0, 9)
        with pytest.raises(InvalidRequestError, match="page_token"):
            rlmm.list_remote_log_segments(tp, page_token=token)
        with pytest.raises(InvalidRequestError, match="page_token"):
            rlmm.list_partitions(page_token=token)

    def test_a_negative_page_size_is_refused_and_a_large_one_is_not(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9)
        with pytest.raises(InvalidRequestError, match="page_size"):
            rlmm.list_remote_log_segments(tp, page_size=-1)
        with pytest.raises(InvalidRequestError, match="page_size"):
            rlmm.list_partitions(page_size=-1)
        assert len(rlmm.list_remote_log_segments(tp, page_size=MAX_PAGE_SIZE + 1).segments) == 1


class Partitions(RlmmContractPart):
    def test_known_partitions_are_listed_once_in_order_with_state_and_revision(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = uuid4()
        tps = [TopicIdPartition(topic_id, "listed", partition) for partition in (2, 0, 1)]
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp) for tp in tps], [], BROKER)
        put_deletion(rlmm, tps[0], MARKED)
        put_deletion(rlmm, tps[1], MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        listed = [
            each for each in all_partitions(rlmm) if each.topic_id_partition.topic_id == topic_id
        ]
        assert [each.topic_id_partition for each in listed] == [tps[2], tps[0]]
        assert [each.delete_state for each in listed] == [None, MARKED]
        assert [each.revision for each in listed] == [revision_of(rlmm, tps[2]), 2]

    def test_pages_of_partitions_follow_each_other(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        tps = [TopicIdPartition(tp.topic_id, tp.topic, partition) for partition in range(3)]
        rlmm.on_partition_leadership_changes([], [PartitionLeadership(tp) for tp in tps], BROKER)
        whole = [each.topic_id_partition for each in all_partitions(rlmm)]
        paged, token = [], ""
        for _ in range(len(whole)):
            page = rlmm.list_partitions(page_size=2, page_token=token)
            paged += [each.topic_id_partition for each in page.partitions]
            token = page.next_page_token
            if not token:
                break
        assert paged == whole == sorted(whole, key=lambda each: (each.topic_id, each.partition))
        assert set(tps) <= set(paged)


class PartitionFilters(RlmmContractPart):
    @pytest.fixture
    def tps(self, rlmm: RemoteLogMetadataManager) -> list[TopicIdPartition]:
        """Provide partitions of a topic of their own: not being deleted, MARKED, STARTED,
        FINISHED.
        """
        topic_id, topic = uuid4(), f"filtered-{uuid4().hex}"
        tps = [TopicIdPartition(topic_id, topic, partition) for partition in range(4)]
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp) for tp in tps], [], BROKER)
        for reached, tp in enumerate(tps[1:], start=1):
            put_deletion(rlmm, tp, *[MARKED, PARTITION_STARTED, PARTITION_FINISHED][:reached])
        return tps

    @pytest.mark.parametrize(
        ("states", "partitions"),
        [
            ([], [0, 1, 2]),
            ([MARKED], [1]),
            ([PARTITION_STARTED], [2]),
            ([PARTITION_STARTED, MARKED], [1, 2]),
            ([PARTITION_FINISHED], []),
        ],
    )
    def test_only_those_of_the_topic_in_one_of_the_states(
        self,
        rlmm: RemoteLogMetadataManager,
        tps: list[TopicIdPartition],
        states: list[RemotePartitionDeleteState],
        partitions: list[int],
    ) -> None:
        listed = all_partitions(rlmm, topic=tps[0].topic, delete_states=states)
        assert [each.topic_id_partition.partition for each in listed] == partitions

    def test_states_count_without_a_topic_too(
        self, rlmm: RemoteLogMetadataManager, tps: list[TopicIdPartition]
    ) -> None:
        listed = list(all_partitions(rlmm, delete_states=[MARKED]))
        assert tps[1] in [each.topic_id_partition for each in listed]
        assert {each.delete_state for each in listed} == {MARKED}

    def test_every_topic_of_the_name_is_listed(
        self, rlmm: RemoteLogMetadataManager, tps: list[TopicIdPartition]
    ) -> None:
        again = TopicIdPartition(uuid4(), tps[0].topic, 0)
        rlmm.on_partition_leadership_changes([PartitionLeadership(again)], [], BROKER)
        listed = [each.topic_id_partition for each in all_partitions(rlmm, topic=again.topic)]
        assert sorted(listed) == sorted([*tps[:3], again])

    def test_pages_of_a_filter_follow_each_other(
        self, rlmm: RemoteLogMetadataManager, tps: list[TopicIdPartition]
    ) -> None:
        first = rlmm.list_partitions(topic=tps[0].topic, page_size=2)
        rest = rlmm.list_partitions(topic=tps[0].topic, page_token=first.next_page_token)
        paged = [each.topic_id_partition for each in (*first.partitions, *rest.partitions)]
        assert (paged, rest.next_page_token) == (tps[:3], "")

    def test_a_token_of_another_filter_is_refused(
        self, rlmm: RemoteLogMetadataManager, tps: list[TopicIdPartition]
    ) -> None:
        topic = tps[0].topic
        token = rlmm.list_partitions(topic=topic, page_size=1).next_page_token
        assert token
        for other, states in (("", []), ("other", []), (topic, [MARKED])):
            with pytest.raises(InvalidRequestError, match="page_token"):
                rlmm.list_partitions(topic=other, delete_states=states, page_token=token)

    def test_a_topic_that_no_text_can_name_is_refused(self, rlmm: RemoteLogMetadataManager) -> None:
        with pytest.raises(InvalidRequestError, match=r"^topic"):
            rlmm.list_partitions(topic="a\0")

    def test_the_time_of_the_mark_is_returned_and_stays(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp)], [], BROKER)
        unmarked = self.summary(rlmm, tp)
        assert unmarked.marked_at_ms is None
        put_deletion(rlmm, tp, MARKED)
        marked = self.summary(rlmm, tp)
        assert marked.marked_at_ms is not None
        assert 0 < unmarked.read_at_ms <= marked.marked_at_ms <= marked.read_at_ms
        put_deletion(rlmm, tp, PARTITION_STARTED)
        put_deletion(rlmm, tp, MARKED)
        assert self.summary(rlmm, tp).marked_at_ms == marked.marked_at_ms

    def summary(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> PartitionSummary:
        [found] = [each for each in all_partitions(rlmm) if each.topic_id_partition == tp]
        return found
