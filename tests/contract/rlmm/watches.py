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
    finished,
    id_of,
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
    def test_the_first_update_has_each_partition_with_its_revision(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        finished(self.rlmm, other, 0, 9)
        with watching(self.rlmm, self.tp, other) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0), PartitionUpdate(1, 2))

    def test_each_change_is_reported_with_the_segments_that_look_ups_find(self) -> None:
        with watching(self.rlmm, self.tp) as updates:
            next(updates)
            copied = self.add(self.segment(0, 9))
            assert updates_up_to(updates, 1) == [PartitionUpdate(0, 1)]
            self.move(copied, FINISHED)
            found = ChangedSegment(id_of(copied), FINISHED)
            assert updates_up_to(updates, 2) == [PartitionUpdate(0, 2, (found,))]
            self.move(copied, DELETE_STARTED, DELETE_FINISHED)
            lost = ChangedSegment(id_of(copied), DELETE_STARTED)
            assert segments_of(updates_up_to(updates, 4)) == [lost]

    def test_changes_that_no_look_up_sees_change_the_revision_alone(self) -> None:
        with watching(self.rlmm, self.tp) as updates:
            next(updates)
            self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 3)], [], 1)
            assert updates_up_to(updates, 1) == [PartitionUpdate(0, 1)]

    def test_a_watch_resumes_at_the_revision_that_the_client_knows(self) -> None:
        first = self.finished(0, 9)
        second = self.finished(10, 19)
        self.move(first, DELETE_STARTED)
        missed = (
            ChangedSegment(id_of(second), FINISHED),
            ChangedSegment(id_of(first), DELETE_STARTED),
        )
        with watching(self.rlmm, WatchedPartition(self.tp, 2)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 5, missed),)
        with watching(self.rlmm, WatchedPartition(self.tp, 5)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 5),)

    def test_a_later_revision_than_the_present_one_changes_everything(self) -> None:
        """The database may have been restored to an earlier time."""
        self.finished(0, 9)
        with watching(self.rlmm, WatchedPartition(self.tp, 3)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 2, everything=True),)

    def test_a_revision_whose_change_has_another_time_changes_everything(self) -> None:
        """As the same revision of a database that was set back, and has passed it since."""
        self.finished(0, 9)
        with watching(self.rlmm, self.tp) as updates:
            (first,) = next(updates).partitions
            self.finished(10, 19)
            live = updates_up_to(updates, 4)[-1]
        assert 0 < first.changed_at_us < live.changed_at_us
        for known in (first, live):
            same = WatchedPartition(self.tp, known.revision, known.changed_at_us)
            with watching(self.rlmm, same) as updates:
                (resumed,) = next(updates).partitions
            assert (resumed.everything, resumed.changed_at_us) == (False, live.changed_at_us)
            other = replace(same, after_changed_at_us=known.changed_at_us + 1)
            with watching(self.rlmm, other) as updates:
                assert next(updates).partitions == (PartitionUpdate(0, 4, everything=True),)

    def test_too_many_missed_changes_change_everything(self) -> None:
        additions = [SegmentAddition(self.segment(offset, offset)) for offset in range(1_000)]
        self.rlmm.add_remote_log_segment_metadata_batch(additions)
        self.add(self.segment(1_000, 1_000))
        with watching(self.rlmm, WatchedPartition(self.tp, 0)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 1_001, everything=True),)
        with watching(self.rlmm, WatchedPartition(self.tp, 1)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 1_001),)

    def test_a_partitions_deletion_changes_everything(self) -> None:
        with watching(self.rlmm, self.tp) as updates:
            next(updates)
            self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
            assert updates_up_to(updates, 3)[-1] == PartitionUpdate(0, 3, everything=True)
        with watching(self.rlmm, WatchedPartition(self.tp, 1)) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0, everything=True),)

    def test_a_heartbeat_says_up_to_when_all_changes_are_reported(self) -> None:
        with watching(self.rlmm, self.tp) as updates:
            first = next(updates)
            second = next(updates)
            third = next(updates)
        assert (second.partitions, third.partitions) == ((), ())
        least_ms = HEARTBEAT_S * 1000 / 2
        assert second.complete_through_ms >= first.complete_through_ms + least_ms
        assert third.complete_through_ms >= second.complete_through_ms + least_ms

    def test_a_partition_is_not_watched_under_another_name(self) -> None:
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with watching(self.rlmm, renamed) as updates:
            assert next(updates).partitions == (PartitionUpdate(0, 0),)
            self.finished(0, 9)
            with pytest.raises(InvalidRequestError, match=r"partitions\[0\].*topic: topic id"):
                updates_up_to(updates, 1)
        with (
            watching(self.rlmm, renamed) as updates,
            pytest.raises(InvalidRequestError, match=r"partitions\[0\].*topic: topic id"),
        ):
            next(updates)

    @pytest.mark.parametrize(
        ("count", "said"),
        [(0, "partitions: must be 1 to 10000, are 0"), (MAX_WATCHED + 1, "are 10001")],
    )
    def test_watched_partitions_are_neither_none_nor_too_many(self, count: int, said: str) -> None:
        tps = [TopicIdPartition(self.tp.topic_id, self.tp.topic, number) for number in range(count)]
        with pytest.raises(InvalidRequestError, match=said), watching(self.rlmm, *tps) as updates:
            next(updates)

    def test_a_partition_is_watched_once(self) -> None:
        with (
            pytest.raises(InvalidRequestError, match=r"partitions\[1\]: is partitions\[0\] too"),
            watching(self.rlmm, self.tp, self.tp) as updates,
        ):
            next(updates)
