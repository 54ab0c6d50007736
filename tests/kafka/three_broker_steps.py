"""What happens to three brokers and the RLMs beside them: a table of steps, and their driver."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.faults import Direction, Stall
from tests.harness.kafka_client import NOW, Record, Topic, send_batch
from tests.kafka.sidecar import DEADLINE_MS
from tests.kafka.three_brokers import NODES, SEGMENT_BYTES, SPARE, Actor, Scene
from tests.kafka.tiered_broker import FINISHED

STALLED_AFTER_BYTES = SEGMENT_BYTES // 2
STORM_ROUNDS = 4
LOST_SEGMENTS = 3
SPARE_LEADS_FOR_RECORDS = 200
DOOMED_SEGMENTS = 3
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@dataclass(frozen=True)
class Step:
    """
    Attributes:
        act: what happens.
        holds: waits until what must hold after it does, and fails if it does not.
    """

    name: str
    act: Callable[[Scene, random.Random], None]
    holds: Callable[[Scene], None]


def play(scene: Scene, steps: Sequence[Step], chance: random.Random) -> Iterator[tuple[str, float]]:
    """Take one step after the other, and trim the brokers' logs; yields what each took, seconds."""
    for step in steps:
        began_s = time.monotonic()
        try:
            step.act(scene, chance)
            step.holds(scene)
        except Exception as e:
            e.add_note(f"in the step: {step.name}")
            raise
        for actor in scene.clean:
            scene.trim(actor)
        yield step.name, time.monotonic() - began_s


def all_is_well(scene: Scene) -> None:
    """Every replica is in sync, and the tier gets more of each partition."""
    scene.wait_until_in_sync()
    scene.wait_until_copying_continues()


# --- leaders ----------------------------------------------------------------------------------


def move_leader_in_mid_copy_both_ways(scene: Scene, chance: random.Random) -> None:
    """The new leader's RLM copies what the old one's holds half sent; and back."""
    actor = chance.choice(scene.clean)
    for _ in range(2):
        first = scene.leader(actor)
        second = scene.other_than(actor, first)
        with held_copy(scene, actor, first) as held:
            scene.lead(actor, second)
            eventually(partial(has_copied, scene, actor, held, second), DEADLINE_MS)


def pause_an_rlm_over_a_change(scene: Scene, chance: random.Random) -> None:
    """It stands still in the middle of a copy, and is no leader's when it goes on."""
    actor = chance.choice(scene.clean)
    first = scene.leader(actor)
    second = scene.other_than(actor, first)
    pid = scene.sidecar(first).process.pid
    with held_copy(scene, actor, first) as held:
        os.kill(pid, signal.SIGSTOP)
        try:
            scene.lead(actor, second)
            eventually(partial(has_copied, scene, actor, held, second), DEADLINE_MS)
        finally:
            os.kill(pid, signal.SIGCONT)


def elect_in_a_storm(scene: Scene, chance: random.Random) -> None:
    for _ in range(STORM_ROUNDS):
        for actor in scene.clean:
            scene.lead(actor, chance.choice([n for n in NODES if n != scene.leader(actor)]))


def lose_records_in_an_unclean_election(scene: Scene, _: random.Random) -> None:
    """A leader writes and tiers records that the other replica does not have, which then leads.

    What Kafka loses then is what the new leader's log lacks: that is read before anything is
    written to it. Everything else must come back from each RLM.
    """
    (actor,) = scene.unclean
    first = scene.leader(actor)
    second = scene.other_than(actor, first)
    ahead, behind = scene.brokers.broker(first), scene.brokers.broker(second)
    scene.wait_until_copying_continues(actor)
    behind.stop()
    before = actor.truth.read_on()

    def has_tiered_what_the_other_lacks() -> bool:
        actor.truth.read_on()
        later = [row for row in scene.finished(actor) if row.start_offset > before]
        return len(later) >= LOST_SEGMENTS

    eventually(has_tiered_what_the_other_lacks, DEADLINE_MS, poll_ms=200)
    with actor.traffic.paused():
        actor.truth.read_on()
        ahead.kill()
        behind.start()
        scene.admin.elect_unclean(actor.name.topic, actor.name.partition, second)
        scene.moves += 1
        lost = actor.truth.follow()
        assert lost
        actor.lost.update(lost)
        ahead.start()
        scene.wait_until_in_sync(actor)


# --- brokers ----------------------------------------------------------------------------------


def kill_a_leader(scene: Scene, chance: random.Random) -> None:
    actor = chance.choice(scene.clean)
    leader = scene.leader(actor)
    broker = scene.brokers.broker(leader)
    broker.kill()
    name = actor.name
    scene.admin.wait_for_leader(name.topic, name.partition, other_than=leader)
    scene.wait_until_copying_continues(actor)
    broker.start()


def wipe_a_leader(scene: Scene, chance: random.Random) -> None:
    """Its disk is empty, its RLM runs on, and it leads again with the log that it fetches."""
    actor = chance.choice(scene.clean)
    leader = scene.leader(actor)
    scene.brokers.wipe(leader)
    scene.wait_until_in_sync()
    scene.lead(actor, leader)


def reassign_to_a_fourth_and_back(scene: Scene, chance: random.Random) -> None:
    """The fourth broker leads for a while, with no RLM beside it: nothing is copied then."""
    actor = chance.choice(scene.clean)
    name = actor.name
    before = scene.admin.replicas(name.topic, name.partition).assigned
    spare = scene.brokers.broker(SPARE)
    spare.start()
    scene.admin.reassign(name.topic, name.partition, (SPARE, *before[1:]))
    scene.lead(actor, SPARE)
    end = actor.truth.read_on() + SPARE_LEADS_FOR_RECORDS
    eventually(lambda: actor.truth.read_on() >= end, DEADLINE_MS, poll_ms=200)
    scene.admin.reassign(name.topic, name.partition, before)
    scene.lead(actor, before[0])
    spare.stop()


# --- services ---------------------------------------------------------------------------------


def roll_rlmm_and_rsm(scene: Scene, _: random.Random) -> None:
    for service in (scene.world.rlmm, scene.world.rsm):
        service.stop()
        service.start()
        scene.wait_until_copying_continues()


_doomed = count()


def delete_a_topic_while_no_rlm_runs(scene: Scene, chance: random.Random) -> None:
    topic = Topic(f"doomed-{next(_doomed)}", 1, SEGMENT_BYTES)
    (name,) = scene.create(topic, [NODES])
    with scene.cluster.idempotent("none") as producer:
        for _ in range(4 * DOOMED_SEGMENTS):
            value = chance.randbytes(SEGMENT_BYTES // 3)
            send_batch(producer, topic, 0, [Record(b"key", value, NOW)])
    eventually(lambda: len(finished_rows(scene, name)) >= DOOMED_SEGMENTS, DEADLINE_MS)
    for sidecar in scene.sidecars:
        sidecar.process.kill()
    scene.cluster.delete(topic.name)
    for sidecar in scene.sidecars:
        sidecar.process.start()

    def is_gone() -> None:
        assert scene.rows(name) == []
        assert scene.objects(name) == []

    eventually_holds(is_gone, DEADLINE_MS, poll_ms=200)


def finished_rows(scene: Scene, name: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    return [row for row in scene.rows(name) if row.state is FINISHED]


STEPS = {
    step.name: step
    for step in (
        Step("leader moved in mid-copy both ways", move_leader_in_mid_copy_both_ways, all_is_well),
        Step("broker killed and restarted", kill_a_leader, all_is_well),
        Step("disk wiped", wipe_a_leader, all_is_well),
        Step("unclean election", lose_records_in_an_unclean_election, all_is_well),
        Step("reassigned to a fourth broker and back", reassign_to_a_fourth_and_back, all_is_well),
        Step("preferred leaders elected in a storm", elect_in_a_storm, all_is_well),
        Step("RLM paused over a leadership change", pause_an_rlm_over_a_change, all_is_well),
        Step("RLMM and RSM rolled", roll_rlmm_and_rsm, all_is_well),
        Step("topic deleted while no RLM runs", delete_a_topic_while_no_rlm_runs, all_is_well),
    )
}


# --- copies that are held -----------------------------------------------------------------------


@contextmanager
def held_copy(scene: Scene, actor: Actor, node_id: int) -> Iterator[RemoteLogSegmentMetadata]:
    """Hold the next copy of an RLM after half a segment; its reads of the tier wait, too."""
    way = scene.ways[node_id - 1]
    before = {row.remote_log_segment_id.id for row in scene.rows(actor.name)}
    seen: set[UUID] = set()
    way.faults.add(Stall(STALLED_AFTER_BYTES, Direction.REQUEST), times=None)
    way.cut_connections()
    try:
        yield eventually(partial(_held, scene, actor, node_id, before, seen), DEADLINE_MS, 500)[0]
    finally:
        way.faults.clear()
        way.cut_connections()


def _held(
    scene: Scene, actor: Actor, node_id: int, before: set[UUID], seen: set[UUID]
) -> list[RemoteLogSegmentMetadata]:
    """Return the new copies that had begun when this was last called; a small tail goes through."""
    begun = [
        row
        for row in scene.rows(actor.name)
        if row.state is STARTED
        and row.broker_id == node_id
        and row.remote_log_segment_id.id not in before
    ]
    held = [row for row in begun if row.remote_log_segment_id.id in seen]
    seen.update(row.remote_log_segment_id.id for row in begun)
    return held


def has_copied(scene: Scene, actor: Actor, held: RemoteLogSegmentMetadata, node_id: int) -> bool:
    """Return whether this broker's RLM has copied where another's copy begins."""
    return any(
        row.state is FINISHED
        and row.broker_id == node_id
        and row.start_offset <= held.start_offset <= row.end_offset
        for row in scene.rows(actor.name)
    )
