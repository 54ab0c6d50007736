"""A topic that a real broker compacts is not tiered by an RLM that asks the cluster."""

from pathlib import Path
from typing import Any

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.cli.fetch import records as fetched_from
from services.common.retry import Backoff
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.cluster_view import NoPolicy
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.kafka_log.checkpoints import read_offset_checkpoint
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.kafka_log.partition_dir import list_segments
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import (
    CLIENT_TIMEOUT_S,
    NOW,
    Cluster,
    Record,
    Topic,
    send_batch,
)
from tests.kafka.records import consumed, fetched
from tests.kafka.tiered_broker import (
    TieredBroker,
    produce_segments,
    ranges_in_tier,
    ranges_on_disk,
    rolled,
)

pytestmark = pytest.mark.kafka

AT_ONCE = RlmLimits(interval_s=0.0, backoff=Backoff(initial_s=0.0))
DEADLINE_S = 60.0
HOUR_MS = 3_600_000
BROKER_ID = 1


def rlm_that_copies(tier: TieredBroker, name: TopicIdPartition) -> Any:
    """A new one, which has asked for how the topic is cleaned up, and has done what it may. Other
    topics are other tests'."""
    log_dirs = tier.broker.log_dirs
    admin = KafkaAdmin([tier.broker.bootstrap_servers], CLIENT_TIMEOUT_S)
    cluster = PolledCluster(admin, read_cluster_id(log_dirs), confirm_s=3600.0)
    rlm = BrokerRemoteLogManager(
        log_dirs, tier.rsm, tier.rlmm, AT_ONCE, source=PartitionSource.POLLER, cluster=cluster
    )
    turn(rlm.lanes.poll)
    for other in rlm.led_partitions():
        if other.topic_id_partition != name:
            rlm.lanes.copies.forget(other.topic_id_partition)
    for scheduler in (rlm.lanes.copies, rlm.lanes.policies, rlm.lanes.copies):
        turn(scheduler)
    return rlm


def turn(scheduler: Any) -> None:
    scheduler.tick()
    assert scheduler.wait_idle(DEADLINE_S)


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_compacted_topic_is_not_copied_before_it_is_compacted_no_more(
    tier: TieredBroker, policy: str
) -> None:
    # The cleaner leaves it alone meanwhile: no record is old enough.
    settings = {"cleanup.policy": policy, "min.compaction.lag.ms": str(HOUR_MS)}
    topic = Topic(f"tidy-{policy.replace(',', '-')}", 1, 8192, settings)
    name, folder = tier.create(topic)
    produce_segments(tier.cluster, topic)
    tier.rlmm.on_partition_leadership_changes([PartitionLeadership(name, 0)], [], BROKER_ID)
    tier.rlmm.put_topic_config(name.topic_id, {"remote.storage.enable": "true"})
    rlm = rlm_that_copies(tier, name)
    assert tier.finished(name) == []
    (found,) = rlm.describe_partitions([topic.name]).partitions
    (problem,) = found.problems
    assert problem.kind is ProblemKind.TOPIC_COMPACTED
    assert problem.blocked_segments == len(rolled(folder)) > 0
    assert f"topic {topic.name} has cleanup.policy={policy}, and compacted" in problem.message

    tier.cluster.configure(topic.name, cleanup_policy="delete")

    def is_copied() -> bool:
        rlm_that_copies(tier, name)
        return ranges_in_tier(tier.finished(name)) == ranges_on_disk(folder)

    eventually(is_copied)


def test_what_the_cleaner_left_is_copied_and_read_once_it_is_done(
    tier: TieredBroker, tmp_path: Path
) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    topic = Topic("tidied", 1, 8192, settings)
    name, folder = tier.create(topic)
    produce_keys(tier, topic, 120)
    cleaned = folder.parent / "cleaner-offset-checkpoint"

    def is_cleaned() -> bool:
        done = (read_offset_checkpoint(cleaned) or {}).get((topic.name, 0), 0)
        return done == list_segments(folder)[-1].base_offset

    eventually(is_cleaned)
    tier.cluster.configure(topic.name, cleanup_policy="delete")
    produce_keys(tier, topic, 60)
    tier.wait_for_checkpoint(name)
    sizes = [segment.size_bytes for segment in rolled(folder)]
    tier.rlmm.on_partition_leadership_changes([PartitionLeadership(name, 0)], [], BROKER_ID)
    tier.rlmm.put_topic_config(name.topic_id, {"remote.storage.enable": "true"})
    rlm_that_copies(tier, name)
    segments = tier.finished(name)
    assert ranges_in_tier(segments) == ranges_on_disk(folder)
    assert [segment.segment_size_in_bytes for segment in segments] == sizes

    records = consumed(tier.cluster, name)
    assert len(records) < 100  # the cleaner left some 10 of 120
    reader = tier.without_rolled_segments(tmp_path)
    assert fetched(reader, name, 0) == records
    for offset in range(180):
        following = next(record.offset for record in records if record.offset >= offset)
        assert next(fetched_from(reader, name, offset))["offset"] == following


def produce_keys(tier: TieredBroker, topic: Topic, batches: int) -> None:
    """Batches of one record, of seven keys in turn, some three to a segment."""
    with tier.cluster.producer() as producer:
        for number in range(batches):
            record = Record(f"{number % 7}".encode(), f"{number:04}".encode() * 600, NOW)
            send_batch(producer, topic, 0, [record])


def test_topic_without_its_own_policy_has_the_clusters(tmp_path: Path) -> None:
    topics = Topic("by-default", 1, 8192), Topic("own", 1, 8192, {"cleanup.policy": "delete"})
    with kafka_broker(tmp_path, {"log.cleanup.policy": "compact,delete"}) as broker:
        Cluster(broker.bootstrap_servers).create(*topics)
        admin = KafkaAdmin([broker.bootstrap_servers], CLIENT_TIMEOUT_S)

        def answered() -> None:
            found = admin.cleanup_policies(["by-default", "own", "not-there"]).cleanup_policies
            assert (found["by-default"], found["own"]) == ("compact,delete", "delete")
            not_there = found["not-there"]
            assert isinstance(not_there, NoPolicy)
            assert "UnknownTopicOrPartitionError" in not_there.reason
            assert not not_there.is_refused

        eventually_holds(answered)
