"""The integration scenarios of Kafka's own tiered storage, over the plugin and three brokers.

Kafka's run only with its LocalTieredStorage, whose events they count. Here each expectation is read
from RLMM, the bucket, the brokers' disks and what a consumer gets. SCENARIOS has the test of each.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demos.kafka_broker import plugin_settings
from hatch_build import ROOT
from services.api.offset_queries import SpecialTime
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Record, send_batch
from tests.harness.kafka_cluster import KafkaCluster
from tests.harness.variants import first_of
from tests.harness.world import World
from tests.plugin.replicated import CLUSTER_SETTINGS, NODES, ClusterDeployment, ReplicatedPartition
from tests.plugin.seen import ISOLATION_LEVELS
from tests.plugin.tiered_partition import DEADLINE_MS

# The first of them waits for the three brokers.
pytestmark = [pytest.mark.plugin, pytest.mark.timeout(600)]

SCENARIOS = {
    # Kafka asserts the records of each offloaded segment, the earliest local offset and how many
    # segments a consumer fetches; here each file's bytes, and equal reads before and after kills.
    "OffloadAndConsumeFromLeaderTest": "test_plugin_broker.py::"
    "test_clients_read_the_same_after_the_broker",
    # Kafka asserts at most 12 fetches of segments and of each index; here the records, with
    # transactions that abort and span segments.
    "OffloadAndTxnConsumeFromLeaderTest": "test_plugin_broker.py::"
    "test_clients_read_the_same_after_segments_moved",
    # Kafka asserts what its transaction coordinator promises, with segments in the tier; here which
    # records read_committed returns of a log in the tier, after kills and moves of leaders.
    "TransactionsWithTieredStoreTest": "test_three_brokers.py::"
    "test_read_committed_omits_only_aborted_records",
    # Kafka asserts that the last of four segments is offloaded too; here the same of a single one.
    "RollAndOffloadActiveSegmentTest": "test_plugin_broker.py::"
    "test_old_active_segment_is_rolled_and_moved",
    # Kafka asserts three deletions, the leader-epoch checkpoint and a consumer that fetches nothing
    # from the tier; here the log start, the rows and objects that are left, and the records.
    "DeleteSegmentsTest (size)": "test_plugin_broker.py::test_retention_bytes_deletes_segments",
    # Kafka asserts the same of retention by time; here that nothing is left in the tier.
    "DeleteSegmentsTest (time)": "test_plugin_broker.py::test_retention_ms_deletes_segments",
    # Kafka asserts one deletion by each leader, and the checkpoint; here both, and objects.
    "DeleteSegmentsDueToLogStartOffsetBreachTest": "test_kafka_scenarios.py::"
    "test_each_leader_deletes_segments_below_the_log_start",
    # Kafka asserts two deletions for each partition and an empty tier; here that neither rows nor
    # objects are left.
    "DeleteTopicTest": "test_three_brokers.py::test_the_deleted_topic_leaves_nothing",
    # Kafka asserts fetches while copying is off, one deletion by size, and an empty tier after it
    # is turned off; here the records at each step, and rows and objects.
    "DisableRemoteLogOnTopicTest": "test_kafka_scenarios.py::"
    "test_a_tier_that_is_turned_off_is_read_until_it_is_deleted",
    # Kafka asserts that segments from before are offloaded, of both leaders; here the same, and all
    # records.
    "EnableRemoteLogOnTopicTest": "test_kafka_scenarios.py::"
    "test_a_topic_that_is_tiered_later_moves_all_of_it",
    # Kafka asserts fetches from the tier, and a further segment there; here records and segments.
    "FetchFromLeaderWithCorruptedCheckpointTest": "test_kafka_scenarios.py::"
    "test_leader_continues_without_its_checkpoints",
    # Kafka asserts offset and epoch of special values and times; here the same.
    "ListOffsetsTest": "test_kafka_scenarios.py::test_offsets_are_listed_with_their_epochs",
    # Kafka asserts segments and fetches of old and new partitions; here their segments and records.
    "PartitionsExpandTest": "test_kafka_scenarios.py::test_a_topic_gets_more_partitions",
    # Kafka asserts the new leader, its earliest local offset and three fetches, with 50 partitions
    # that fill its metadata topic; here leader, offsets and records: there is no metadata topic.
    "ReassignReplicaMoveAndExpandTest": "test_kafka_scenarios.py::"
    "test_new_replica_leads_and_serves_the_tier",
    # Kafka asserts the leader that is left, and its fetches; here leader, segments and records.
    "ReassignReplicaShrinkTest": "test_kafka_scenarios.py::test_remaining_replica_leads",
    # Kafka asserts that the moved replica leads and fetches; here also in which directory it lies.
    "AlterLogDirTest": "test_kafka_scenarios.py::test_a_replica_moves_to_another_log_directory",
    # Kafka asserts which topic configs the controller accepts, without a plugin, and that a deleted
    # topic's segments go; here the deletion, and that the name starts again.
    "RemoteTopicCrudTest": "test_plugin_broker.py::"
    "test_a_deleted_topic_leaves_nothing_and_its_name_starts_again",
}
"""The test that covers each of Kafka's scenarios, or is its port, and how they differ."""

PAGE = (ROOT / "docs" / "understand" / "spi-mapping.md").read_text()

ONE_RECORD_BYTES, TWO_RECORDS_BYTES = 4096, 8192
"""Sizes of segments, for records of 3000 bytes."""

CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    ".kafka_cleanshutdown",
)


@pytest.fixture(scope="module")
def deployment(
    jar: Path, services: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterDeployment]:
    settings = {
        **CLUSTER_SETTINGS,
        **plugin_settings(jar, services.rsm.address, services.rlmm.address),
    }
    directory = tmp_path_factory.mktemp("brokers")
    with KafkaCluster(directory, [settings] * len(NODES), log_dirs=2) as brokers:
        yield ClusterDeployment(brokers, services)


def create(
    deployment: ClusterDeployment,
    *assignments: tuple[int, ...],
    segment_bytes: int = ONE_RECORD_BYTES,
    **config: str,
) -> list[ReplicatedPartition]:
    """A topic that keeps only active segments on disks, and takes writes from one replica."""
    own = {"min_insync_replicas": "1", "local_retention_bytes": "1", **config}
    return deployment.create("scenario", assignments, segment_bytes, **own)


def assert_only_active_is_local(
    partition: ReplicatedPartition, values: list[bytes], starts: range
) -> None:
    """Wait until the tier has segments from these offsets and disks only what follows them;
    consumers read the values, from the first of these offsets on."""
    partition.wait_until_moved()
    assert partition.offset(SpecialTime.EARLIEST_LOCAL) == starts.stop
    assert sorted({row.start_offset for row in partition.finished()}) == list(starts)
    for isolation_level in ISOLATION_LEVELS:
        assert [r.value for r in partition.read(isolation_level)] == values
    partition.assert_nothing_wrong()


def create_moved(
    deployment: ClusterDeployment, replicas: tuple[int, ...]
) -> tuple[ReplicatedPartition, list[bytes]]:
    """Make such a topic of one partition, two of whose three records only the tier has."""
    (partition,) = create(deployment, replicas)
    values = partition.produce(3)
    assert_only_active_is_local(partition, values, range(2))
    return partition, values


def assert_the_tier_begins_at(partition: ReplicatedPartition, *starts: int) -> None:
    """Wait until just these segments are left, with their objects."""

    def others_are_gone() -> None:
        assert [row.start_offset for row in partition.rows()] == list(starts)
        assert len(partition.objects()) == len(starts)

    eventually_holds(others_are_gone, DEADLINE_MS)


def test_each_scenario_has_a_test() -> None:
    for scenario, test in SCENARIOS.items():
        file, _, function = test.partition("::")
        source = (Path(__file__).parent / file).read_text()
        assert f"def {function}(" in source, (scenario, test)
        assert f"`{scenario.split()[0]}`" in PAGE, scenario
        assert f"`tests/plugin/{test}`" in PAGE, test


# --- replicas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "replicas", first_of([pytest.param((2,), id="moved"), pytest.param((1, 2), id="expanded")])
)
def test_new_replica_leads_and_serves_the_tier(
    deployment: ClusterDeployment, replicas: tuple[int, ...]
) -> None:
    partition, values = create_moved(deployment, (1,))
    partition.reassign(replicas)
    partition.lead(2)
    values += partition.produce(1)
    assert_only_active_is_local(partition, values, range(3))
    assert partition.finished()[-1].broker_id == 2
    assert partition.local_start(2) == 3


@pytest.mark.long
def test_remaining_replica_leads(deployment: ClusterDeployment) -> None:
    partitions = create(deployment, (1, 2), (2, 1))
    written = [partition.produce(3) for partition in partitions]
    for partition, values, left in zip(partitions, written, (2, 1), strict=True):
        assert_only_active_is_local(partition, values, range(2))
        partition.reassign([left])
        assert partition.leader == left
    for partition, values in zip(partitions, written, strict=True):
        values += partition.produce(1)
        assert_only_active_is_local(partition, values, range(3))


@pytest.mark.long
def test_a_topic_gets_more_partitions(deployment: ClusterDeployment) -> None:
    first, values = create_moved(deployment, (1, 2))
    deployment.admin.expand(first.topic.name, [(1, 2), (2, 1)])
    _, second, third = deployment.partitions(replace(first.topic, partitions=3))
    assert (second.leader, third.leader) == (1, 2)
    for partition in (second, third):
        assert_only_active_is_local(partition, partition.produce(3), range(2))
    values += first.produce(3)
    assert_only_active_is_local(first, values, range(5))


@pytest.mark.long
def test_a_replica_moves_to_another_log_directory(deployment: ClusterDeployment) -> None:
    partition, values = create_moved(deployment, (2, 1))
    folder = partition.folder(1)
    assert folder is not None
    (target,) = {*deployment.brokers.broker(1).log_dirs} - {folder.parent}
    deployment.admin.move_log_dir(partition.name.topic, 0, 1, str(target))
    eventually(lambda: partition.folder(1) == target / folder.name, DEADLINE_MS)
    partition.lead(1)
    values += partition.produce(1)
    assert_only_active_is_local(partition, values, range(3))


@pytest.mark.long
def test_leader_continues_without_its_checkpoints(deployment: ClusterDeployment) -> None:
    partition, values = create_moved(deployment, (1, 2))
    leader, follower = (deployment.brokers.broker(node_id) for node_id in (1, 2))
    follower.stop()
    leader.stop()
    for log_dir in leader.log_dirs:
        for name in CHECKPOINTS:
            (log_dir / name).unlink()
    leader.start()
    follower.start()
    partition.wait_until_in_sync(2)
    values += partition.produce(2)
    assert_only_active_is_local(partition, values, range(4))


# --- what is listed, and what goes --------------------------------------------------------------


@pytest.mark.long
def test_offsets_are_listed_with_their_epochs(deployment: ClusterDeployment) -> None:
    (partition,) = create(deployment, (1, 2), segment_bytes=TWO_RECORDS_BYTES)
    began_ms = time.time_ns() // 1_000_000
    values = produce_at(partition, range(began_ms, began_ms + 3))
    assert_only_active_is_local(partition, values, range(0, 2, 2))
    partition.lead(2)
    values += produce_at(partition, range(began_ms + 3, began_ms + 6))
    partition.wait_until_moved()

    def listed(question: int) -> tuple[int, int]:
        return deployment.admin.offset_and_epoch(partition.name.topic, 0, question)

    assert listed(SpecialTime.EARLIEST) == (0, 0)
    assert listed(SpecialTime.EARLIEST_LOCAL) == (4, 1)
    assert listed(SpecialTime.LATEST_TIERED) == (3, 1)
    assert listed(SpecialTime.LATEST) == (6, 1)
    expected = [(0, 0), (0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (-1, -1)]
    assert [listed(began_ms + number) for number in range(-1, 7)] == expected
    # The tier's last segment ends at 3.
    for start, left in ((3, [2]), (4, [])):
        deployment.cluster.delete_records(partition.name.topic, 0, start)
        assert_the_tier_begins_at(partition, *left)
        assert listed(SpecialTime.EARLIEST) == (start, 1)
        assert listed(SpecialTime.EARLIEST_LOCAL) == (4, 1)
    assert listed(SpecialTime.LATEST_TIERED) == (3, -1)
    assert listed(SpecialTime.LATEST) == (6, 1)


def produce_at(partition: ReplicatedPartition, times_ms: range) -> list[bytes]:
    values = [os.urandom(3000) for _ in times_ms]
    with partition.deployment.cluster.idempotent("none") as producer:
        for time_ms, value in zip(times_ms, values, strict=True):
            send_batch(producer, partition.topic, 0, [Record(b"key", value, time_ms)])
    return values


@pytest.mark.long
def test_each_leader_deletes_segments_below_the_log_start(
    deployment: ClusterDeployment,
) -> None:
    (partition,) = create(deployment, (1, 2), segment_bytes=TWO_RECORDS_BYTES)
    values = partition.produce(5)
    assert_only_active_is_local(partition, values, range(0, 4, 2))
    topic = partition.name.topic
    deployment.cluster.delete_records(topic, 0, 3)
    assert_the_tier_begins_at(partition, 2)
    folder = partition.folder(1)
    assert folder is not None
    epochs = (folder / "leader-epoch-checkpoint").read_text().splitlines()
    assert epochs[2:] == ["0 3"]
    assert [(r.offset, r.value) for r in partition.read()] == list(enumerate(values))[3:]
    partition.lead(2)
    values += partition.produce(5)
    partition.wait_until_moved()
    deployment.cluster.delete_records(topic, 0, 7)
    assert_the_tier_begins_at(partition, 6)
    assert [(r.offset, r.value) for r in partition.read()] == list(enumerate(values))[7:]


# --- tiering turned on and off ------------------------------------------------------------------


@pytest.mark.long
def test_a_topic_that_is_tiered_later_moves_all_of_it(deployment: ClusterDeployment) -> None:
    partitions = create(deployment, (1, 2), (2, 1), remote_storage_enable="false")
    written = [partition.produce(3) for partition in partitions]
    assert [partition.local_start(partition.leader) for partition in partitions] == [0, 0]
    partitions[0].configure(remote_storage_enable="true")
    for partition, values in zip(partitions, written, strict=True):
        values += partition.produce(2)
        assert_only_active_is_local(partition, values, range(4))


@pytest.mark.long
def test_a_tier_that_is_turned_off_is_read_until_it_is_deleted(
    deployment: ClusterDeployment,
) -> None:
    partition, values = create_moved(deployment, (1, 2))
    off = {"remote_log_copy_disable": "true", "local_retention_bytes": "-2"}
    partition.configure(**off)
    assert [r.value for r in partition.read()] == values
    partition.configure(remote_log_copy_disable="false", local_retention_bytes="1")
    values += partition.produce(1)
    assert_only_active_is_local(partition, values, range(3))
    partition.configure(**off)
    active_bytes = partition.local_segments(partition.leader)[-1].size_bytes
    kept_bytes = sum(row.segment_size_in_bytes for row in partition.finished()[1:])
    partition.configure(retention_bytes=str(kept_bytes + active_bytes))
    assert_the_tier_begins_at(partition, 1, 2)
    assert [r.value for r in partition.read()] == values[1:]
    partition.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    partition.wait_until_nothing_is_left()
    assert [r.value for r in partition.read()] == values[3:]
