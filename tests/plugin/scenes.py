"""What happens to three brokers that tier through the plugin, scene by scene."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from operator import gt
from uuid import UUID

from services.api.offset_queries import SpecialTime
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.local.stack import ServiceProcess
from tests.harness.eventually import eventually
from tests.harness.faults import Direction, Stall
from tests.harness.proxy import TcpProxy
from tests.harness.world import World
from tests.kafka.constant_consumer import ConstantConsumer
from tests.kafka.records import SeenRecord
from tests.kafka.traffic import Acknowledged
from tests.plugin.deployment import served_calls
from tests.plugin.replicated import NODES, ClusterDeployment, ReplicatedPartition
from tests.plugin.seen import ISOLATION_LEVELS
from tests.plugin.tiered_partition import DEADLINE_MS

SEGMENT_BYTES = 32_768
STALLED_AFTER_BYTES = SEGMENT_BYTES // 2
STORM_ROUNDS = 4
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
CALLED_IN_COPIES = ("CopyLogSegmentData", "AddRemoteLogSegmentMetadata")
"""A method of RSM and one of RLMM."""


@dataclass(frozen=True)
class Scene:
    """Where the story happens.

    Attributes:
        worlds: two with an RSM and an RLMM each, over the same data. Brokers have the addresses of
            all four; the first is the deployment's.
        ways_to_rsms: each broker's own, one to each RSM.
    """

    deployment: ClusterDeployment
    worlds: Sequence[World]
    ways_to_rsms: Sequence[Sequence[TcpProxy]]
    partitions: Sequence[ReplicatedPartition]


@dataclass
class Story:
    """What happened.

    Attributes:
        copied_by_both: segments that a leader had begun to copy when another took over, and that
            the other has copied.
        first_offsets_after_wipe: of each partition, the latest tiered offset before a broker's disk
            was wiped, and the first that the broker fetched again.
        as_led_by: what clients read at the end by isolation level, with each broker as leader.
        without_the_lost, unclean_reads: the values that an unclean election spared, and what was
            read of its partition, with each broker as leader.
        errors_in_the_roll: what brokers said while the services were rolled, one pair at a time.
        reconciled: the report of `sediment reconcile`.
    """

    partitions: Sequence[ReplicatedPartition]
    acknowledged: list[Acknowledged] = field(default_factory=list)
    consumers: list[ConstantConsumer] = field(default_factory=list)
    copied_by_both: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    first_offsets_after_wipe: list[tuple[int, int]] = field(default_factory=list)
    as_led_by: dict[tuple[str, str], list[list[SeenRecord]]] = field(default_factory=dict)
    without_the_lost: list[bytes] = field(default_factory=list)
    unclean_reads: list[list[bytes | None]] = field(default_factory=list)
    errors_in_the_roll: list[str] = field(default_factory=list)
    reconciled: dict[str, object] = field(default_factory=dict)


def move_leader_while_it_copies(
    scene: Scene, partition: ReplicatedPartition
) -> RemoteLogSegmentMetadata:
    """Hold a leader's copy in the middle, and let another replica lead.

    Answers what both have begun to copy and the second has finished.
    """
    leader = partition.leader
    other = next(node for node in NODES if node != leader)
    ways = scene.ways_to_rsms[leader - 1]
    for way in ways:
        way.faults.add(Stall(STALLED_AFTER_BYTES, Direction.REQUEST), times=None)
        way.cut_connections()
    before = {row.remote_log_segment_id.id for row in partition.rows()}
    held = eventually(lambda: held_copy(partition, leader, before), DEADLINE_MS)
    assert held is not None
    partition.lead(other)
    copied = eventually(lambda: copied_again(partition, held, other), DEADLINE_MS)
    assert copied is not None
    for way in ways:
        way.faults.clear()
        way.cut_connections()
    return copied


def held_copy(
    partition: ReplicatedPartition, leader: int, before: set[UUID]
) -> RemoteLogSegmentMetadata | None:
    for row in partition.rows():
        is_new = row.remote_log_segment_id.id not in before
        if is_new and row.state is STARTED and row.broker_id == leader:
            return row
    return None


def copied_again(
    partition: ReplicatedPartition, held: RemoteLogSegmentMetadata, other: int
) -> RemoteLogSegmentMetadata | None:
    for row in partition.finished():
        if row.start_offset == held.start_offset and row.broker_id == other:
            return row
    return None


def kill_a_leader(scene: Scene) -> None:
    partition = scene.partitions[0]
    leader = partition.leader
    broker = scene.deployment.brokers.broker(leader)
    broker.kill()
    name = partition.name
    scene.deployment.admin.wait_for_leader(name.topic, name.partition, other_than=leader)
    wait_until_copying_continues(scene)
    broker.start()
    wait_until_in_sync(scene)


def wipe_a_leader(scene: Scene) -> list[tuple[int, int]]:
    """Empty a leader's disk, when no broker has on its disk what the tier has now.

    Answers for each partition the latest tiered offset before, and the first local one after it.
    """
    leader = scene.partitions[1].leader
    tiered = [partition.offset(SpecialTime.LATEST_TIERED) for partition in scene.partitions]

    def tiered_has_left_the_disks() -> bool:
        return all(
            partition.local_start(node_id) > latest
            for partition, latest in zip(scene.partitions, tiered, strict=True)
            for node_id in NODES
        )

    eventually(tiered_has_left_the_disks, DEADLINE_MS)
    scene.deployment.brokers.wipe(leader)
    wait_until_in_sync(scene)
    starts = [partition.local_start(leader) for partition in scene.partitions]
    return list(zip(tiered, starts, strict=True))


def elect_preferred_leaders_in_a_storm(scene: Scene) -> None:
    for number in range(STORM_ROUNDS):
        for partition in scene.partitions:
            partition.lead(NODES[(number + partition.name.partition) % len(NODES)])


def reassign_to_fewer_and_back(scene: Scene) -> None:
    for partition in scene.partitions:
        leader = partition.leader
        first, second = (node for node in NODES if node != leader)
        partition.reassign([first, second])
        partition.reassign([second, leader, first])


def lose_records_by_an_unclean_election(scene: Scene, story: Story) -> None:
    """Broker 1 writes and tiers records that broker 2 does not have, which then leads."""
    brokers = scene.deployment.brokers
    first, second = brokers.broker(1), brokers.broker(2)
    (partition,) = scene.deployment.create(
        "unclean", [(1, 2)], min_insync_replicas="1", local_retention_bytes="1"
    )
    kept = partition.produce()
    partition.wait_until_in_sync(2)
    second.stop()
    partition.produce()
    partition.wait_until_tiered()
    first.kill()
    second.start()
    scene.deployment.admin.elect_unclean(partition.name.topic, 0, second.node_id)
    story.without_the_lost = kept + partition.produce()
    first.start()
    partition.wait_until_in_sync(2)
    for node_id in (1, 2):
        partition.lead(node_id)
        partition.wait_until_moved()
        story.unclean_reads.append([record.value for record in partition.read()])
    wait_until_in_sync(scene)
    scene.deployment.cluster.delete(partition.name.topic)
    partition.wait_until_nothing_is_left()


def stop_all_services(scene: Scene) -> None:
    """Stop every RSM, then every RLMM, and start them again: the brokers wait."""
    for services in zip(*map(pair_of, scene.worlds), strict=True):
        at_once(ServiceProcess.stop, services)
        at_once(ServiceProcess.start, services)
        wait_until_copying_continues(scene)


def roll_services(scene: Scene, story: Story) -> None:
    """Stop one pair after the other, each until brokers call it again: no call fails."""
    logs = [broker.directory / "broker.log" for broker in scene.deployment.brokers.brokers]
    said_before = [len(log.read_text()) for log in logs]
    for world, other in (scene.worlds, scene.worlds[::-1]):
        pair = pair_of(world)
        at_once(ServiceProcess.stop, pair)
        wait_until_copying_continues(scene, other)
        at_once(ServiceProcess.start, pair)
        for service, method in zip(pair, CALLED_IN_COPIES, strict=True):
            eventually(partial(served_calls, service, method), DEADLINE_MS)
    for log, before in zip(logs, said_before, strict=True):
        lines = log.read_text()[before:].splitlines()
        story.errors_in_the_roll += [
            line for line in lines if " ERROR " in line or " does not serve" in line
        ]


def pair_of(world: World) -> tuple[ServiceProcess, ServiceProcess]:
    return world.rsm, world.rlmm


def at_once(act: Callable[[ServiceProcess], None], services: Sequence[ServiceProcess]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(act, services))


def settle(scene: Scene, story: Story, leaders: Sequence[int]) -> None:
    """Let the brokers finish what they have to do; read all of it with these of them as leaders."""
    for partition in scene.partitions:
        for node_id in leaders:
            partition.lead(node_id)
            partition.wait_until_stable()
            partition.wait_until_moved()
            for level in ISOLATION_LEVELS:
                reads = story.as_led_by.setdefault((str(partition), level), [])
                reads.append(partition.read(level))
    done = scene.deployment.world.sediment(
        "reconcile", "--grace", "0", "--rsm", scene.deployment.world.rsm.address, "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    story.reconciled = json.loads(done.stdout)


def wait_until_in_sync(scene: Scene) -> None:
    for partition in scene.partitions:
        partition.wait_until_in_sync()


def wait_until_copying_continues(scene: Scene, world: World | None = None) -> None:
    """Wait until each partition has another finished segment, as a world's RLMM tells."""
    asked = replace(scene.deployment, world=world or scene.deployment.world)
    partitions = [replace(partition, deployment=asked) for partition in scene.partitions]

    def counts() -> list[int]:
        return [len(partition.finished()) for partition in partitions]

    before = counts()
    eventually(lambda: all(map(gt, counts(), before)), DEADLINE_MS)
