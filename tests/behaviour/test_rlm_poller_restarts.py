"""Test that a restarted RLM finds topics deleted in its absence, by RLMM's record of the cluster.

The cluster's responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.rlm.kafka_admin.cluster_view import ClusterView, PartitionView, TopicView
from tests.behaviour.test_rlm_poller import (
    CONFIRM_S,
    MARKED,
    OURS,
    REGISTERED,
    THEIRS,
    AnsweringCluster,
    Polled,
    delete_states,
    gone,
    led_by,
    poll,
    poll_over,
    polling_rlm,
    roles,
    tier,
)
from tests.harness.callback_rlm import FOLLOWER, LEADER, turn
from tests.harness.retained_log import Changed, hourly_log, take_turns
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME

pytestmark = pytest.mark.deep

OLDER = TopicIdPartition(uuid4(), "older", 0)
"""A partition of another broker, alive, and known to RLMM before all others."""


def known_as_of(cluster_id: str | None, stack: Stack, name: TopicIdPartition) -> None:
    leadership = [PartitionLeadership(name, 0)]
    stack.rlmm.on_partition_leadership_changes(leadership, [], THEIRS, cluster_id)


def elsewhere(topic_id: UUID) -> TopicView:
    return TopicView(topic_id, {0: PartitionView(THEIRS, 0, frozenset({THEIRS}))})


def cluster_of(stack: Stack, name: TopicIdPartition) -> str | None:
    (found,) = (s for s in all_partitions(stack.rlmm) if s.topic_id_partition == name)
    return found.cluster_id


@pytest.fixture
def unpolled(stack: Stack) -> Polled:
    """Provide an RLM that has not polled yet, beside a cluster with a topic of another broker."""
    cluster = AnsweringCluster({NAME.topic: led_by(OURS), OLDER.topic: elsewhere(OLDER.topic_id)})
    return Polled(stack, hourly_log(stack.log_dir), cluster, polling_rlm(stack, cluster))


@pytest.fixture
def polled(unpolled: Polled) -> Polled:
    """Provide an RLM that has copied the topic."""
    known_as_of(REGISTERED, unpolled.stack, OLDER)
    tier(unpolled.stack)
    poll(unpolled.rlm)
    take_turns(unpolled.rlm)
    return unpolled


@pytest.mark.parametrize(("leader", "role"), [(OURS, LEADER), (THEIRS, FOLLOWER)])
def test_rlm_announces_its_partitions_as_of_its_cluster(
    polled: Polled, leader: int, role: Any
) -> None:
    new = replace(NAME, topic="new", topic_id=uuid4())
    known_as_of(None, polled.stack, new)
    hourly_log(polled.stack.log_dir, new)
    polled.cluster.topics[new.topic] = led_by(leader, new.topic_id)
    poll(polled.rlm)
    take_turns(polled.rlm)
    turn(polled.rlm.lanes.followers)
    assert roles(polled.rlm)[new] is role
    assert cluster_of(polled.stack, NAME) == cluster_of(polled.stack, new) == REGISTERED


def test_a_restart_within_the_time_counts_again_and_then_marks(polled: Polled) -> None:
    gone(polled.files, polled.cluster)
    poll_over(polled.rlm, polled.cluster, CONFIRM_S / 2)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(restarted, polled.cluster, CONFIRM_S * 0.9)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None}
    polled.cluster.now_s += CONFIRM_S / 10
    poll(restarted)
    assert delete_states(polled.stack) == {NAME: MARKED, OLDER: None}


def test_a_topic_that_was_deleted_while_no_rlm_ran_is_marked_and_a_new_one_of_its_name_is_not(
    polled: Polled,
) -> None:
    gone(polled.files, polled.cluster)
    new = replace(NAME, topic_id=uuid4())
    known_as_of(REGISTERED, polled.stack, new)
    polled.cluster.topics[NAME.topic] = elsewhere(new.topic_id)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(restarted, polled.cluster)
    assert delete_states(polled.stack) == {NAME: MARKED, new: None, OLDER: None}


def test_topic_marked_in_part_by_another_rlm_is_marked_whole(polled: Polled) -> None:
    another_brokers = replace(NAME, partition=3)
    known_as_of(None, polled.stack, another_brokers)
    gone(polled.files, polled.cluster)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(restarted, polled.cluster)
    assert delete_states(polled.stack) == {NAME: MARKED, another_brokers: MARKED, OLDER: None}


@pytest.mark.parametrize("cluster_id", ["another", None])
def test_topic_recorded_for_another_cluster_is_never_marked(
    unpolled: Polled, cluster_id: str | None
) -> None:
    known_as_of(REGISTERED, unpolled.stack, OLDER)
    known_as_of(cluster_id, unpolled.stack, NAME)
    gone(unpolled.files, unpolled.cluster)
    rlm = unpolled.rlm
    poll(rlm)
    poll_over(rlm, unpolled.cluster)
    assert delete_states(unpolled.stack) == {NAME: None, OLDER: None}


def test_a_cluster_formatted_again_under_its_id_takes_nothing_from_the_tier(
    polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    gone(polled.files, polled.cluster)
    new = replace(NAME, topic_id=uuid4())
    polled.cluster.topics = {NAME.topic: elsewhere(new.topic_id)}
    known_as_of(REGISTERED, polled.stack, new)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(restarted, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None, new: None}
    assert "RLMM knows 2 topics of cluster c that do not exist" in caplog.text


def test_a_cluster_formatted_again_while_rlm_runs_takes_nothing_from_the_tier(
    polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    properties = polled.stack.log_dir / "meta.properties"
    properties.write_text(f"{properties.read_text()}directory.id=first\n")
    poll(polled.rlm)
    gone(polled.files, polled.cluster)
    properties.write_text(properties.read_text().replace("first", "second"))
    new = replace(NAME, topic_id=uuid4())
    polled.cluster.topics = {NAME.topic: elsewhere(new.topic_id)}
    known_as_of(REGISTERED, polled.stack, new)
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None, new: None}
    assert "RLMM knows 2 topics of cluster c that do not exist" in caplog.text


def test_a_disk_that_was_replaced_hides_no_deletion(polled: Polled) -> None:
    properties = polled.stack.log_dir / "meta.properties"
    properties.write_text(f"{properties.read_text()}directory.id=first\n")
    poll(polled.rlm)
    gone(polled.files, polled.cluster)
    properties.write_text(properties.read_text().replace("first", "second"))
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None}
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: MARKED, OLDER: None}


def test_a_mark_that_was_taken_back_is_not_made_again_by_a_restart(polled: Polled) -> None:
    gone(polled.files, polled.cluster)
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: MARKED, OLDER: None}
    polled.stack.rlmm.undelete_partition(NAME)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(restarted, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None}


def test_removed_mark_is_not_made_again_by_an_rlm_counting_polls(
    polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    gone(polled.files, polled.cluster)
    restarted = polling_rlm(polled.stack, polled.cluster)
    poll(restarted)
    poll_over(polled.rlm, polled.cluster, CONFIRM_S / 2)
    poll(restarted)
    poll_over(polled.rlm, polled.cluster, CONFIRM_S / 2)
    assert delete_states(polled.stack) == {NAME: MARKED, OLDER: None}
    polled.stack.rlmm.undelete_partition(NAME)
    poll_over(restarted, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None, OLDER: None}
    assert "its cluster in RLMM is none: it is not marked for deletion" in caplog.text


def test_a_topic_seen_alive_is_not_marked_if_rlmm_knows_it_as_another_clusters(
    unpolled: Polled,
) -> None:
    known_as_of("another", unpolled.stack, NAME)
    rlm = unpolled.rlm
    poll(rlm)
    take_turns(rlm)
    gone(unpolled.files, unpolled.cluster)
    poll_over(rlm, unpolled.cluster)
    assert (delete_states(unpolled.stack), cluster_of(unpolled.stack, NAME)) == (
        {NAME: None},
        "another",
    )
    assert rlm.led_partitions() == []


def test_while_rlmm_is_away_at_the_start_roles_are_received_and_rlmm_is_asked_again(
    polled: Polled,
) -> None:
    led = replace(NAME, topic="led", topic_id=uuid4())
    hourly_log(polled.stack.log_dir, led)
    polled.cluster.topics[led.topic] = led_by(OURS, led.topic_id)
    gone(polled.files, polled.cluster)
    is_away = True

    def partitions(**query: Any) -> Any:
        if is_away:
            raise RetriableRemoteStorageError("RLMM is away")
        return polled.stack.rlmm.list_partitions(**query)

    rlmm = Changed(polled.stack.rlmm, list_partitions=partitions)
    restarted = polling_rlm(polled.stack, polled.cluster, rlmm)
    poll(restarted)
    assert [p.topic_id_partition for p in restarted.led_partitions()] == [led]
    poll_over(restarted, polled.cluster)
    is_away = False
    poll(restarted)
    poll_over(restarted, polled.cluster, CONFIRM_S / 2)
    assert delete_states(polled.stack)[NAME] is None
    poll_over(restarted, polled.cluster, CONFIRM_S / 2)
    assert delete_states(polled.stack)[NAME] is MARKED


def test_existing_topic_is_requested_only_once_more(polled: Polled) -> None:
    asked: list[set[str]] = []

    def view(topics: set[str]) -> ClusterView:
        asked.append(set(topics))
        return polled.cluster.view(topics)

    noting: Any = Changed(polled.cluster, view=view)
    restarted = polling_rlm(polled.stack, noting)
    for _ in range(4):
        poll(restarted)
    here = {NAME.topic}
    assert asked == [here, here | {OLDER.topic}, here, here]
