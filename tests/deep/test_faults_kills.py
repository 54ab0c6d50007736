"""Kill -9 an RLM in what test_kill_and_rerun.py and its like do not come to: a loss that is
recorded, a topic that is given up."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery, OffsetGap
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    PartitionRole,
    PartitionStops,
    RemoteLogManager,
    StopPartition,
    StopReason,
)
from services.api.remote_log_metadata_manager import all_events
from services.common.client_security import PLAINTEXT
from services.common.failpoints import FAILPOINTS
from services.local.stack import ServiceProcess, rlm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.behaviour.test_lost_before_copy import lose_before_copy
from tests.deep.test_kill_and_rerun import KILLED, rlm_service
from tests.harness.eventually import eventually
from tests.harness.processes import (
    kill_and_restart,
    run_until_killed,
    start_with_failpoint,
    wait_until_dead,
)
from tests.harness.variants import first_of
from tests.harness.world import COPY_LEASE_MS, FINISHED, World, name_topics_anew
from tests.unit.rlm.kafka_bytes import PartitionFiles, three_segments, write_log_dir

GAPS = [name for name in FAILPOINTS if name.startswith("gap.")]
DELETION = [name for name in FAILPOINTS if name.startswith("deletion.")]
EPOCH = 5


@pytest.fixture
def losing(world: World, tmp_path: Path) -> PartitionFiles:
    """Of the world's only partition offsets 20 to 24 are lost: rolled, and deleted uncopied."""
    world.log_dir = write_log_dir(tmp_path / "losing")
    files = three_segments(world.log_dir)
    name_topics_anew(world.log_dir)
    world.ship()
    lose_before_copy(files, 25)
    return files


def the_partition(world: World) -> TopicIdPartition:
    (name,) = world.local_segments()
    return name


def assert_lost_once(world: World) -> None:
    name = the_partition(world)
    with world.metadata() as rlmm:
        assert rlmm.partition_state(name).value.gaps == (OffsetGap(20, 24),)
        kinds = [event.kind for event in all_events(rlmm, EventQuery(name))]
    assert kinds.count("GAP") == 1
    assert [row.start_offset for row in world.rows()] == [0, 10, 25]
    assert len(world.object_keys()) == 3 * 3
    world.assert_invariants()


@pytest.mark.parametrize("name", GAPS)
def test_ship_killed_while_it_records_a_loss(
    world: World, losing: PartitionFiles, name: str
) -> None:
    with world.start_shipping(failpoint=name) as process:
        assert process.wait(60) == KILLED
    world.ship()
    assert_lost_once(world)


@pytest.mark.parametrize("name", GAPS)
def test_rlm_killed_while_it_records_a_loss(
    world: World, losing: PartitionFiles, tmp_path: Path, name: str
) -> None:
    with rlm_service(world, tmp_path) as rlm:
        run_until_killed(rlm, name)
        kill_and_restart(rlm)
        eventually(lambda: [row.state for row in world.rows()] == [FINISHED] * 3, 60_000)
    assert_lost_once(world)


@contextmanager
def reported(rlm: ServiceProcess) -> Iterator[RemoteLogManager]:
    with open_channel(rlm.address, PLAINTEXT) as channel:
        yield RemoteLogManagerClient(channel, rlm.address)


def lead_all(manager: RemoteLogManager, world: World) -> None:
    changes = [LeadershipChange(n, EPOCH, PartitionRole.LEADER) for n in world.local_segments()]
    assert not any(manager.on_leadership_change(LeadershipDelta(tuple(changes))))


def disable_all(manager: RemoteLogManager, world: World) -> None:
    """As a broker whose topics are not to be tiered any more; again where a copy pass has changed
    a partition meanwhile."""
    stops = [StopPartition(n, EPOCH, StopReason.TIERING_DISABLED) for n in world.local_segments()]
    eventually(lambda: not any(manager.stop_partitions(PartitionStops(tuple(stops)))), 30_000)


@pytest.mark.parametrize("name", first_of(DELETION))
def test_rlm_killed_while_it_deletes_a_disabled_topic(
    world: World, tmp_path: Path, name: str
) -> None:
    world.ship()
    world.set_retention({"remote.log.delete.on.disable": "true"})
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [world.log_dir], 200)
    settings |= {"RLM_PARTITION_SOURCE": "callbacks", "RLM_COPY_LEASE_MS": str(COPY_LEASE_MS)}
    rlm = ServiceProcess("rlm", settings, tmp_path / "rlm")
    try:
        start_with_failpoint(rlm, name)
        with reported(rlm) as manager:
            lead_all(manager, world)
            with suppress(RetriableRemoteStorageError):  # it dies of the call, or after it
                disable_all(manager, world)
        wait_until_dead(rlm)
        # RLMM may confirm the deletions of all partitions in one transaction.
        assert world.rows() or name == "deletion.confirmed_some"
        # The client that disabled the topic repeats its calls.
        kill_and_restart(rlm)
        with reported(rlm) as manager:
            lead_all(manager, world)
            disable_all(manager, world)
        eventually(lambda: not world.rows() and not world.object_keys(), deadline_ms=60_000)
        world.assert_invariants()
    finally:
        rlm.kill()
