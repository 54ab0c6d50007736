"""Test that a topic which the cluster compacts is not tiered.

The cluster's responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.rlm.cleanup_policies import MAX_AGE_S
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    LogOffsets,
    NoPolicy,
    PartitionView,
    PolicyView,
    TopicView,
)
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.callback_rlm import turn
from tests.harness.retained_log import AT_ONCE, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, description
from tests.unit.rlm.kafka_bytes import NAME

pytestmark = pytest.mark.deep

BROKER_ID = 7
REGISTERED = "c"  # of the log directory's meta.properties
EPOCH = 2  # the latest of an hourly log
ALL = [(base, base + 9) for base in range(0, 60, 10)]
TIERED = {"remote.storage.enable": "true"}
REFUSED = NoPolicy("not yours", is_refused=True)


@dataclass
class Cluster:
    """A topic that our broker leads, with a cleanup policy set by the test; a clock beside it."""

    policy: str | NoPolicy
    tells_policies: bool = True
    now_s: float = 0.0

    def view(self, topics: Collection[str]) -> ClusterView:
        led = PartitionView(BROKER_ID, EPOCH, frozenset({BROKER_ID}))
        return ClusterView(REGISTERED, {NAME.topic: TopicView(NAME.topic_id, {0: led})})

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        if not self.tells_policies:
            raise ClusterUnreachableError("timed out")
        return PolicyView(self.view(topics), {NAME.topic: self.policy})

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        return {}

    def log_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, LogOffsets]:
        return {}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("delete")


@pytest.fixture
def rlm(stack: Stack, log_dir: Path, cluster: Cluster) -> Any:
    """Provide an RLM that leads the tiered topic and has not requested its cleanup policy."""
    hourly_log(log_dir)
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 0)], [], BROKER_ID)
    stack.rlmm.put_topic_config(NAME.topic_id, TIERED)
    made = BrokerRemoteLogManager(
        [log_dir],
        stack.rsm,
        stack.rlmm,
        AT_ONCE,
        clock=lambda: cluster.now_s,
        source=PartitionSource.POLLER,
        cluster=PolledCluster(cluster, REGISTERED, confirm_s=3600.0),
    )
    turn(made.lanes.poll)
    return made


def ask_and_take_turns(rlm: Any, cluster: Cluster) -> None:
    take_turns(rlm)
    cluster.now_s += MAX_AGE_S
    turn(rlm.lanes.policies)
    take_turns(rlm)


def problems(rlm: Any) -> list[Problem]:
    return list(description(rlm).problems)


def test_nothing_is_copied_before_it_is_known_how_the_topic_is_cleaned_up(
    stack: Stack, rlm: Any, cluster: Cluster
) -> None:
    cluster.tells_policies = False
    ask_and_take_turns(rlm, cluster)
    assert (stack.ranges(), problems(rlm)) == ([], [])
    cluster.tells_policies = True
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_compacted_topic_is_not_copied_and_that_is_a_problem(
    stack: Stack,
    rlm: Any,
    cluster: Cluster,
    policy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.policy = policy
    ask_and_take_turns(rlm, cluster)
    take_turns(rlm)
    assert stack.ranges() == []
    (problem,) = problems(rlm)
    assert (problem.kind, problem.held_segments) == (ProblemKind.TOPIC_COMPACTED, len(ALL))
    assert rlm.copy_lag().uncopied_segments == len(ALL)
    assert f"topic t has cleanup.policy={policy}, " in problem.message
    assert "`sediment topics set t`: remote.log.copy.disable=true" in problem.message
    reported = [each for each in caplog.messages if "TOPIC_COMPACTED" in each]
    assert len(reported) == 1


def test_it_is_copied_when_it_is_compacted_no_more(
    stack: Stack, rlm: Any, cluster: Cluster
) -> None:
    cluster.policy = "compact"
    ask_and_take_turns(rlm, cluster)
    cluster.policy = "delete"
    ask_and_take_turns(rlm, cluster)
    assert (stack.ranges(), problems(rlm)) == (ALL, [])


def test_tiered_segments_of_a_compacted_topic_do_not_expire(
    stack: Stack, rlm: Any, cluster: Cluster
) -> None:
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL
    cluster.policy = "compact"
    cluster.now_s += MAX_AGE_S
    turn(rlm.lanes.policies)
    stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)})
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL
    assert [(p.kind, p.held_segments) for p in problems(rlm)] == [(ProblemKind.TOPIC_COMPACTED, 0)]
    cluster.policy = "delete"
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL[-2:]


def test_nor_when_nothing_of_it_is_to_be_copied_any_more(
    stack: Stack, rlm: Any, cluster: Cluster
) -> None:
    ask_and_take_turns(rlm, cluster)
    cluster.policy = "compact"
    cluster.now_s += MAX_AGE_S
    turn(rlm.lanes.policies)
    read_only = {**TIERED, "remote.log.copy.disable": "true"}
    stack.rlmm.put_topic_config(NAME.topic_id, {**read_only, **keep_hours(2)})
    ask_and_take_turns(rlm, cluster)
    assert (stack.ranges(), problems(rlm)) == (ALL, [])


def test_nothing_expires_before_it_is_known_how_the_topic_is_cleaned_up(
    stack: Stack, rlm: Any, cluster: Cluster, log_dir: Path
) -> None:
    stack.ship(log_dir)
    stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)})
    cluster.tells_policies = False
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL
    cluster.tells_policies = True
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL[-2:]


def test_if_the_cluster_does_not_report_the_policy_the_topic_is_copied_and_expires(
    stack: Stack, rlm: Any, cluster: Cluster
) -> None:
    cluster.policy = REFUSED
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL
    stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)})
    ask_and_take_turns(rlm, cluster)
    assert stack.ranges() == ALL[-2:]
