"""RLMs of three brokers trim: what the tier lacks stays, whatever comes between, and followers
follow."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import psutil
import pytest

from services.api.remote_log_manager import PartitionRole
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import list_segments
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Topic
from tests.harness.processes import run_until_killed, start_with_failpoint
from tests.kafka.records import SeenRecord, consumed, fetched
from tests.kafka.sidecar import DEADLINE_MS
from tests.kafka.test_local_retention import OWNER, SEGMENT_BYTES, Kept
from tests.kafka.three_brokers import NODES, SPARE, Scene, running_scene
from tests.kafka.tiered_broker import produce_segments, ranges_on_disk, rolled

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

TRIMMING = (f"{OWNER}=rlm", "local.retention.ms=0")
COPY_DISABLE = "remote.log.copy.disable"
TRIMMED_BYTES = "sediment_rlm_local_trimmed_bytes_total"
SLOW = {"replica.fetch.wait.max.ms": "25000"}
"""A follower that learns of a new log start late, and keeps DeleteRecords waiting."""
LAST_PASS_S = 'sediment_rlm_seconds_since_last_success{partition="",pool="trims"'


@pytest.fixture(scope="module")
def scene(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_scene(store, tmp_path_factory.mktemp("brokers"), 0.0, SLOW) as made:
        yield made


def created(scene: Scene, topic: Topic, replicas: tuple[int, ...]) -> Kept:
    """Make a topic, and write to it; the result is beside its leader."""
    (name,) = scene.create(topic, [replicas])
    kept = Kept(scene.sidecar(replicas[0]), topic, name)
    kept.produce()
    return kept


def beside(kept: Kept, scene: Scene, node_id: int) -> Kept:
    return replace(kept, sidecar=scene.sidecar(node_id))


def starts_on_disk(kept: Kept, scene: Scene) -> Mapping[int, int]:
    """Return where each broker's files of the partition begin."""
    return {
        node: list_segments(
            find_partitions(scene.brokers.broker(node).log_dirs).partitions[kept.name].path
        )[0].base_offset
        for node in NODES
    }


def rolled_end(kept: Kept) -> int:
    return ranges_on_disk(kept.folder)[-1][1] + 1


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def assert_trimmed(kept: Kept, copied: int) -> None:
    assert kept.sidecar.local_start(kept.name) == copied


def assert_read(kept: Kept, records: list[SeenRecord]) -> None:
    kept.sidecar.describe(kept.name)  # once it is back
    assert fetched(kept.sidecar.rlm, kept.name, 0) == records


def asleep_before_a_trim(kept: Kept, scene: Scene, place: str) -> int:
    """Let the leader's RLM decide on records that no other broker has; return its pid, stopped."""
    scene.admin.wait_until_in_sync(kept.name.topic, 0, 2)
    scene.brokers.broker(3).stop()
    kept.produce()
    copied = kept.wait_until_copied()
    process = kept.sidecar.process
    process.kill()
    start_with_failpoint(process, place, signal="STOP")
    done = beside(kept, scene, 1).set(*TRIMMING)
    assert done.returncode == 0, done.stderr
    eventually(lambda: is_stopped(process.pid), DEADLINE_MS)
    assert kept.trim_offset() == copied
    assert_trimmed(kept, 0)
    return process.pid


def elect_the_other(kept: Kept, scene: Scene) -> None:
    """Let the replica lead that lacks records, and write others at their offsets.

    Its RLM is away, so that nothing of that gets into the tier.
    """
    scene.sidecar(3).process.kill()
    scene.brokers.broker(3).start()
    scene.admin.elect_unclean(kept.name.topic, 0, 3)
    beside(kept, scene, 3).produce()


def wake(kept: Kept, pid: int) -> None:
    """Let an RLM go on; return after a pass of its trims that began asleep, or later."""
    woken_s = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    eventually(
        lambda: 0 < kept.metric(LAST_PASS_S) < time.monotonic() - woken_s, DEADLINE_MS, poll_ms=100
    )


def elected(name: str) -> Topic:
    return Topic(name, 1, SEGMENT_BYTES, {"min.insync.replicas": "1"})


def test_a_trim_decided_before_two_unclean_elections_deletes_nothing(scene: Scene) -> None:
    kept = created(scene, elected("elected-twice"), (2, 3))
    pid = asleep_before_a_trim(kept, scene, "trim.recorded")
    scene.brokers.broker(2).kill()
    elect_the_other(kept, scene)
    scene.brokers.broker(2).start()
    scene.admin.wait_until_in_sync(kept.name.topic, 0, 2)
    scene.admin.elect_preferred(kept.name.topic, 0)
    records, end = consumed(scene.cluster, kept.name), rolled_end(kept)
    commands = beside(kept, scene, 1)
    done = commands.set(f"{COPY_DISABLE}=true", "local.retention.ms=-2")
    assert done.returncode == 0, done.stderr
    wake(kept, pid)
    assert consumed(scene.cluster, kept.name) == records
    assert commands.set(f"{COPY_DISABLE}=false", TRIMMING[1]).returncode == 0
    eventually_holds(lambda: assert_trimmed(kept, end), DEADLINE_MS)
    eventually_holds(lambda: assert_read(kept, records), DEADLINE_MS)
    scene.sidecar(3).process.start()


def test_a_broker_that_leads_no_more_refuses_a_trim(scene: Scene) -> None:
    kept = created(scene, elected("elected-once"), (2, 3))
    pid = asleep_before_a_trim(kept, scene, "trim.checked")
    broker = scene.brokers.broker(2)
    os.kill(broker.pid, signal.SIGSTOP)  # the connection of the request lives on
    try:
        elect_the_other(kept, scene)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    scene.admin.wait_until_in_sync(kept.name.topic, 0, 2)
    new = beside(kept, scene, 3)
    records, end = consumed(scene.cluster, kept.name), rolled_end(new)
    wake(kept, pid)
    assert consumed(scene.cluster, kept.name) == records
    new.sidecar.process.start()
    eventually_holds(lambda: assert_trimmed(new, end), DEADLINE_MS)
    eventually_holds(lambda: assert_read(new, records), DEADLINE_MS)


@pytest.mark.parametrize("place", ["trim.recorded", "trim.checked"])
def test_a_killed_rlm_trims_when_it_is_back(scene: Scene, place: str) -> None:
    kept = created(scene, Topic(place.replace(".", "-"), 1, SEGMENT_BYTES), NODES)
    records = consumed(scene.cluster, kept.name)
    copied = kept.wait_until_copied()
    process = kept.sidecar.process
    process.kill()
    done = beside(kept, scene, 2).set(*TRIMMING)
    assert done.returncode == 0, done.stderr
    run_until_killed(process, place)
    assert_trimmed(kept, 0)
    process.start()
    eventually_holds(lambda: assert_trimmed(kept, copied), DEADLINE_MS)
    assert_read(kept, records)


def test_followers_follow_and_the_tier_begins_where_it_did(scene: Scene) -> None:
    kept = created(scene, Topic("followed", 1, SEGMENT_BYTES), NODES)
    records = consumed(scene.cluster, kept.name)
    by_followers = [beside(kept, scene, node).metric(TRIMMED_BYTES) for node in (2, 3)]
    copied = kept.wait_until_copied()
    assert kept.set(*TRIMMING).returncode == 0
    eventually_holds(lambda: assert_trimmed(kept, copied), DEADLINE_MS)
    expected = dict.fromkeys(NODES, copied)
    eventually(lambda: starts_on_disk(kept, scene) == expected, DEADLINE_MS)
    assert [beside(kept, scene, n).metric(TRIMMED_BYTES) for n in (2, 3)] == by_followers
    scene.admin.lead(kept.name.topic, 0, 2)
    for sidecar in scene.sidecars:
        sidecar.process.kill()
    for sidecar in scene.sidecars:
        sidecar.process.start()
    moved = beside(kept, scene, 2)

    def leads() -> None:
        seen = moved.sidecar.describe(kept.name)
        assert (seen.role, seen.local_log_start_offset) == (PartitionRole.LEADER, copied)

    eventually_holds(leads, DEADLINE_MS)
    moved.produce()
    eventually(lambda: moved.sidecar.local_start(kept.name) > copied, DEADLINE_MS)
    assert moved.log_start() == 0
    for node in NODES:
        assert fetched(scene.sidecar(node).rlm, kept.name, 0)[: len(records)] == records


def test_a_trim_that_runs_out_of_time_is_found_done(scene: Scene) -> None:
    slow = scene.brokers.broker(SPARE)
    slow.start()
    kept = created(scene, Topic("runs-out-of-time", 1, SEGMENT_BYTES), (1, SPARE))
    copied = kept.wait_until_copied()
    gone_bytes = sum(segment.size_bytes for segment in rolled(kept.folder))
    process = kept.sidecar.process
    process.kill()
    start_with_failpoint(process, "trim.recorded", signal="STOP")
    done = beside(kept, scene, 2).set(*TRIMMING)
    assert done.returncode == 0, done.stderr
    eventually(lambda: is_stopped(process.pid), DEADLINE_MS)
    produce_segments(scene.cluster, kept.topic, records=1)  # the follower's wait begins anew
    os.kill(process.pid, signal.SIGCONT)
    eventually(lambda: kept.metric(TRIMMED_BYTES) == gone_bytes, DEADLINE_MS)
    text = process.process.log_path.read_text()
    assert f"{kept.name}: perhaps trimmed: RequestTimedOut" in text
    assert text.count("the broker's log begins at offset") == 1
    assert_trimmed(kept, copied)
    slow.stop()
