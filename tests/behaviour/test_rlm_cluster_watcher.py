"""Test an RLM that only polls a cluster: topics that brokers tier through the plugin.

The cluster's responses are given by hand; RSM is on files, RLMM on PostgreSQL.
"""

from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PolledLog
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.remote_storage_manager import IndexType
from services.api.segments import segment_leader_epochs
from services.api.topic_config import StoredTopicConfig
from services.rlm.copy.ship import ship
from services.rlm.kafka_admin.cluster_view import LogOffsets, NoTopic
from services.rlm.kafka_admin.polled_logs import RENEW_S
from services.rlm.kafka_admin.poller import RECALL_EVERY_POLLS, PolledCluster
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.retention.snapshot import read_snapshot
from services.rlm.roles.partition_roles import PartitionSource
from tests.behaviour.test_rlm_poller import (
    CONFIRM_S,
    EPOCH,
    MARKED,
    REGISTERED,
    THEIRS,
    AnsweringCluster,
    delete_states,
    led_by,
    poll,
    poll_over,
)
from tests.contract.rlmm.segments import add, segment
from tests.harness.callback_rlm import ALL_AT_ONCE, removing_turns
from tests.harness.retained_log import hourly_log
from tests.harness.ship_stack import ONE_TRY, Stack
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME

pytestmark = pytest.mark.deep

OTHER = replace(NAME, topic="other", topic_id=uuid4())


def announced(stack: Stack, *names: Any, cluster_id: str | None = REGISTERED) -> None:
    """Announce partitions as a broker with the plugin does."""
    leaders = [PartitionLeadership(name, None) for name in names]
    stack.rlmm.on_partition_leadership_changes(leaders, [], THEIRS, cluster_id)


@pytest.fixture
def cluster() -> AnsweringCluster:
    return AnsweringCluster(
        {NAME.topic: led_by(THEIRS), OTHER.topic: led_by(THEIRS, OTHER.topic_id)}
    )


def watching_rlm(stack: Stack, cluster: AnsweringCluster, rsm: Any = None) -> Any:
    return BrokerRemoteLogManager(
        (),
        rsm or stack.rsm,
        stack.rlmm,
        ALL_AT_ONCE,
        clock=lambda: cluster.now_s,
        source=PartitionSource.POLLER,
        cluster=PolledCluster(cluster, REGISTERED, CONFIRM_S),
    )


@pytest.fixture
def rlm(stack: Stack, cluster: AnsweringCluster) -> Any:
    announced(stack, NAME, OTHER)
    watching = watching_rlm(stack, cluster)
    for _ in range(2):
        poll(watching)
    return watching


def test_it_leads_nothing(rlm: Any) -> None:
    assert rlm.led_partitions() == []


def test_a_deleted_topic_is_marked_when_the_cluster_has_confirmed_it_and_then_removed(
    stack: Stack, rlm: Any, cluster: AnsweringCluster
) -> None:
    add(stack.rlmm, segment(NAME, 0, 9))  # what the broker's own deletion left
    cluster.topics[NAME.topic] = NoTopic.UNKNOWN
    poll(rlm)
    poll_over(rlm, cluster, CONFIRM_S * 0.9)
    assert delete_states(stack) == {NAME: None, OTHER: None}
    poll_over(rlm, cluster, CONFIRM_S * 0.1)
    assert delete_states(stack) == {NAME: MARKED, OTHER: None}
    removing_turns(rlm)
    assert delete_states(stack) == {OTHER: None}


def test_a_topic_made_again_under_the_name_is_another_topic(
    stack: Stack, rlm: Any, cluster: AnsweringCluster
) -> None:
    again = replace(NAME, topic_id=uuid4())
    announced(stack, again)
    cluster.topics[NAME.topic] = led_by(THEIRS, again.topic_id)
    poll(rlm)
    poll_over(rlm, cluster)
    assert delete_states(stack) == {NAME: MARKED, OTHER: None, again: None}


def test_a_topic_that_is_tiered_later_is_watched_too(
    stack: Stack, rlm: Any, cluster: AnsweringCluster
) -> None:
    """Even if it was deleted before the RLM had heard of it."""
    later = replace(NAME, topic="later", topic_id=uuid4())
    announced(stack, later)
    for _ in range(RECALL_EVERY_POLLS + 1):
        poll(rlm)
    poll_over(rlm, cluster)
    assert delete_states(stack) == {NAME: None, OTHER: None, later: MARKED}


# --- the logs that brokers tier ------------------------------------------------------------------


class CountingStorage(Wrapper[Any]):
    """RSM that lists the segments whose index was fetched."""

    def __init__(self, rsm: Any) -> None:
        super().__init__(rsm)
        self.fetched: list[tuple[int, IndexType]] = []

    def fetch_index(self, segment: Any, index_type: IndexType, **options: Any) -> Any:
        self.fetched.append((segment.start_offset, index_type))
        return self.real.fetch_index(segment, index_type, **options)


class ReportlessRlmm(Wrapper[Any]):
    """RLMM that stores no report of a leader, as if the broker's plugin copied."""

    def report_partition_state(self, reports: Any) -> list[Any]:
        return [self.real.partition_state(report.topic_id_partition) for report in reports]


@pytest.fixture
def tiered(stack: Stack, cluster: AnsweringCluster) -> PolledLog:
    """Tier six segments as a broker does, from 0 to 59; return what the poll is to report."""
    hourly_log(stack.log_dir)
    ship([stack.log_dir], stack.rsm, cast(Any, ReportlessRlmm(stack.rlmm)), ONE_TRY)
    announced(stack, NAME, OTHER)
    cluster.logs[NAME] = LogOffsets(10, 64)
    lineage = Lineage(segment_leader_epochs([(0, 0), (EPOCH, 30)]))
    return PolledLog(NAME, THEIRS, EPOCH, lineage, 10, 64)


def polled_log(stack: Stack, name: TopicIdPartition = NAME) -> PolledLog | None:
    return stack.rlmm.partition_state(name).value.polled_log


def polling(stack: Stack, cluster: AnsweringCluster, rsm: Any = None) -> Any:
    """Provide an RLM that has begun to watch the topics."""
    watching = watching_rlm(stack, cluster, rsm)
    for _ in range(2):
        poll(watching)
    return watching


def test_it_reports_kafkas_bounds_and_the_copied_lineage(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog
) -> None:
    revision = stack.rlmm.partition_state(NAME).revision
    polling(stack, cluster)
    state = stack.rlmm.partition_state(NAME)
    assert (state.value.polled_log, state.revision) == (tiered, revision)
    assert (state.value.report, state.value.lineage) == (None, Lineage())
    assert polled_log(stack, OTHER) is None  # Its leader gave no offsets.


def test_an_index_is_fetched_once_until_another_segment_is_the_newest(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog
) -> None:
    rsm = CountingStorage(stack.rsm)
    rlm = polling(stack, cluster, rsm)
    add(stack.rlmm, segment(NAME, 60, 63, {EPOCH: 60}))  # Another revision, the same newest one.
    cluster.logs[NAME] = LogOffsets(20, 70)
    poll(rlm)
    assert polled_log(stack) == replace(tiered, log_start_offset=20, high_watermark=70)
    assert rsm.fetched == [(50, IndexType.LEADER_EPOCH)]


def test_an_unchanged_log_is_reported_again_when_it_gets_old(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog
) -> None:
    rlm = polling(stack, cluster)

    def polled_at_ms() -> int | None:
        return stack.rlmm.partition_state(NAME).value.polled_at_ms

    first = polled_at_ms()
    poll(rlm)
    assert polled_at_ms() == first
    cluster.now_s += RENEW_S
    poll(rlm)
    assert polled_at_ms() != first


def test_a_leader_that_does_not_answer_leaves_the_stored_log(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog
) -> None:
    rlm = polling(stack, cluster)
    cluster.leader_is_away = True
    cluster.logs[NAME] = LogOffsets(20, 70)
    poll(rlm)
    assert polled_log(stack) == tiered


def test_a_lost_history_leaves_the_lineage_empty_and_reports_the_bounds(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog
) -> None:
    path = stack.object_of(stack.segments()[-1])
    path.with_name(f"{path.name.partition('.')[0]}.manifest").unlink()
    polling(stack, cluster)
    assert polled_log(stack) == replace(tiered, lineage=Lineage())


@pytest.mark.parametrize("owner", [{}, {"sediment.retention.owner": "sweep"}])
def test_polled_log_makes_no_rule_delete_anything(
    stack: Stack, cluster: AnsweringCluster, tiered: PolledLog, owner: dict[str, str]
) -> None:
    """Kafka owns the retention: neither a sweep nor an RLM plans from a polled log."""
    polling(stack, cluster)
    snapshot = read_snapshot(stack.rlmm, NAME, stack.rlmm.partition_state(NAME))
    assert snapshot.state.polled_log == tiered
    entries = {"retention.ms": "0", "retention.bytes": "0", **owner}
    plan = snapshot.plan(StoredTopicConfig(NAME.topic_id, NAME.topic, entries))
    assert plan.deletions == ()
    assert plan.log_start_offset is None
