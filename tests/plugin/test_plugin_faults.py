"""Services, stores and the broker itself die while a broker tiers: nothing that was acknowledged is
lost, and nothing leaves the disk before the tier has it.

The servers are this module's own, for they die here.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.segments import RemoteLogSegmentState
from services.local.seaweedfs import SeaweedFS
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.kafka_log.log_dir import read_cluster_id
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.faults import Cut, Direction, Stall
from tests.harness.local_servers import DatabaseServer
from tests.harness.own_servers import own_postgres, own_s3, own_world
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.proxy import TcpProxy
from tests.harness.variants import first_of
from tests.harness.world import SMALLEST_PART_BYTES, World
from tests.plugin.deployment import Deployment, Partition, tiering_broker
from tests.plugin.jmx import read_jmx
from tests.plugin.tiered_partition import DEADLINE_MS, FINISHED

__all__ = ["own_postgres", "own_s3", "own_world"]
pytestmark = pytest.mark.plugin

SEGMENTS = 5  # of two records each, the last one active
MANY_RECORDS = 120
LARGE_SEGMENT_BYTES = 3 * SMALLEST_PART_BYTES
LARGE_RECORDS, LARGE_RECORD_BYTES = 24, 700_000
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
READ_DEADLINE_S = 180.0
Server = DatabaseServer | SeaweedFS


@pytest.fixture(scope="module")
def world(own_world: World) -> World:
    return own_world


@pytest.fixture(scope="module")
def way_to_rsm(world: World) -> Iterator[TcpProxy]:
    with TcpProxy(world.rsm.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def faulty(
    jar: Path, world: World, way_to_rsm: TcpProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """A broker whose services the tests kill, and leave running."""
    directory = tmp_path_factory.mktemp("broker")
    with tiering_broker(jar, world, directory, rsm=way_to_rsm.address) as made:
        yield made


@pytest.fixture
def partition(faulty: Deployment) -> Iterator[Partition]:
    """Of a topic that keeps nothing but its active segment on the disk. A copy is the next that
    RLMM hears of it. When it is deleted after the test, whatever happened, nothing of it may be
    left in the tier."""
    made = faulty.create_one("faulty", local_retention_bytes="1")
    made.wait_until_ready()
    yield made
    assert_deleted_with_everything_left_behind(made)


@pytest.fixture
def large(faulty: Deployment) -> Iterator[Partition]:
    """As `partition`, with segments of several parts."""
    made = faulty.create_one("large", LARGE_SEGMENT_BYTES, local_retention_bytes="1")
    yield made
    assert_deleted_with_everything_left_behind(made)


def assert_deleted_with_everything_left_behind(partition: Partition) -> None:
    partition.keep_nothing()
    partition.deployment.cluster.delete(partition.name.topic)
    partition.wait_until_nothing_is_left()


def produce_large(partition: Partition) -> list[bytes]:
    """Records for one rolled segment, and some behind it."""
    return partition.produce(LARGE_RECORDS, LARGE_RECORD_BYTES)


def assert_recovers(partition: Partition, values: list[bytes]) -> None:
    """Without help all rolled segments move, and clients read everything, once and in order."""
    partition.wait_until_moved()
    assert partition.values() == values
    name = partition.name
    end = partition.deployment.cluster.offsets(name.topic, name.partition).log_end_offset
    assert end == len(values)
    assert_nothing_wrong(partition)


def assert_nothing_wrong(partition: Partition) -> None:
    partition.assert_nothing_left_before_it_was_copied()
    partition.assert_finished_is_complete()
    partition.assert_every_object_has_a_row()


# --- services -----------------------------------------------------------------------------------


def test_consumers_continue_while_rlmm_is_down(partition: Partition, world: World) -> None:
    values = partition.produce()
    assert_recovers(partition, values)
    partition.wait_until_read_from_memory(values)
    world.rlmm.kill()
    try:
        assert partition.values() == values
    finally:
        world.rlmm.start()
    # The broker has reached RLMM again when more has moved: Kafka tries a deletion only once.
    values += partition.produce()
    assert_recovers(partition, values)


def test_a_broker_that_starts_without_its_services_tiers_when_they_are_there(
    faulty: Deployment, world: World
) -> None:
    world.rsm.kill()
    world.rlmm.kill()
    faulty.broker.restart()
    partition = faulty.create_one("early", local_retention_bytes="1")
    values = partition.produce()
    assert partition.values() == values
    assert len(partition.local_segments()) == SEGMENTS
    world.rlmm.start()
    world.rsm.start()
    assert_recovers(partition, values)
    assert_deleted_with_everything_left_behind(partition)


@pytest.mark.parametrize(
    "name", first_of(["rsm.manifest_written", "rsm.log_written", "rsm.indexes_written"])
)
def test_rsm_dies_at_a_copy(partition: Partition, world: World, name: str) -> None:
    assert_survives_at_the_first_copy(partition, world.rsm, name)


@pytest.mark.parametrize("name", first_of(["rlmm.after_commit", "rlmm.before_commit"]))
@pytest.mark.parametrize("nth", [1, 2], ids=["STARTED", "FINISHED"])
def test_rlmm_dies_at_a_copy(partition: Partition, world: World, name: str, nth: int) -> None:
    assert_survives_at_the_first_copy(partition, world.rlmm, name, nth)


def assert_survives_at_the_first_copy(
    partition: Partition, service: ServiceProcess, failpoint: str, nth: int = 1
) -> None:
    service.kill()
    start_with_failpoint(service, failpoint, nth)
    values = partition.produce()
    wait_until_dead(service)
    assert len(partition.local_segments()) == SEGMENTS
    kill_and_restart(service)
    assert_recovers(partition, values)


def test_rsm_dies_between_the_parts_of_a_log(large: Partition, world: World) -> None:
    world.rsm.kill()
    start_with_failpoint(world.rsm, "rsm.part_written", nth=2)
    values = produce_large(large)
    wait_until_dead(world.rsm)
    assert large.local_start() == 0
    assert large.finished() == []
    kill_and_restart(world.rsm)
    assert_recovers(large, values)


def test_connection_to_rsm_breaks_during_a_copy(large: Partition, way_to_rsm: TcpProxy) -> None:
    way_to_rsm.faults.add(Cut(LARGE_SEGMENT_BYTES // 2, Direction.REQUEST))
    way_to_rsm.cut_connections()
    assert_recovers(large, produce_large(large))


def test_rsm_dies_while_a_consumer_reads(large: Partition, world: World) -> None:
    values = produce_large(large)
    large.wait_until_moved()
    messages = large.deployment.cluster.read_through_faults(large.name.topic, 0, READ_DEADLINE_S)
    read = [next(messages)]
    kill_and_restart(world.rsm)
    read += messages
    assert [message.offset() for message in read] == list(range(LARGE_RECORDS))
    assert [message.value() for message in read] == values


def test_connection_to_rsm_breaks_during_a_fetch(large: Partition, way_to_rsm: TcpProxy) -> None:
    values = produce_large(large)
    large.wait_until_moved()
    way_to_rsm.faults.add(Cut(LARGE_RECORD_BYTES // 2, Direction.RESPONSE), times=3)
    way_to_rsm.cut_connections()
    read = list(large.deployment.cluster.read_through_faults(large.name.topic, 0, READ_DEADLINE_S))
    assert [message.offset() for message in read] == list(range(LARGE_RECORDS))
    assert [message.value() for message in read] == values


def test_the_broker_dies_in_the_middle_of_a_copy(large: Partition) -> None:
    values = produce_large(large)
    eventually(large.rows, DEADLINE_MS, poll_ms=1)
    large.deployment.broker.kill()
    large.deployment.broker.start()
    assert_recovers(large, values)


def test_the_broker_is_stopped_in_order_in_the_middle_of_a_copy(
    large: Partition, way_to_rsm: TcpProxy
) -> None:
    way_to_rsm.faults.add(Stall(LARGE_SEGMENT_BYTES // 2, Direction.REQUEST), times=None)
    way_to_rsm.cut_connections()
    try:
        values = produce_large(large)
        eventually(large.rows, DEADLINE_MS)
        # Fails unless the broker has shut down cleanly within a minute.
        large.deployment.broker.stop()
        assert large.finished() == []
    finally:
        way_to_rsm.faults.clear()
        way_to_rsm.cut_connections()
    large.deployment.broker.start()
    assert_recovers(large, values)


def test_copy_lag_is_counted_while_rsm_is_away(partition: Partition, world: World) -> None:
    lag, errors = (
        f"kafka.server:type=BrokerTopicMetrics,name={name},topic={partition.name.topic}"
        for name in ("RemoteCopyLagBytes", "RemoteCopyErrorsPerSec")
    )
    broker = partition.deployment.broker
    world.rsm.kill()
    try:
        values = partition.produce()
        waiting_bytes = sum(segment.size_bytes for segment in partition.rolled())
        eventually(lambda: read_jmx(broker).get((lag, "Value"), 0) == waiting_bytes, DEADLINE_MS)
        # What a retry may solve is no error to Kafka: only the lag shows that RSM is away.
        assert read_jmx(broker).get((errors, "Count"), 0) == 0
    finally:
        world.rsm.start()
    assert_recovers(partition, values)
    eventually(lambda: read_jmx(broker)[lag, "Value"] == 0, DEADLINE_MS)


def test_a_topic_that_is_deleted_while_rsm_is_down_stays_marked(
    faulty: Deployment, world: World
) -> None:
    """Kafka asks once. What it left is for `sediment sweep removal`."""
    partition = faulty.create_one("left-behind", local_retention_bytes="1")
    partition.produce()
    segments = partition.wait_until_tiered()
    world.rsm.kill()
    faulty.cluster.delete(partition.name.topic)

    def all_are_marked() -> None:
        assert [row.state for row in partition.rows()] == [DELETE_STARTED] * len(segments)

    eventually_holds(all_are_marked, DEADLINE_MS)
    world.rsm.start()
    (again,) = faulty.create(partition.topic)
    assert_recovers(again, again.produce())
    all_are_marked()
    assert_deleted_with_everything_left_behind(again)


def test_polling_rlm_removes_leftovers_of_a_deleted_topic(
    faulty: Deployment, world: World, tmp_path: Path
) -> None:
    alive = faulty.create_one("alive", local_retention_bytes="1")
    partition = faulty.create_one("left-for-rlm", local_retention_bytes="1")
    values = alive.produce()
    more = alive.produce()
    partition.produce()
    for each in (alive, partition):
        each.wait_until_tiered()
    world.rsm.kill()
    faulty.cluster.delete(partition.name.topic)
    eventually(lambda: {row.state for row in partition.rows()} == {DELETE_STARTED}, DEADLINE_MS)
    world.rsm.start()
    watcher = ServiceProcess(
        "rlm",
        {
            **rlm_settings(world.rsm.address, world.rlmm.address, [], 200),
            "RLM_PARTITION_SOURCE": "poller",
            "RLM_CLUSTER_ID": read_cluster_id(faulty.broker.log_dirs),
            "RLM_BOOTSTRAP_SERVERS": faulty.broker.bootstrap_servers,
            "RLM_DELETION_CONFIRM_MS": "2000",
            "RLM_DELETION_GRACE_MS": "0",
            "RLM_REMOTE_PARTITION_REMOVER_TASK_INTERVAL_MS": "200",
        },
        tmp_path,
    )
    watcher.start()
    partition.wait_until_nothing_is_left()

    def alive_is_reported() -> None:
        with world.metadata() as rlmm:
            state = rlmm.partition_state(alive.name).value
        log = state.polled_log
        assert log is not None
        assert (log.log_start_offset, log.high_watermark) == (0, len(values) + len(more))
        assert log.lineage.epoch_for_offset(0) is not None
        assert state.report is None

    eventually_holds(alive_is_reported, DEADLINE_MS)
    watcher.stop()
    assert len(alive.finished()) >= len(values) // 2
    assert_deleted_with_everything_left_behind(alive)


# --- stores -------------------------------------------------------------------------------------


@pytest.fixture(params=first_of(["store", "database"]))
def server(
    request: pytest.FixtureRequest, own_s3: SeaweedFS, own_postgres: DatabaseServer
) -> Server:
    return own_s3 if request.param == "store" else own_postgres


def test_store_or_database_dies_while_segments_move(partition: Partition, server: Server) -> None:
    values = partition.produce(MANY_RECORDS)
    eventually(lambda: len(partition.finished()) > 2, DEADLINE_MS)
    server.kill()
    values += partition.produce()
    assert len(partition.rolled()) >= SEGMENTS - 1
    server.start()
    assert_recovers(partition, values)


@pytest.mark.long
def test_store_or_database_dies_while_segments_are_deleted(
    partition: Partition, server: Server
) -> None:
    partition.produce(MANY_RECORDS)
    partition.wait_until_moved()
    segments = len(partition.rows())
    partition.deployment.cluster.delete_records(partition.name.topic, 0, MANY_RECORDS // 2)
    eventually(lambda: len(partition.rows()) < segments, DEADLINE_MS)
    server.kill()
    server.start()

    def below_the_log_start_is_gone() -> None:
        assert min(row.end_offset for row in partition.rows()) >= MANY_RECORDS // 2
        assert len(partition.objects()) == len(partition.rows())

    eventually_holds(below_the_log_start_is_gone, DEADLINE_MS)
    read = partition.read()
    assert [r.offset for r in read] == list(range(MANY_RECORDS // 2, MANY_RECORDS))
    assert {row.state for row in partition.rows()} == {FINISHED}
    assert_nothing_wrong(partition)
