"""RLM finds out from a real broker what it leads, and which topics are gone. Only polls run here:
other tests have their own topics in the same tier."""

import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_manager import PartitionRole
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.common.retry import Backoff
from services.local.process import LOOPBACK
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    ClusterView,
    NoPolicy,
    NoTopic,
    TopicView,
)
from services.rlm.kafka_admin.deleted_topics import MIN_POLLS
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.kafka_log.partition_dir import read_lineage
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.partition import Leadership
from services.rlm.roles.partition_roles import PartitionSource
from tests.data.kafka_log_content import TOPICS
from tests.harness.eventually import Background, eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, NOW, Cluster, Record, Topic, send_batch
from tests.harness.wrapper import Wrapper
from tests.kafka.tiered_broker import TieredBroker, produce_segments

pytestmark = pytest.mark.kafka

AT_ONCE = RlmLimits(interval_s=0.0, backoff=Backoff(initial_s=0.0))
CONFIRM_S = 0.5
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


class Exchangeable(Wrapper[ClusterAdmin]):
    """An admin API that a test exchanges for another."""


@pytest.fixture
def admin(tier: TieredBroker) -> Exchangeable:
    return Exchangeable(KafkaAdmin([tier.broker.bootstrap_servers], CLIENT_TIMEOUT_S))


@pytest.fixture
def rlm(tier: TieredBroker, admin: Exchangeable) -> Any:
    return polling(tier, admin)


def polling(tier: TieredBroker, admin: Any, confirm_s: float = CONFIRM_S) -> Any:
    log_dirs = tier.broker.log_dirs
    return BrokerRemoteLogManager(
        log_dirs,
        tier.rsm,
        tier.rlmm,
        AT_ONCE,
        source=PartitionSource.POLLER,
        cluster=PolledCluster(admin, read_cluster_id(log_dirs), confirm_s),
    )


def poll(rlm: Any) -> None:
    rlm.lanes.poll.tick()
    assert rlm.lanes.poll.wait_idle(2 * CLIENT_TIMEOUT_S)


def led(rlm: Any) -> dict[TopicIdPartition, Leadership]:
    return {p.topic_id_partition: p.role.leadership for p in rlm.led_partitions()}


def led_as_its_log_tells(folder: Path) -> Leadership:
    return Leadership(PartitionRole.LEADER, read_lineage(folder).latest_epoch)


def delete_states(
    tier: TieredBroker, topic: str
) -> dict[TopicIdPartition, RemotePartitionDeleteState | None]:
    found = all_partitions(tier.rlmm, topic=topic)
    return {summary.topic_id_partition: summary.delete_state for summary in found}


def wait_until_marked(tier: TieredBroker, rlm: Any, name: TopicIdPartition) -> None:
    """Poll until the partition, and no other of its topic's name, is marked."""

    def is_marked() -> bool:
        poll(rlm)
        return delete_states(tier, name.topic) == {name: MARKED}

    eventually(is_marked)


def delete(tier: TieredBroker, topic: Topic) -> None:
    (deleted,) = tier.cluster.admin.delete_topics([topic.name]).values()
    deleted.result(CLIENT_TIMEOUT_S)


def test_every_partition_is_led_under_the_epoch_of_its_leader(tier: TieredBroker, rlm: Any) -> None:
    poll(rlm)
    found = led(rlm)
    for name, folder in tier.partitions(*TOPICS).items():
        assert found[name] == led_as_its_log_tells(folder), name
    assert found[name].leader_epoch == 4


def test_a_leader_returns_how_far_its_partition_is_settled(tier: TieredBroker, rlm: Any) -> None:
    topic = Topic("settled-so-far", 1, 8192)
    name, _ = tier.create(topic)
    poll(rlm)
    admin = KafkaAdmin([tier.broker.bootstrap_servers], CLIENT_TIMEOUT_S)
    admin.view([topic.name])
    leader = rlm.broker_id

    def settled() -> Any:
        poll(rlm)
        epoch = led(rlm)[name].leader_epoch or 0
        assert admin.stable_offsets(leader, {name: epoch + 1}) == {}
        (reported,) = (
            p.role.stable_offset for p in rlm.led_partitions() if p.topic_id_partition == name
        )
        assert admin.stable_offsets(leader, {name: epoch})[name] == reported
        return reported

    produce_segments(tier.cluster, topic)
    end = tier.cluster.offsets(topic.name, 0).log_end_offset
    with tier.cluster.transactional(topic.name) as producer:
        producer.begin_transaction()
        send_batch(producer, topic, 0, [Record(b"key", b"in a transaction", NOW)])
        assert settled() == end
        producer.commit_transaction(CLIENT_TIMEOUT_S)
    eventually(lambda: settled() == end + 2)  # the marker too


def test_a_new_topic_is_led_after_the_next_poll(tier: TieredBroker, rlm: Any) -> None:
    poll(rlm)
    name, folder = tier.create(Topic("come-later", 1, 8192))
    poll(rlm)
    assert led(rlm)[name] == led_as_its_log_tells(folder)


def test_a_broker_that_cannot_be_reached_changes_nothing(
    tier: TieredBroker, rlm: Any, admin: Exchangeable
) -> None:
    poll(rlm)
    before = led(rlm)
    with socket.create_server((LOOPBACK, 0)) as silent:
        admin.real = KafkaAdmin([f"{LOOPBACK}:{silent.getsockname()[1]}"], timeout_s=0.5)
        with pytest.raises(ClusterUnreachableError):
            admin.view(["clicks"])
        poll(rlm)
    assert led(rlm) == before


def test_a_topic_that_is_deleted_and_made_again_is_marked_and_the_new_one_led(
    tier: TieredBroker, rlm: Any
) -> None:
    topic = Topic("made-again", 1, 8192)
    old, _ = tier.create_shipped(topic)
    poll(rlm)
    delete(tier, topic)
    wait_until_marked(tier, rlm, old)
    assert old not in led(rlm)
    new, folder = tier.create_shipped(topic)
    poll(rlm)
    assert led(rlm)[new] == led_as_its_log_tells(folder)
    assert delete_states(tier, topic.name) == {old: MARKED, new: None}


def test_the_old_one_is_marked_too_when_the_name_was_given_again_at_once(
    tier: TieredBroker, rlm: Any
) -> None:
    topic = Topic("made-again-at-once", 1, 8192)
    old, _ = tier.create_shipped(topic)
    poll(rlm)
    delete(tier, topic)
    eventually(lambda: not tier.partitions(topic))
    new, _ = tier.create(topic)
    wait_until_marked(tier, rlm, old)
    assert (new in led(rlm), old in led(rlm)) == (True, False)


def announce(tier: TieredBroker, name: TopicIdPartition, cluster_id: str | None) -> None:
    """As RLM does beside its first copy pass."""
    tier.rlmm.on_partition_leadership_changes([PartitionLeadership(name, 0)], [], 1, cluster_id)


def test_restart_within_the_confirmation_time_marks_only_deleted_topics(
    tier: TieredBroker, admin: Exchangeable
) -> None:
    stays, deleted, foreign = (Topic(f"over-a-restart-{n}", 1, 8192) for n in range(3))
    kept, _ = tier.create(stays)
    gone, _ = tier.create(deleted)
    # Of another cluster that has the same RLMM, and of one that did not say.
    theirs = TopicIdPartition(uuid4(), foreign.name, 0)
    nobodys = TopicIdPartition(uuid4(), foreign.name, 1)
    for name in (kept, gone):
        announce(tier, name, read_cluster_id(tier.broker.log_dirs))
    announce(tier, theirs, "another")
    announce(tier, nobodys, None)
    rlm = polling(tier, admin, confirm_s=3600)
    poll(rlm)
    delete(tier, deleted)
    eventually(lambda: not tier.partitions(deleted))
    for _ in range(MIN_POLLS):
        poll(rlm)
    assert delete_states(tier, deleted.name) == {gone: None}
    restarted = polling(tier, admin)
    wait_until_marked(tier, restarted, gone)
    assert delete_states(tier, stays.name) == {kept: None}
    assert delete_states(tier, foreign.name) == {theirs: None, nobodys: None}


def test_user_without_describe_cannot_see_that_a_topic_is_missing(tmp_path: Path) -> None:
    """What is answered for a topic that is hidden, and for one that does not exist, hidden or
    not: confirmed_deletions.py rests on it."""
    hidden, seen = Topic("hidden", 1, 8192), Topic("seen", 1, 8192)
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with kafka_broker(tmp_path, settings) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(hidden, seen)
        # Who has DESCRIBE alone may not know how a topic is configured.
        hidden_ones = [describe(topic, AclPermissionType.DENY) for topic in ("hidden", "no-topic")]
        acls = [*hidden_ones, describe("seen", AclPermissionType.ALLOW)]
        for created in cluster.admin.create_acls(acls).values():
            created.result(CLIENT_TIMEOUT_S)
        admin = KafkaAdmin([broker.bootstrap_servers], CLIENT_TIMEOUT_S)

        def answered() -> None:
            view = admin.view(["hidden", "no-topic", "not-there", "seen"])
            assert view.cluster_id == broker.cluster_id
            answers = dict(view.topics)
            found = answers.pop("seen")
            assert isinstance(found, TopicView)
            assert found.partitions[0].leader_epoch == 0
            assert answers == {
                "hidden": NoTopic.NOT_AUTHORIZED,
                "no-topic": NoTopic.NOT_AUTHORIZED,
                "not-there": NoTopic.UNKNOWN,
            }
            reported = admin.cleanup_policies(["hidden", "seen"])
            assert isinstance(reported.cluster.topics["seen"], TopicView)
            assert sorted(reported.cleanup_policies) == ["hidden", "seen"]
            for policy in reported.cleanup_policies.values():
                assert isinstance(policy, NoPolicy)
                assert policy.is_refused

        eventually_holds(answered)


class Polls(Background):
    """Views of these topics, one after the other, however they end."""

    def __init__(self, admin: KafkaAdmin, *topics: str) -> None:
        super().__init__()
        self._admin = admin
        self._topics = topics
        self.views: list[ClusterView] = []
        self.failures: list[ClusterUnreachableError] = []

    def run(self) -> None:
        while not self.wait(0.005):
            try:
                self.views.append(self._admin.view(self._topics))
            except ClusterUnreachableError as e:
                self.failures.append(e)

    def answered(self) -> bool:
        """Once more, after this was called."""
        so_far = len(self.views)
        return bool(eventually(lambda: len(self.views) > so_far))


def test_a_broker_that_is_asked_all_the_while_is_found_whenever_it_is_there(tmp_path: Path) -> None:
    """It says nothing else of a topic while it comes up than before; asking makes no topic."""
    topic = Topic("seen", 1, 8192)
    with kafka_broker(tmp_path, {"auto.create.topics.enable": "true"}) as broker:
        Cluster(broker.bootstrap_servers).create(topic)
        admin = KafkaAdmin([broker.bootstrap_servers], CLIENT_TIMEOUT_S)
        (before,) = eventually(
            lambda: [v for v in [admin.view(["seen"])] if seen(v).partitions[0].leader == 1]
        )
        with Polls(admin, "seen", "not-there") as polls:
            assert polls.answered()
            for end in (broker.stop, broker.kill):
                end()
                broker.start()
                assert polls.answered()
        topics = Cluster(broker.bootstrap_servers).admin.list_topics(timeout=CLIENT_TIMEOUT_S)
    assert polls.failures
    assert {view.cluster_id for view in polls.views} == {broker.cluster_id}
    assert [view.topics["not-there"] for view in polls.views] == [NoTopic.UNKNOWN] * len(
        polls.views
    )
    assert {seen(view).topic_id for view in polls.views} == {seen(before).topic_id}
    assert leader_epochs(polls.views[-1]) > leader_epochs(before)
    assert "not-there" not in topics.topics


def seen(view: ClusterView) -> TopicView:
    found = view.topics["seen"]
    assert isinstance(found, TopicView), found
    return found


def leader_epochs(view: ClusterView) -> list[int]:
    return [partition.leader_epoch or 0 for partition in seen(view).partitions.values()]


def describe(topic: str, permission: AclPermissionType) -> AclBinding:
    literal, operation = ResourcePatternType.LITERAL, AclOperation.DESCRIBE
    user = "User:ANONYMOUS"
    return AclBinding(ResourceType.TOPIC, topic, literal, user, "*", operation, permission)
