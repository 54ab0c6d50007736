"""Test the declared differences from Kafka's own metadata manager: Kafka's result, then ours.

The numbers are those of the table in docs/understand/spi-mapping.md, which a test compares.

Kafka's answer is that of its cache (RemoteLogMetadataCache), as tests.deep.model has it without
Sediment's additions.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import (
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.segment_batches import BinQuery, SegmentAxis
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.maintenance import MaintenancePlan, maintain
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
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
from tests.deep.model.kafka_cache import KafkaCache, offsets_by_epoch
from tools.shape import ROOT


class Kafka:
    """The results of a broker with Kafka's own metadata manager, for leader epoch 0."""

    def __init__(self) -> None:
        self.cache = KafkaCache()

    def finish(self, *segments: RemoteLogSegmentMetadata) -> None:
        """Begin and finish each copy, in this order."""
        for each in segments:
            self.cache = self.cache.taken(each).taken(replace(each, state=FINISHED))

    def start_deletion(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.cache = self.cache.taken(replace(metadata, state=DELETE_STARTED))

    def id_at(self, offset: int) -> UUID | None:
        """Find the id in the map from start offsets alone, if that segment holds the offset."""
        epoch = self.cache.epochs.get(0)
        found = None if epoch is None else epoch.floor(offset)
        if found is None:
            return None
        _, last = offsets_by_epoch(self.cache.segments[found])[0]
        return found if offset <= last else None


@pytest.fixture
def another(database_url: str) -> Iterator[RemoteLogMetadataManager]:
    """Another RLMM on the same database, which shares nothing else with the first."""
    engine = create_database_engine(database_url)
    yield SqlRemoteLogMetadataManager(engine)
    engine.dispose()


@pytest.fixture
def tp() -> TopicIdPartition:
    return TopicIdPartition(uuid4(), "orders", 0)


def states(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> list[RemoteLogSegmentState]:
    return [each.state for each in all_segments(rlmm, tp)]


def test_1_change_is_committed_and_visible_to_all_when_answered(
    rlmm: RemoteLogMetadataManager, another: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    # Kafka: the writer waits until its own broker has consumed the event. Each other broker has a
    # cache of its own, which lags behind by what it has not consumed yet.
    writers, others = Kafka(), Kafka()
    only = segment(tp, 0, 9)
    others.cache = others.cache.taken(only)
    writers.finish(only)
    assert (writers.id_at(5), others.id_at(5)) == (id_of(only), None)

    for start in range(0, 200, 10):
        each = add(rlmm, segment(tp, start, start + 9))
        assert ids(another, tp)[-1] == id_of(each)
        finished_at = move(rlmm, each, FINISHED).revision
        found = another.remote_log_segment_metadata(tp, 0, start)
        assert found.value is not None
        assert (id_of(found.value), found.revision) == (id_of(each), finished_at)


def test_2_an_invalid_transition_and_an_unknown_id_are_reported_and_a_repeat_is_success(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    # Kafka logs the event and drops it: to the caller it looks done, and the cache is as before.
    only = add(rlmm, segment(tp, 0, 9))
    with pytest.raises(InvalidStateTransitionError):
        move(rlmm, only, DELETE_FINISHED)
    with pytest.raises(RemoteResourceNotFoundError):
        move(rlmm, segment(tp, 0, 9), FINISHED)
    assert (states(rlmm, tp), revision_of(rlmm, tp)) == ([only.state], 1)

    # The same again: Kafka processes it once more; here it is told to be a repeat.
    assert not rlmm.add_remote_log_segment_metadata(only).applied
    assert move(rlmm, only, FINISHED, custom_metadata=b"a").applied
    assert not move(rlmm, only, FINISHED, custom_metadata=b"a").applied
    assert revision_of(rlmm, tp) == 2
    # Other content in the same state: Kafka overwrites.
    with pytest.raises(SegmentAlreadyExistsError):
        move(rlmm, only, FINISHED, custom_metadata=b"b")
    other = add(rlmm, segment(tp, 10, 19))
    with pytest.raises(SegmentAlreadyExistsError):
        rlmm.add_remote_log_segment_metadata(replace(other, end_offset=18))
    assert revision_of(rlmm, tp) == 3


def test_3_absent_custom_metadata_keeps_the_stored_one(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    kafka, only = Kafka(), segment(tp, 0, 9, custom_metadata=b"where its objects are")
    kafka.finish(only)
    # Kafka: createWithUpdates takes the update's, also where it has none.
    kafka.start_deletion(replace(only, custom_metadata=None))
    assert [each.custom_metadata for each in kafka.cache.listed(0)] == [None]

    add(rlmm, only, FINISHED, DELETE_STARTED)
    assert [each.custom_metadata for each in all_segments(rlmm, tp)] == [only.custom_metadata]


class Test4WhereKafkasChoiceDoesNotHoldTheOffsetAnotherSegmentAnswers:
    def test_behind_a_short_late_segment(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        long, short = segment(tp, 10, 200), segment(tp, 50, 60)
        kafka = Kafka()
        kafka.finish(long, short)
        assert [kafka.id_at(offset) for offset in (49, 55, 61)] == [id_of(long), id_of(short), None]

        for each in (long, short):
            add(rlmm, each, FINISHED)
        assert [id_at(rlmm, tp, 0, offset) for offset in (49, 55, 61)] == [
            id_of(long),
            id_of(short),
            id_of(long),
        ]

    def test_when_a_displacing_segment_is_deleted(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        displaced, displacer = segment(tp, 10, 100), segment(tp, 5, 150)
        kafka = Kafka()
        kafka.finish(displaced, displacer)
        assert kafka.id_at(50) == id_of(displacer)
        kafka.start_deletion(displacer)
        assert kafka.id_at(50) is None

        for each in (displaced, displacer):
            add(rlmm, each, FINISHED)
        assert id_at(rlmm, tp, 0, 50) == id_of(displacer)
        move(rlmm, displacer, DELETE_STARTED)
        assert id_at(rlmm, tp, 0, 50) == id_of(displaced)

    def test_a_segment_that_kafka_drops_from_the_epochs_list_stays_listed(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        long, short = segment(tp, 10, 100), segment(tp, 10, 50)
        kafka = Kafka()
        kafka.finish(long, short)
        # The put replaced it, and the unreferenced do not have it: only the list of all does.
        assert kafka.cache.epochs[0].offset_to_id == ((10, id_of(short)),)
        assert [kafka.id_at(offset) for offset in (30, 51)] == [id_of(short), None]

        for each in (long, short):
            add(rlmm, each, FINISHED)
        assert sorted(ids(rlmm, tp, 0)) == sorted([id_of(long), id_of(short)])
        assert [id_at(rlmm, tp, 0, offset) for offset in (30, 51)] == [id_of(short), id_of(long)]


def test_5_the_order_of_a_partitions_deletion_is_enforced(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    # Kafka stores whatever arrives. At FINISHED it forgets the partition, also one with segments,
    # whose objects nobody knows of any more; until then copies begin as before.
    copied = finished(rlmm, tp, 0, 9)
    under_way = add(rlmm, segment(tp, 10, 19))
    with pytest.raises(InvalidStateTransitionError):
        put_deletion(rlmm, tp, PARTITION_STARTED)
    put_deletion(rlmm, tp, MARKED)
    with pytest.raises(InvalidStateTransitionError):
        add(rlmm, segment(tp, 20, 29))
    assert move(rlmm, under_way, FINISHED).applied
    put_deletion(rlmm, tp, PARTITION_STARTED)
    assert not put_deletion(rlmm, tp, MARKED).applied
    with pytest.raises(InvalidStateTransitionError, match="segments"):
        put_deletion(rlmm, tp, PARTITION_FINISHED)
    assert id_at(rlmm, tp, 0, 5) == id_of(copied)
    for each in (copied, under_way):
        move(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    assert put_deletion(rlmm, tp, PARTITION_FINISHED).applied
    with pytest.raises(RemoteResourceNotFoundError):
        ids(rlmm, tp)


def test_6_the_highest_offset_of_an_epoch_is_stored_and_survives_purging(
    rlmm: RemoteLogMetadataManager,
    another: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    database_url: str,
) -> None:
    kafka, only = Kafka(), segment(tp, 0, 99)
    kafka.finish(only)
    kafka.start_deletion(only)
    kafka.cache = kafka.cache.taken(replace(only, state=DELETE_FINISHED))
    # Kafka keeps it in memory beyond the deletion; a broker that starts anew once the events are
    # gone from the topic has nothing to make it of.
    assert (kafka.cache.highest_offset(0), Kafka().cache.highest_offset(0)) == (99, None)

    add(rlmm, only, FINISHED, DELETE_STARTED, DELETE_FINISHED)
    purged = maintain(database_url, MaintenancePlan(delete_retention_ms=0))
    assert purged.tombstones == 1
    assert rlmm.remote_log_segment_metadata_by_id(tp, [id_of(only)]).value == ()
    assert another.highest_offset_for_epoch(tp, 0).value == 99
    # And what finishes later below it does not lower it.
    finished(rlmm, tp, 0, 49)
    assert another.highest_offset_for_epoch(tp, 0).value == 99


class Test7APartitionIsKnownFromLeadershipAddOrMarkedOn:
    """Kafka knows a partition once its broker leads or follows it, and answers when it has consumed
    its events; an add to one that is not assigned fails, though the event is published."""

    def test_unannounced_topic_is_not_found(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            ids(rlmm, tp)

    def test_by_leadership_it_lists_empty(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 0)], [], BROKER)
        assert ids(rlmm, tp) == []
        assert ids(rlmm, tp, 0) == []
        assert rlmm.highest_offset_for_epoch(tp, 0).value is None
        assert rlmm.remote_log_size(tp, 0).value == 0

    def test_by_an_add_of_whomever(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        assert ids(rlmm, tp) == [id_of(only)]

    def test_by_marked(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> None:
        put_deletion(rlmm, tp, MARKED)
        assert ids(rlmm, tp) == []


def test_8_a_search_for_a_transaction_index_does_not_stop_at_a_gap(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    before, beyond = segment(tp, 0, 9, txn_idx_empty=True), segment(tp, 20, 29)
    kafka = Kafka()
    kafka.finish(before, beyond)
    # Kafka looks up the offset after each segment that has no index, and finds nothing at 10.
    assert kafka.id_at(before.end_offset + 1) is None

    for each in (before, beyond):
        add(rlmm, each, FINISHED)
    found = rlmm.next_segment_with_txn_index(tp, 0, 0).value
    assert found is not None
    assert id_of(found) == id_of(beyond)


def test_8_a_search_for_a_transaction_index_finds_only_segments_with_records_of_the_epoch(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    # Kafka: those of the epoch's list, which has a segment only if it has records of the epoch.
    finished(rlmm, tp, 7, 8, epochs={1: 8, 2: 8})  # none of epoch 1
    assert rlmm.next_segment_with_txn_index(tp, 1, 6).value is None
    found = rlmm.next_segment_with_txn_index(tp, 2, 6).value
    assert found is not None
    assert found.start_offset == 7


def test_9_an_unknown_size_counts_as_0(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    # Kafka adds -1.
    finished(rlmm, tp, 0, 9, segment_size_in_bytes=100)
    finished(rlmm, tp, 10, 19, segment_size_in_bytes=-1)
    assert rlmm.remote_log_size(tp, 0).value == 100
    [listed] = rlmm.list_partitions().partitions
    assert listed.totals is not None
    assert (listed.totals.finished_bytes, listed.totals.live_bytes) == (100, 100)
    binned = rlmm.bin_remote_log_segments(BinQuery(tp, SegmentAxis.OFFSET)).value
    assert [each.size_bytes for each in binned.bins] == [100, 0]


class Test10NumbersThatCannotBeAreRefused:
    """Kafka checks that the start offset is not negative, that the end is not below it, and that
    there is a leader epoch. It stores all of these."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_timestamp_ms", -2),
            ("segment_size_in_bytes", -2),
            ("broker_id", -2),
            ("event_timestamp_ms", -1),
        ],
    )
    def test_a_number_below_its_least(self, tp: TopicIdPartition, field: str, value: Any) -> None:
        with pytest.raises(InvalidRequestError, match=f"^{field}: "):
            segment(tp, 0, 9, **{field: value})

    @pytest.mark.parametrize(
        "epochs",
        [
            pytest.param({-1: 0}, id="negative epoch"),
            pytest.param({0: -1}, id="negative start"),
            pytest.param({0: 5, 1: 3}, id="descending starts"),
            pytest.param({0: 0, 1: 10}, id="start beyond the end"),
        ],
    )
    def test_leader_epochs(self, tp: TopicIdPartition, epochs: dict[int, int]) -> None:
        with pytest.raises(InvalidRequestError):
            segment(tp, 0, 9, epochs)

    @pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
    def test_look_ups(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, epoch: int, offset: int
    ) -> None:
        # Kafka finds nothing there.
        finished(rlmm, tp, 0, 9)
        with pytest.raises(InvalidRequestError):
            rlmm.remote_log_segment_metadata(tp, epoch, offset)


def test_11_a_deleted_segments_id_is_remembered_until_its_tombstone_is_purged(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, database_url: str
) -> None:
    # Kafka forgets it at once, and takes the same id for a new segment.
    kafka, only = Kafka(), segment(tp, 0, 9)
    kafka.finish(only)
    kafka.start_deletion(only)
    kafka.cache = kafka.cache.taken(replace(only, state=DELETE_FINISHED))
    assert kafka.cache.live == []

    add(rlmm, only, FINISHED, DELETE_STARTED, DELETE_FINISHED)
    assert not move(rlmm, only, DELETE_STARTED).applied
    with pytest.raises(InvalidStateTransitionError):
        add(rlmm, only)
    maintain(database_url, MaintenancePlan(delete_retention_ms=0))
    assert rlmm.add_remote_log_segment_metadata(only).applied


def test_each_difference_in_the_documentation_has_its_test_here() -> None:
    page = (ROOT / "docs" / "understand" / "spi-mapping.md").read_text()
    declared = {int(number) for number in re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)}
    tested = {int(number) for name in globals() for number in re.findall(r"^[Tt]est_?(\d+)", name)}
    assert declared == tested == set(range(1, 12))
