"""Test RLMs that meet in one RLMM by mistake or by design: of one broker, and of two clusters.

The clusters' responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from services.api.remote_log_metadata_manager import PartitionLeadership
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles.partition_roles import PartitionSource
from tests.behaviour.test_rlm_poller import (
    ALL,
    CONFIRM_S,
    MARKED,
    OURS,
    TIERED,
    AnsweringCluster,
    delete_states,
    gone,
    led_by,
    poll,
    poll_over,
    polling_rlm,
    take_turns,
    tier,
)
from tests.harness.retained_log import AT_ONCE, hourly_log
from tests.harness.ship_stack import Stack, read
from tests.unit.rlm.kafka_bytes import NAME, write_log_dir

pytestmark = pytest.mark.deep

THEIR_CLUSTER = "d"
THEIR_NAME = replace(NAME, topic_id=uuid4())
"""A topic of another cluster, by the same name, on a broker of the same id."""


def test_two_rlms_of_one_broker_copy_each_segment_once(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    tier(stack)
    cluster = AnsweringCluster({NAME.topic: led_by(OURS)})
    both = [polling_rlm(stack, cluster) for _ in range(2)]
    for rlm in both:
        poll(rlm)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take_turns, both))
    for rlm in both:
        take_turns(rlm)
    assert stack.ranges() == ALL
    assert read(both[0], 0) == read(both[1], 0)


def test_topics_of_one_name_in_two_clusters_are_two_topics(stack: Stack) -> None:
    here, there = AnsweringCluster({NAME.topic: led_by(OURS)}), AnsweringCluster()
    there.cluster_id = THEIR_CLUSTER
    there.topics = {NAME.topic: led_by(OURS, THEIR_NAME.topic_id)}
    files = hourly_log(stack.log_dir)
    ours = polling_rlm(stack, here)
    theirs = of_the_other_cluster(stack, there)
    tier(stack)
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(THEIR_NAME, 0)], [], OURS)
    stack.rlmm.put_topic_config(THEIR_NAME.topic_id, TIERED)
    for rlm in (ours, theirs):
        poll(rlm)
        take_turns(rlm)
    assert stack.ranges(NAME) == stack.ranges(THEIR_NAME) == ALL
    gone(files, here)
    poll_over(ours, here)
    poll_over(theirs, there)
    assert delete_states(stack) == {NAME: MARKED, THEIR_NAME: None}
    assert len(theirs.served_partitions(NAME.topic)) == 1


def of_the_other_cluster(stack: Stack, cluster: AnsweringCluster) -> Any:
    log_dir = write_log_dir(stack.log_dir.parent / "theirs")
    properties = log_dir / "meta.properties"
    properties.write_text(properties.read_text().replace("cluster.id=c", "cluster.id=d"))
    hourly_log(log_dir, THEIR_NAME)
    return BrokerRemoteLogManager(
        [log_dir],
        stack.rsm,
        stack.rlmm,
        AT_ONCE,
        clock=lambda: cluster.now_s,
        source=PartitionSource.POLLER,
        cluster=PolledCluster(cluster, THEIR_CLUSTER, CONFIRM_S),
    )
