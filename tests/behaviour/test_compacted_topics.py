"""Test that a topic which the cluster compacts is not tiered.

The cluster's responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

from typing import Any
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.cleanup_policies import MAX_AGE_S
from services.rlm.kafka_admin.cluster_view import NoPolicy
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.manager import BrokerRemoteLogManager
from tests.behaviour.test_rlm_poller import (
    ALL,
    CONFIRM_S,
    OURS,
    REGISTERED,
    TIERED,
    AnsweringCluster,
    Polled,
    led_by,
    poll,
    polling_rlm,
    tier,
)
from tests.harness.callback_rlm import ALL_AT_ONCE, turn
from tests.harness.retained_log import hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, description
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

pytestmark = pytest.mark.deep

REFUSED = NoPolicy("not yours", is_refused=True)


@pytest.fixture
def polled(stack: Stack) -> Polled:
    """Provide an RLM that leads the tiered topic and has not requested its cleanup policy."""
    files, cluster = hourly_log(stack.log_dir), AnsweringCluster({NAME.topic: led_by(OURS)})
    tier(stack)
    rlm = polling_rlm(stack, cluster)
    poll(rlm)
    return Polled(stack, files, cluster, rlm)


def ask_and_take_turns(rlm: Any, cluster: AnsweringCluster) -> None:
    take_turns(rlm)
    cluster.now_s += MAX_AGE_S
    turn(rlm.lanes.policies)
    take_turns(rlm)


def problems(rlm: Any) -> list[Problem]:
    return list(description(rlm).problems)


def test_nothing_is_copied_before_it_is_known_how_the_topic_is_cleaned_up(polled: Polled) -> None:
    polled.cluster.policies_are_away = True
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert (polled.stack.ranges(), problems(polled.rlm)) == ([], [])
    polled.cluster.policies_are_away = False
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_compacted_topic_is_not_copied_and_that_is_a_problem(
    polled: Polled, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    polled.cluster.cleanup_policy = policy
    ask_and_take_turns(polled.rlm, polled.cluster)
    take_turns(polled.rlm)
    assert polled.stack.ranges() == []
    (problem,) = problems(polled.rlm)
    assert (problem.kind, problem.blocked_segments) == (ProblemKind.TOPIC_COMPACTED, len(ALL))
    assert polled.rlm.copy_lag().lag_segments == len(ALL)
    assert f"topic t has cleanup.policy={policy}, " in problem.message
    assert "`sediment topics set t`: remote.log.copy.disable=true" in problem.message
    reported = [each for each in caplog.messages if "TOPIC_COMPACTED" in each]
    assert len(reported) == 1


def test_it_is_copied_when_it_is_compacted_no_more(polled: Polled) -> None:
    polled.cluster.cleanup_policy = "compact"
    ask_and_take_turns(polled.rlm, polled.cluster)
    polled.cluster.cleanup_policy = "delete"
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert (polled.stack.ranges(), problems(polled.rlm)) == (ALL, [])


def test_tiered_segments_of_a_compacted_topic_do_not_expire(polled: Polled) -> None:
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL
    polled.cluster.cleanup_policy = "compact"
    polled.cluster.now_s += MAX_AGE_S
    turn(polled.rlm.lanes.policies)
    polled.stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)}, now=True)
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL
    assert [(p.kind, p.blocked_segments) for p in problems(polled.rlm)] == [
        (ProblemKind.TOPIC_COMPACTED, 0)
    ]
    polled.cluster.cleanup_policy = "delete"
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL[-2:]


def test_nor_when_nothing_of_it_is_to_be_copied_any_more(polled: Polled) -> None:
    ask_and_take_turns(polled.rlm, polled.cluster)
    polled.cluster.cleanup_policy = "compact"
    polled.cluster.now_s += MAX_AGE_S
    turn(polled.rlm.lanes.policies)
    read_only = {**TIERED, "remote.log.copy.disable": "true"}
    polled.stack.rlmm.put_topic_config(NAME.topic_id, {**read_only, **keep_hours(2)}, now=True)
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert (polled.stack.ranges(), problems(polled.rlm)) == (ALL, [])


def test_nothing_expires_before_it_is_known_how_the_topic_is_cleaned_up(polled: Polled) -> None:
    polled.stack.ship()
    polled.stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)}, now=True)
    polled.cluster.policies_are_away = True
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL
    polled.cluster.policies_are_away = False
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL[-2:]


def test_if_the_cluster_does_not_report_the_policy_the_topic_is_copied_and_expires(
    polled: Polled,
) -> None:
    polled.cluster.cleanup_policy = REFUSED
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL
    polled.stack.rlmm.put_topic_config(NAME.topic_id, {**TIERED, **keep_hours(2)}, now=True)
    ask_and_take_turns(polled.rlm, polled.cluster)
    assert polled.stack.ranges() == ALL[-2:]


def test_without_a_cluster_a_cleaned_log_is_refused_by_name_and_others_are_copied(
    stack: Stack,
) -> None:
    hourly_log(stack.log_dir)
    other = three_segments(stack.log_dir, TopicIdPartition(uuid4(), "other", 0))
    # As the cleaner left it while the topic was compacted: its last batch is gone.
    other.file(0, ".log").write_bytes(batch(0, 5))
    checkpoint = stack.log_dir / "cleaner-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{NAME.topic} {NAME.partition} 3\n")
    reports = {each.topic_id_partition: each for each in stack.ship().partitions}
    refused, copied = reports[NAME], reports[other.name]
    assert stack.ranges() == []
    [problem] = refused.problems
    assert (problem.kind, problem.blocked_segments) == (ProblemKind.TOPIC_COMPACTED, len(ALL))
    assert "cleaner-offset-checkpoint" in problem.message
    assert (copied.copied_segments, copied.problems) == (2, ())
    assert stack.ranges(other.name) == [(0, 9), (10, 19)]
    checkpoint.write_text("0\n0\n")
    stack.ship()
    assert stack.ranges() == ALL


def test_a_cluster_decides_for_leaders_that_no_poll_names(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    cluster = AnsweringCluster({NAME.topic: led_by(OURS)})
    cluster.cleanup_policy = "compact"
    static: Any = BrokerRemoteLogManager(
        [stack.log_dir],
        stack.rsm,
        stack.rlmm,
        ALL_AT_ONCE,
        clock=lambda: cluster.now_s,
        cluster=PolledCluster(cluster, REGISTERED, CONFIRM_S),
    )
    stack.readers.append(static)
    ask_and_take_turns(static, cluster)
    assert stack.ranges() == []
    [problem] = problems(static)
    assert problem.kind is ProblemKind.TOPIC_COMPACTED
    cluster.cleanup_policy = "delete"
    ask_and_take_turns(static, cluster)
    assert stack.ranges() == ALL
