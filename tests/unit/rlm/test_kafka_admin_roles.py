"""Test a broker's roles by its cluster's responses."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import LeadershipChange, PartitionRole
from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, PartitionView, TopicView
from services.rlm.kafka_admin.poller import RoleChanges, role_changes

US, THEM = 1, 2
CLICKS = TopicIdPartition(uuid4(), "clicks", 0)
LED = PartitionView(leader=US, leader_epoch=4, replicas=frozenset({US, THEM}))
FOLLOWED = replace(LED, leader=THEM)
ELSEWHERE = replace(FOLLOWED, replicas=frozenset({THEM}))
LEADER_4 = LeadershipChange(CLICKS, 4, PartitionRole.LEADER)
LEADER_6 = LeadershipChange(CLICKS, 6, PartitionRole.LEADER)
FOLLOWER = LeadershipChange(CLICKS, None, PartitionRole.FOLLOWER)
NOTHING = RoleChanges()


def seen(partition: PartitionView, topic_id: UUID = CLICKS.topic_id) -> ClusterView:
    return ClusterView("c", {"clicks": TopicView(topic_id, {0: partition})})


def changed(reported: LeadershipChange | None, view: ClusterView) -> RoleChanges:
    return role_changes({} if reported is None else {CLICKS: reported}, {CLICKS}, view, US)


@pytest.mark.parametrize(
    ("reported", "partition", "expected"),
    [
        (None, LED, LEADER_4),
        (None, FOLLOWED, FOLLOWER),
        (LEADER_4, FOLLOWED, FOLLOWER),
        (FOLLOWER, LED, LEADER_4),
        (LEADER_4, replace(LED, leader_epoch=6), LEADER_6),
    ],
)
def test_changed_role_is_announced(
    reported: LeadershipChange | None, partition: PartitionView, expected: LeadershipChange
) -> None:
    assert changed(reported, seen(partition)) == RoleChanges(changes=(expected,))


@pytest.mark.parametrize(("reported", "partition"), [(LEADER_4, LED), (FOLLOWER, FOLLOWED)])
def test_unchanged_role_is_not_announced_again(
    reported: LeadershipChange, partition: PartitionView
) -> None:
    assert changed(reported, seen(partition)) == NOTHING


@pytest.mark.parametrize("reported", [LEADER_4, FOLLOWER])
def test_a_partition_without_a_replica_here_is_reassigned(reported: LeadershipChange) -> None:
    assert changed(reported, seen(ELSEWHERE)) == RoleChanges(reassigned=(CLICKS,))


def test_a_log_that_the_broker_is_about_to_delete_is_not_taken_up() -> None:
    assert changed(None, seen(ELSEWHERE)) == NOTHING


def test_without_a_leader_epoch_no_leadership_begins() -> None:
    assert changed(FOLLOWER, seen(replace(LED, leader_epoch=None))) == NOTHING


def test_an_epoch_older_than_the_last_answer_is_an_old_answer() -> None:
    assert changed(LEADER_6, seen(LED)) == NOTHING


@pytest.mark.parametrize(
    "answer",
    [*NoTopic, TopicView(uuid4(), {0: ELSEWHERE}), TopicView(CLICKS.topic_id, {1: ELSEWHERE})],
)
@pytest.mark.parametrize("reported", [None, LEADER_4, FOLLOWER])
def test_a_partition_without_an_answer_keeps_its_role(
    reported: LeadershipChange | None, answer: TopicView | NoTopic
) -> None:
    assert changed(reported, ClusterView("c", {"clicks": answer})) == NOTHING
    assert changed(reported, ClusterView("c", {})) == NOTHING


def test_a_partition_without_a_leader_keeps_its_role() -> None:
    assert changed(LEADER_4, seen(replace(LED, leader=None, leader_epoch=None))) == NOTHING


def test_a_topic_that_was_made_again_under_the_name_is_led_beside_the_old_one() -> None:
    new = replace(CLICKS, topic_id=uuid4())
    found = role_changes({CLICKS: LEADER_4}, {new}, seen(LED, new.topic_id), US)
    assert found == RoleChanges(changes=(replace(LEADER_4, topic_id_partition=new),))
