"""Test leading, following and releasing partitions by a cluster's responses.

The responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

import logging
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import NotServedError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_manager import FetchError
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.api.segments import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from services.rlm.collectors import LastSuccessCollector
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    LogOffsets,
    NoPolicy,
    NoTopic,
    PartitionView,
    PolicyView,
    TopicView,
)
from services.rlm.kafka_admin.deleted_topics import MIN_POLLS
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness import retained_log
from tests.harness.callback_rlm import (
    ALL_AT_ONCE,
    FOLLOWER,
    LEADER,
    REASSIGNED,
    send_role,
    stop,
    turn,
)
from tests.harness.retained_log import Changed, hourly_log
from tests.harness.ship_stack import Stack, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

pytestmark = pytest.mark.deep

OURS, THEIRS = 7, 8
REGISTERED = "c"  # of the log directory's meta.properties
EPOCH = 2  # the latest of an hourly log
CONFIRM_S = 3600.0
ALL = [(base, base + 9) for base in range(0, 60, 10)]
TIERED = {"remote.storage.enable": "true"}
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
DELETE_SEGMENT_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_SEGMENT_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def led_by(leader: int, topic_id: UUID = NAME.topic_id, epoch: int = EPOCH) -> TopicView:
    """Describe a topic of one partition with replicas on both brokers."""
    return TopicView(topic_id, {0: PartitionView(leader, epoch, frozenset({OURS, THEIRS}))})


@dataclass
class AnsweringCluster:
    """A cluster's admin API with the responses of the test; a clock beside it."""

    topics: dict[str, TopicView | NoTopic] = field(default_factory=dict)
    cleanup_policy: str | NoPolicy = "delete"
    stable_offsets_told: dict[TopicIdPartition, int] = field(default_factory=dict)
    asked_for_offsets: list[dict[TopicIdPartition, int]] = field(default_factory=list)
    logs: dict[TopicIdPartition, LogOffsets] = field(default_factory=dict)
    cluster_id: str = REGISTERED
    is_away: bool = False
    leader_is_away: bool = False
    policies_are_away: bool = False
    now_s: float = 0.0

    def view(self, topics: Collection[str]) -> ClusterView:
        if self.is_away:
            raise ClusterUnreachableError("timed out")
        answers = {name: self.topics.get(name, NoTopic.UNKNOWN) for name in topics}
        return ClusterView(self.cluster_id, answers)

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        if self.policies_are_away:
            raise ClusterUnreachableError("timed out")
        return PolicyView(self.view(topics), dict.fromkeys(topics, self.cleanup_policy))

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        if self.leader_is_away:
            raise ClusterUnreachableError("timed out")
        assert leader == OURS
        self.asked_for_offsets.append(dict(epochs))
        reported = self.stable_offsets_told
        return {name: reported[name] for name in epochs if name in reported}

    def log_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, LogOffsets]:
        if self.leader_is_away:
            raise ClusterUnreachableError("timed out")
        assert leader == THEIRS
        return {name: found for name, found in self.logs.items() if name in epochs}


def polling_rlm(stack: Stack, cluster: AnsweringCluster, rlmm: Any = None) -> Any:
    return BrokerRemoteLogManager(
        [stack.log_dir],
        stack.rsm,
        rlmm or stack.rlmm,
        ALL_AT_ONCE,
        clock=lambda: cluster.now_s,
        source=PartitionSource.POLLER,
        cluster=PolledCluster(cluster, REGISTERED, CONFIRM_S),
    )


@dataclass
class Polled:
    """An RLM beside a cluster, and the log of the topic that the cluster names."""

    stack: Stack
    files: PartitionFiles
    cluster: AnsweringCluster
    rlm: Any


@pytest.fixture
def polled(stack: Stack) -> Polled:
    files, cluster = hourly_log(stack.log_dir), AnsweringCluster({NAME.topic: led_by(OURS)})
    tier(stack)
    return Polled(stack, files, cluster, polling_rlm(stack, cluster))


def tier(stack: Stack) -> None:
    """Enable tiering of the topic, because no call names topics to a poller."""
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 0)], [], OURS)
    stack.rlmm.put_topic_config(NAME.topic_id, TIERED)


def poll(rlm: Any) -> None:
    turn(rlm.lanes.poll)


def ask_policies(rlm: Any) -> None:
    """Request the cleanup policies of the topics to be copied."""
    turn(rlm.lanes.copies)
    turn(rlm.lanes.policies)


def take_turns(rlm: Any, rounds: int = 1) -> None:
    ask_policies(rlm)
    retained_log.take_turns(rlm, rounds)


def poll_over(rlm: Any, cluster: AnsweringCluster, seconds: float = CONFIRM_S) -> None:
    """Poll a few times, with `seconds` between the first and the last poll."""
    poll(rlm)
    for _ in range(2 * MIN_POLLS):
        cluster.now_s += seconds / (2 * MIN_POLLS)
        poll(rlm)


def roles(rlm: Any) -> dict[TopicIdPartition, Any]:
    return {d.topic_id_partition: d.role for d in rlm.describe_partitions().partitions}


def delete_states(stack: Stack) -> dict[TopicIdPartition, RemotePartitionDeleteState | None]:
    return {s.topic_id_partition: s.delete_state for s in all_partitions(stack.rlmm)}


def gone(files: PartitionFiles, cluster: AnsweringCluster) -> None:
    """Delete the topic."""
    shutil.rmtree(files.path)
    cluster.topics[NAME.topic] = NoTopic.UNKNOWN


def test_before_the_first_poll_nothing_is_led(polled: Polled) -> None:
    assert polled.rlm.led_partitions() == []


def bytes_read(rlm: Any, offset: int) -> bytes:
    found = read(rlm, offset)
    assert isinstance(found, bytes)
    assert found
    return found


def test_before_the_first_poll_no_offset_is_out_of_range_that_the_log_here_may_have(
    polled: Polled,
) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    restarted = polling_rlm(polled.stack, polled.cluster)
    assert bytes_read(polled.rlm, 50) == bytes_read(restarted, 50) + bytes_read(polled.rlm, 60)
    for offset in (60, 61, 1_000):
        assert read(restarted, offset) is FetchError.NOT_LEADER_OR_FOLLOWER
    poll(restarted)
    assert read(restarted, 60) == read(polled.rlm, 60)
    assert read(restarted, 1_000) is FetchError.OFFSET_OUT_OF_RANGE


def test_before_the_first_poll_only_offsets_below_the_log_start_are_out_of_range(
    polled: Polled,
) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    polled.stack.rlmm.raise_log_start_offset(NAME, 5)
    for segment in (polled.stack.segments()[0], polled.stack.segments()[2]):
        for state in (DELETE_SEGMENT_STARTED, DELETE_SEGMENT_FINISHED):
            update = RemoteLogSegmentMetadataUpdate(segment.remote_log_segment_id, 1, state, OURS)
            polled.stack.rlmm.update_remote_log_segment_metadata(update)
    restarted = polling_rlm(polled.stack, polled.cluster)
    assert read(restarted, 4) is FetchError.OFFSET_OUT_OF_RANGE
    # Where the tier begins above its log start, and in a hole of it, the log here has them.
    for offset in (5, 9, 25):
        assert read(restarted, offset) is FetchError.NOT_LEADER_OR_FOLLOWER
    assert bytes_read(restarted, 10)
    poll(restarted)
    assert bytes_read(restarted, 25)


def test_before_the_first_poll_a_log_that_the_tier_does_not_know_is_not_served_yet(
    stack: Stack,
) -> None:
    files = hourly_log(stack.log_dir)
    rlm = polling_rlm(stack, AnsweringCluster({NAME.topic: led_by(OURS)}))
    assert read(rlm, 0) is FetchError.NOT_LEADER_OR_FOLLOWER
    shutil.rmtree(files.path)
    turn(rlm.lanes.scan)
    assert read(rlm, 0) is FetchError.UNKNOWN_TOPIC_ID


def test_without_a_log_a_reader_behind_the_tier_is_sent_to_the_leader(polled: Polled) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    shutil.rmtree(polled.files.path)
    restarted = polling_rlm(polled.stack, polled.cluster)
    assert read(restarted, 61) is FetchError.NOT_LEADER_OR_FOLLOWER


def test_nothing_is_copied_that_its_leader_does_not_call_stable(polled: Polled) -> None:
    """The end of a transaction may not yet be on all in-sync replicas."""
    polled.cluster.stable_offsets_told = {NAME: 25}
    poll(polled.rlm)
    take_turns(polled.rlm, rounds=2)
    assert polled.stack.ranges() == ALL[:2]
    (described,) = polled.rlm.describe_partitions().partitions
    assert (described.last_stable_offset, described.lag_segments) == (25, len(ALL) - 2)
    polled.cluster.stable_offsets_told = {NAME: 30}
    take_turns(polled.rlm)
    assert polled.stack.ranges() == ALL[:2]
    poll(polled.rlm)
    take_turns(polled.rlm)
    assert polled.stack.ranges() == ALL[:3]
    assert polled.cluster.asked_for_offsets == [{NAME: EPOCH}] * 2


@pytest.mark.parametrize("who", ["is_away", "leader_is_away"])
def test_a_broker_without_an_answer_blocks_no_copy(polled: Polled, who: str) -> None:
    polled.cluster.stable_offsets_told = {NAME: 25}
    poll(polled.rlm)
    setattr(polled.cluster, who, True)
    poll(polled.rlm)
    setattr(polled.cluster, who, False)  # for the policies
    take_turns(polled.rlm)
    assert polled.stack.ranges() == ALL


def test_follower_requests_and_keeps_no_stable_offset(polled: Polled) -> None:
    polled.cluster.stable_offsets_told = {NAME: 25}
    poll(polled.rlm)
    polled.cluster.topics[NAME.topic] = led_by(THEIRS)
    poll(polled.rlm)
    assert polled.cluster.asked_for_offsets == [{NAME: EPOCH}]
    (described,) = polled.rlm.describe_partitions().partitions
    assert described.last_stable_offset == described.log_end_offset


def test_failed_read_of_stable_offsets_is_logged(
    polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    polled.cluster.leader_is_away = True
    poll(polled.rlm)
    (reported,) = [r for r in caplog.records if "stable offsets" in r.getMessage()]
    assert reported.getMessage().endswith("cannot read last stable offsets: timed out")


def test_only_topics_that_are_set_to_be_tiered_are_copied(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    hourly_log(stack.log_dir)
    rlm = polling_rlm(stack, AnsweringCluster({NAME.topic: led_by(OURS)}))
    poll(rlm)
    take_turns(rlm, rounds=2)
    assert (roles(rlm), stack.ranges()) == ({NAME: LEADER}, [])
    said = [r.getMessage() for r in caplog.records if "is not copied" in r.getMessage()]
    assert said == ["topic t is not copied: remote.storage.enable=true is not set"]
    tier(stack)
    take_turns(rlm)
    assert stack.ranges() == ALL


def test_partition_led_by_another_broker_is_followed_until_led(polled: Polled) -> None:
    polled.cluster.topics[NAME.topic] = led_by(THEIRS)
    poll(polled.rlm)
    take_turns(polled.rlm)
    turn(polled.rlm.lanes.followers)
    assert (roles(polled.rlm), polled.stack.ranges()) == ({NAME: FOLLOWER}, [])
    polled.cluster.topics[NAME.topic] = led_by(OURS, epoch=4)
    poll(polled.rlm)
    take_turns(polled.rlm)
    assert (roles(polled.rlm), polled.stack.ranges()) == ({NAME: LEADER}, ALL)
    assert {segment.broker_leader_epoch for segment in polled.stack.segments()} == {4}


def test_a_partition_that_went_to_other_brokers_is_abandoned_and_its_tier_stays(
    polled: Polled,
) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    elsewhere = PartitionView(THEIRS, None, frozenset({THEIRS}))
    polled.cluster.topics[NAME.topic] = TopicView(NAME.topic_id, {0: elsewhere})
    poll_over(polled.rlm, polled.cluster)
    assert polled.rlm.led_partitions() == []
    assert (delete_states(polled.stack), polled.stack.ranges()) == ({NAME: None}, ALL)


@pytest.mark.deep
@pytest.mark.parametrize("change", [{"is_away": True}, {"cluster_id": "another"}])
def test_without_a_response_of_its_cluster_roles_stay(
    polled: Polled, change: dict[str, Any]
) -> None:
    poll(polled.rlm)
    ask_policies(polled.rlm)
    polled.cluster.topics[NAME.topic] = led_by(THEIRS)
    for name, value in change.items():
        setattr(polled.cluster, name, value)
    poll_over(polled.rlm, polled.cluster)
    take_turns(polled.rlm)
    assert (roles(polled.rlm), polled.stack.ranges()) == ({NAME: LEADER}, ALL)


def test_a_deleted_topic_is_marked_once_that_is_confirmed(polled: Polled) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    gone(polled.files, polled.cluster)
    poll_over(polled.rlm, polled.cluster, CONFIRM_S / 2)
    assert delete_states(polled.stack) == {NAME: None}
    polled.cluster.now_s += CONFIRM_S / 2
    poll(polled.rlm)
    assert delete_states(polled.stack) == {NAME: MARKED}
    assert polled.rlm.led_partitions() == []


def test_topic_with_a_removed_mark_is_not_marked_again(polled: Polled) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    gone(polled.files, polled.cluster)
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: MARKED}
    polled.stack.rlmm.undelete_partition(NAME)
    poll_over(polled.rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None}


def test_every_partition_that_rlmm_knows_of_the_topic_is_marked_and_no_other_topics(
    polled: Polled,
) -> None:
    another_brokers = replace(NAME, partition=3)
    of_another_cluster = replace(NAME, topic_id=uuid4())
    poll(polled.rlm)
    take_turns(polled.rlm)
    for name in (another_brokers, of_another_cluster):
        polled.stack.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(name, EPOCH)], [], THEIRS
        )
    gone(polled.files, polled.cluster)
    poll_over(polled.rlm, polled.cluster)
    expected = {NAME: MARKED, another_brokers: MARKED, of_another_cluster: None}
    assert delete_states(polled.stack) == expected


@pytest.mark.deep
def test_a_topic_made_again_under_the_name_is_led_while_the_old_one_is_marked(
    polled: Polled,
) -> None:
    poll(polled.rlm)
    take_turns(polled.rlm)
    gone(polled.files, polled.cluster)
    new = replace(NAME, topic_id=uuid4())
    hourly_log(polled.stack.log_dir, new)
    polled.cluster.topics[NAME.topic] = led_by(OURS, new.topic_id)
    poll_over(polled.rlm, polled.cluster)
    take_turns(polled.rlm)
    assert delete_states(polled.stack) == {NAME: MARKED, new: None}
    # Another topic, of which nobody has said that it is tiered.
    assert polled.stack.ranges(new) == []
    polled.stack.rlmm.put_topic_config(new.topic_id, TIERED)
    take_turns(polled.rlm)
    assert polled.stack.ranges(new) == ALL


def test_a_mark_that_rlmm_did_not_take_is_made_by_a_later_poll(polled: Polled) -> None:
    is_away = True

    def mark(*event: Any) -> Any:
        if is_away:
            raise RetriableRemoteStorageError("RLMM is away")
        return polled.stack.rlmm.put_remote_partition_delete_metadata(*event)

    rlmm = Changed(polled.stack.rlmm, put_remote_partition_delete_metadata=mark)
    rlm = polling_rlm(polled.stack, polled.cluster, rlmm)
    poll(rlm)
    take_turns(rlm)
    gone(polled.files, polled.cluster)
    poll_over(rlm, polled.cluster)
    assert delete_states(polled.stack) == {NAME: None}
    is_away = False
    poll(rlm)
    assert delete_states(polled.stack) == {NAME: MARKED}


def test_how_long_ago_the_last_good_poll_was_is_a_metric(polled: Polled) -> None:
    def age_s() -> float:
        collector = LastSuccessCollector([polled.rlm.lanes.poll])
        (family,) = collector.collect()
        (sample,) = family.samples
        assert sample.name == "sediment_rlm_seconds_since_last_success"
        assert sample.labels == {"pool": "poller", "topic": "", "partition": ""}
        return sample.value

    poll(polled.rlm)
    polled.cluster.now_s += 5
    assert age_s() == 5
    polled.cluster.is_away = True
    poll(polled.rlm)
    polled.cluster.now_s += 1
    assert age_s() == 6
    polled.cluster.is_away = False
    poll(polled.rlm)
    assert age_s() == 0


def test_an_rlm_that_polls_refuses_calls(polled: Polled) -> None:
    with pytest.raises(NotServedError, match="RLM_PARTITION_SOURCE=poller"):
        send_role(polled.rlm, LEADER, EPOCH)
    with pytest.raises(NotServedError, match="RLM_PARTITION_SOURCE=poller"):
        stop(polled.rlm, REASSIGNED)
