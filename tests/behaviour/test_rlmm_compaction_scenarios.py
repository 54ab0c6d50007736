"""Play the five scenarios of the proposal to compact the metadata topic (KIP-1266) on RLMM.

The audit trail is the proposal's audit topic, with its keys; what the queries answer is its
compacted topic and the cache made of it. Both are looked at after every step. Where the proposal's
steps meet rules of ours, ours hold, and the test says so.
"""

import pytest

from services.api.errors import FencedLeaderEpochError, RemoteResourceNotFoundError
from services.api.retention import Deletion, DeletionReason
from services.rlmm.operations.maintenance import MaintenancePlan, maintain
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.removal import begin_removal, finish_removal, remove_partition
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    STARTED,
    move,
    put_deletion,
)
from tests.harness.partition_story import SIZE, PartitionStory, Projection
from tests.harness.tier import now_ms

ONE, TWO, THREE = 101, 102, 103
"""Brokers."""


def test_scenario_1_a_segment_is_uploaded(story: PartitionStory) -> None:
    story.lead(ONE, epoch=3)
    assert story.reported() == ["LEADERSHIP by 101 at 3"]
    assert story.projection(3, 500) == Projection()

    a = story.begin(0, 1000, {3: 0}, broker=ONE, leader_epoch=3)
    assert story.reported() == ["0:1000:3 A COPY_SEGMENT_STARTED by 101 at 3"]
    assert story.projection(3, 500) == Projection({"A": STARTED}, size=SIZE)

    story.finish(a)
    assert story.reported() == ["0:1000:3 A COPY_SEGMENT_FINISHED by 101 at 3"]
    assert story.projection(3, 500) == Projection(
        {"A": FINISHED}, found="A", highest=1000, size=SIZE, earliest=0
    )


def test_scenario_2_leadership_changes_during_an_upload(story: PartitionStory) -> None:
    story.lead(ONE, epoch=3)
    a = story.begin(1001, 2000, {3: 1001}, broker=ONE, leader_epoch=3)
    assert story.reported() == [
        "LEADERSHIP by 101 at 3",
        "0:2000:3 A COPY_SEGMENT_STARTED by 101 at 3",
    ]
    assert story.projection(3, 1500) == Projection({"A": STARTED}, size=SIZE)

    story.lead(TWO, epoch=4)
    assert story.reported() == ["LEADERSHIP by 102 at 4"]
    assert story.projection(3, 1500) == Projection({"A": STARTED}, size=SIZE)

    b = story.begin(1001, 2000, {3: 1001}, broker=TWO, leader_epoch=4)
    assert story.reported() == ["0:2000:4 B COPY_SEGMENT_STARTED by 102 at 4"]
    assert story.projection(3, 1500) == Projection({"A": STARTED, "B": STARTED}, size=2 * SIZE)

    # KIP-405 lets the demoted leader finish what it began.
    story.finish(a)
    assert story.reported() == ["0:2000:3 A COPY_SEGMENT_FINISHED by 101 at 3"]
    assert story.projection(3, 1500) == Projection(
        {"A": FINISHED, "B": STARTED}, found="A", highest=2000, size=2 * SIZE, earliest=1001
    )

    story.finish(b)
    assert story.reported() == ["0:2000:4 B COPY_SEGMENT_FINISHED by 102 at 4"]
    assert story.projection(3, 1500) == Projection(
        {"A": FINISHED, "B": FINISHED}, found="B", highest=2000, size=2 * SIZE, earliest=1001
    )


def test_scenario_3_an_upload_fails_and_is_made_again_under_the_same_leader_epoch(
    story: PartitionStory,
) -> None:
    story.lead(ONE, epoch=5)
    a = story.begin(2001, 3000, {5: 2001}, broker=ONE, leader_epoch=5)
    assert story.reported()[1:] == ["0:3000:5 A COPY_SEGMENT_STARTED by 101 at 5"]
    assert story.projection(5, 2500) == Projection({"A": STARTED}, size=SIZE)

    # The attempt times out at its broker: nobody tells of it.
    assert story.reported() == []
    assert story.projection(5, 2500) == Projection({"A": STARTED}, size=SIZE)

    b = story.begin(2001, 3000, {5: 2001}, broker=ONE, leader_epoch=5)
    assert story.reported() == ["0:3000:5 B COPY_SEGMENT_STARTED by 101 at 5"]
    assert story.projection(5, 2500) == Projection({"A": STARTED, "B": STARTED}, size=2 * SIZE)

    story.finish(b)
    assert story.reported() == ["0:3000:5 B COPY_SEGMENT_FINISHED by 101 at 5"]
    # The proposal's compaction forgets A here, of which there may be objects. Ours lists it until
    # its clean-up is confirmed.
    assert story.projection(5, 2500) == Projection(
        {"A": STARTED, "B": FINISHED}, found="B", highest=3000, size=2 * SIZE, earliest=2001
    )

    [superseded] = story.segments(a)
    move(story.rlmm, superseded, DELETE_STARTED, broker_id=ONE)
    assert story.reported() == ["0:3000:5 A DELETE_SEGMENT_STARTED by 101 at 5"]
    assert story.projection(5, 2500).listed == {"A": DELETE_STARTED, "B": FINISHED}
    assert story.found(5, 2500) == "B"

    move(story.rlmm, superseded, DELETE_FINISHED, broker_id=ONE)
    assert story.reported() == ["0:3000:5 A DELETE_SEGMENT_FINISHED by 101 at 5"]
    assert story.projection(5, 2500) == Projection(
        {"B": FINISHED}, found="B", highest=3000, size=SIZE, earliest=2001
    )


def test_scenario_4_a_segment_with_three_copies_is_deleted(
    story: PartitionStory, rlmm_database_url: str
) -> None:
    for broker, epoch in ((ONE, 3), (TWO, 4), (THREE, 5)):
        story.lead(broker, epoch)
        story.copy(0, 1000, {3: 0}, broker=broker, leader_epoch=epoch)
    story.lead(ONE, epoch=6)
    assert [line for line in story.reported() if "FINISHED" in line] == [
        "0:1000:3 A COPY_SEGMENT_FINISHED by 101 at 3",
        "0:1000:4 B COPY_SEGMENT_FINISHED by 102 at 4",
        "0:1000:5 C COPY_SEGMENT_FINISHED by 103 at 5",
    ]
    copies = {"A": FINISHED, "B": FINISHED, "C": FINISHED}
    before = Projection(copies, found="C", highest=1000, size=3 * SIZE, earliest=0)
    assert story.projection(3, 500) == before
    expired = [
        Deletion(each, DeletionReason.RETENTION_TIME, "") for each in story.segments(*copies)
    ]

    # A deletion covers the keys up to the deleter's leader epoch: an older leader deletes nothing.
    older = Deleter(TWO, broker_leader_epoch=4)
    with pytest.raises(FencedLeaderEpochError):
        begin_deletion(story.rlmm, story.tp, expired, 1001, None, older, now_ms())
    assert story.reported() == []
    assert story.projection(3, 500) == before

    # The proposal deletes first and tells then. Here each attempt is marked, then its objects go.
    leader = Deleter(ONE, broker_leader_epoch=6)
    begin_deletion(story.rlmm, story.tp, expired, 1001, None, leader, now_ms())
    assert story.reported() == [
        "LOG_START 1001 by -1 at 6",
        "0:1000:3 A DELETE_SEGMENT_STARTED by 101 at 6",
        "0:1000:4 B DELETE_SEGMENT_STARTED by 101 at 6",
        "0:1000:5 C DELETE_SEGMENT_STARTED by 101 at 6",
    ]
    assert story.stored() == ["A", "B", "C"]
    assert story.projection(3, 500) == Projection(
        dict.fromkeys(copies, DELETE_STARTED), highest=1000, size=3 * SIZE
    )

    marked = story.segments(*copies)
    for name, segment in zip(copies, marked, strict=True):
        list(finish_deletion(story.rlmm, story.rsm, [segment], leader, now_ms()))
        own = segment.broker_leader_epoch
        assert story.reported() == [f"0:1000:{own} {name} DELETE_SEGMENT_FINISHED by 101 at {own}"]
        left = [other for other in copies if other > name]
        assert story.stored() == left
        assert story.projection(3, 500) == Projection(
            dict.fromkeys(left, DELETE_STARTED), highest=1000, size=len(left) * SIZE
        )

    # The tombstones: known by id until delete.retention.ms is over. The trail stays whole.
    assert [each.state for each in story.segments(*copies)] == [DELETE_FINISHED] * 3
    maintain(rlmm_database_url, MaintenancePlan(delete_retention_ms=0))
    assert story.segments(*copies) == []
    assert story.projection(3, 500) == Projection(highest=1000)
    assert story.reported() == []
    assert len(story.trail()) == 4 + 3 * 4 + 1


@pytest.mark.deep
def test_scenario_5_a_partition_is_deleted(story: PartitionStory) -> None:
    story.lead(ONE, epoch=3)
    story.copy(0, 1000, {3: 0}, broker=ONE, leader_epoch=3)
    story.copy(1001, 2000, {3: 1001}, broker=ONE, leader_epoch=3)
    story.reported()
    whole = {"A": FINISHED, "B": FINISHED}
    before = Projection(whole, found="B", highest=2000, size=2 * SIZE, earliest=0)
    remover = Deleter(TWO)

    # The proposal begins with DELETE_PARTITION_STARTED. Ours is marked first, by whoever deleted
    # the topic, and is read until its segments go.
    put_deletion(story.rlmm, story.tp, MARKED)
    assert story.reported() == ["PARTITION_DELETE DELETE_PARTITION_MARKED by 1 at None"]
    assert story.projection(3, 1500) == before

    begin_removal(story.rlmm, story.tp, remover, now_ms())
    assert story.reported() == ["PARTITION_DELETE DELETE_PARTITION_STARTED by 102 at None"]
    assert story.projection(3, 1500) == before
    # FINISHED is refused while segments remain: no key may outlive its partition.
    assert not finish_removal(story.rlmm, story.tp, remover, now_ms())
    assert story.reported() == []
    assert story.projection(3, 1500) == before

    assert remove_partition(story.rlmm, story.rsm, story.tp, remover, now_ms()).is_finished
    assert story.reported() == [
        "0:1000:3 A DELETE_SEGMENT_STARTED by 102 at 3",
        "0:2000:3 B DELETE_SEGMENT_STARTED by 102 at 3",
        "0:1000:3 A DELETE_SEGMENT_FINISHED by 102 at 3",
        "0:2000:3 B DELETE_SEGMENT_FINISHED by 102 at 3",
        "PARTITION_DELETE DELETE_PARTITION_FINISHED by 102 at None",
    ]
    assert story.stored() == []
    for ask in (
        lambda: story.projection(3, 1500),
        lambda: story.found(3, 1500),
        lambda: story.segments("A"),
        lambda: story.lineage,
        lambda: story.latest_tiered(2001, (3, 0)),
    ):
        with pytest.raises(RemoteResourceNotFoundError):
            ask()
