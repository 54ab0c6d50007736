"""Test watches of partitions."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
from services.api.segment_batches import SegmentAddition
from services.api.watches import (
    HEARTBEAT_S,
    MAX_WATCHED,
    ChangedSegment,
    PartitionUpdate,
    WatchedPartition,
    WatchUpdate,
)
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
    id_of,
    move,
    put_deletion,
    segment,
)


@contextmanager
def watching(
    rlmm: RemoteLogMetadataManager, *watched: WatchedPartition | TopicIdPartition
) -> Iterator[Iterator[WatchUpdate]]:
    partitions = [w if isinstance(w, WatchedPartition) else WatchedPartition(w) for w in watched]
    with closing(rlmm.watch_partitions(partitions)) as updates:
        yield updates


def updates_up_to(updates: Iterator[WatchUpdate], revision: int) -> list[PartitionUpdate]:
    """Return the updates of a watch of one partition, the last one at the revision."""
    found: list[PartitionUpdate] = []
    for update in updates:
        found += update.partitions
        if found and found[-1].revision >= revision:
            assert found[-1].revision == revision
            return found
    raise AssertionError("the watch has ended")


def segments_of(updates: Sequence[PartitionUpdate]) -> list[ChangedSegment]:
    return [segment for update in updates for segment in update.segments]


class PartitionWatches(RlmmContractPart):
    def test_the_first_update_has_each_partition_with_its_revision(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        other = TopicIdPartition(tp.topic_id, tp.topic, 1)
        finished(rlmm, other, 0, 9)
        with watching(rlmm, tp, other) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0), PartitionUpdate(1, 2))

    def test_each_change_is_reported_with_the_segments_that_look_ups_find(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with watching(rlmm, tp) as updates:
            next(updates)
            copied = add(rlmm, segment(tp, 0, 9))
            assert updates_up_to(updates, 1) == [PartitionUpdate(0, 1)]
            move(rlmm, copied, FINISHED)
            found = ChangedSegment(id_of(copied), FINISHED)
            assert updates_up_to(updates, 2) == [PartitionUpdate(0, 2, (found,))]
            move(rlmm, copied, DELETE_STARTED, DELETE_FINISHED)
            lost = ChangedSegment(id_of(copied), DELETE_STARTED)
            assert segments_of(updates_up_to(updates, 4)) == [lost]

    def test_changes_that_no_look_up_sees_change_the_revision_alone(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with watching(rlmm, tp) as updates:
            next(updates)
            rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3)], [], 1)
            assert updates_up_to(updates, 1) == [PartitionUpdate(0, 1)]

    def test_a_watch_resumes_at_the_revision_that_the_client_knows(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first = finished(rlmm, tp, 0, 9)
        second = finished(rlmm, tp, 10, 19)
        move(rlmm, first, DELETE_STARTED)
        missed = (
            ChangedSegment(id_of(second), FINISHED),
            ChangedSegment(id_of(first), DELETE_STARTED),
        )
        with watching(rlmm, WatchedPartition(tp, 2)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 5, missed),)
        with watching(rlmm, WatchedPartition(tp, 5)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 5),)

    def test_a_later_revision_than_the_present_one_changes_everything(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        """The database may have been restored to an earlier time."""
        finished(rlmm, tp, 0, 9)
        with watching(rlmm, WatchedPartition(tp, 3)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 2, everything=True),)

    def test_a_revision_whose_change_has_another_time_changes_everything(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        """As the same revision of a database that was set back, and has passed it since."""
        finished(rlmm, tp, 0, 9)
        with watching(rlmm, tp) as updates:
            (first,) = next(updates).partitions
            finished(rlmm, tp, 10, 19)
            live = updates_up_to(updates, 4)[-1]
        assert 0 < first.changed_at_us < live.changed_at_us
        for known in (first, live):
            same = WatchedPartition(tp, known.revision, known.changed_at_us)
            with watching(rlmm, same) as updates:
                (resumed,) = next(updates).partitions
            assert (resumed.everything, resumed.changed_at_us) == (False, live.changed_at_us)
            other = replace(same, after_changed_at_us=known.changed_at_us + 1)
            with watching(rlmm, other) as updates:
                assert next(updates).partitions == (PartitionUpdate(0, 4, everything=True),)

    def test_too_many_missed_changes_change_everything(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        additions = [SegmentAddition(segment(tp, offset, offset)) for offset in range(1_000)]
        rlmm.add_remote_log_segment_metadata_batch(additions)
        add(rlmm, segment(tp, 1_000, 1_000))
        with watching(rlmm, WatchedPartition(tp, 0)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 1_001, everything=True),)
        with watching(rlmm, WatchedPartition(tp, 1)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 1_001),)

    def test_a_partitions_deletion_changes_everything(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with watching(rlmm, tp) as updates:
            next(updates)
            put_deletion(rlmm, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
            assert updates_up_to(updates, 3)[-1] == PartitionUpdate(0, 3, everything=True)
        with watching(rlmm, WatchedPartition(tp, 1)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0, everything=True),)

    def test_a_heartbeat_says_up_to_when_all_changes_are_reported(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with watching(rlmm, tp) as updates:
            first = next(updates)
            second = next(updates)
            third = next(updates)
        assert (second.partitions, third.partitions) == ((), ())
        least_ms = HEARTBEAT_S * 1000 / 2
        assert second.complete_through_ms >= first.complete_through_ms + least_ms
        assert third.complete_through_ms >= second.complete_through_ms + least_ms

    def test_a_partition_is_not_watched_under_another_name(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        renamed = TopicIdPartition(tp.topic_id, "payments", 0)
        with watching(rlmm, renamed) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0),)
            finished(rlmm, tp, 0, 9)
            with pytest.raises(InvalidRequestError, match=r"partitions\[0\].*topic: topic id"):
                updates_up_to(updates, 1)
        with (
            watching(rlmm, renamed) as updates,
            pytest.raises(InvalidRequestError, match=r"partitions\[0\].*topic: topic id"),
        ):
            next(updates)

    @pytest.mark.parametrize(
        ("count", "said"),
        [(0, "partitions: must be 1 to 10000, are 0"), (MAX_WATCHED + 1, "are 10001")],
    )
    def test_watched_partitions_are_neither_none_nor_too_many(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, count: int, said: str
    ) -> None:
        tps = [TopicIdPartition(tp.topic_id, tp.topic, number) for number in range(count)]
        with pytest.raises(InvalidRequestError, match=said), watching(rlmm, *tps) as updates:
            next(updates)

    def test_a_partition_is_watched_once(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with (
            pytest.raises(InvalidRequestError, match=r"partitions\[1\]: is partitions\[0\] too"),
            watching(rlmm, tp, tp) as updates,
        ):
            next(updates)
