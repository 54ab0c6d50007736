"""Three brokers, an RLM beside each: leaders move, brokers die and lose their disks, services come
and go, and every reader gets each acknowledged record once.

All of it happens in the fixture `story`, beside producers and readers that never rest. Its counts
are printed at the end of the run. What an unclean election may lose, the new leader's log says.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from uuid import UUID

import pytest

from services.api.ids import TopicIdPartition, is_tail_uuid
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.api.retention import DeletionReason
from services.api.segments import RemoteLogSegmentMetadata
from services.api.superseded import is_tail
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Cluster
from tests.kafka.constant_consumer import ConstantConsumer
from tests.kafka.read_log import Content, content_of
from tests.kafka.records import SeenRecord, of_message
from tests.kafka.sidecar import DEADLINE_MS
from tests.kafka.three_broker_steps import STEPS, Step, play
from tests.kafka.three_brokers import NODES, SEED, Actor, Scene, running_scene
from tests.kafka.tiered_broker import FINISHED
from tests.kafka.whole_log import LogReader

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600)]

LEVELS = ("read_uncommitted", "read_committed")
OBJECTS_OF_A_SEGMENT = 3
LEAST_RECORDS = 200
SHORT = (
    "leader moved in mid-copy both ways",
    "unclean election",
    "broker killed and restarted",
    "topic deleted while no RLM runs",
)


@dataclass(frozen=True)
class Plot:
    """
    Attributes:
        rounds: the steps, a shuffled order of each round's.
        pause_s: of producers, between two batches.
        rest_s: of consumers, between two reads of everything.
        has_tails: records are copied before their segments roll, too.
    """

    rounds: Sequence[Sequence[Step]]
    pause_s: float
    rest_s: float
    has_tails: bool


IN_BRIEF = Plot([[STEPS[name] for name in SHORT]], pause_s=0.2, rest_s=2.0, has_tails=False)
AT_LENGTH = Plot([list(STEPS.values())] * 2, pause_s=0.4, rest_s=15.0, has_tails=True)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(IN_BRIEF, id="in brief"),
        pytest.param(AT_LENGTH, id="at length", marks=pytest.mark.long),
    ],
)
def plot(request: pytest.FixtureRequest) -> Plot:
    chosen: Plot = request.param
    return chosen


@pytest.fixture(scope="module")
def scene(plot: Plot, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_scene(store, tmp_path_factory.mktemp("brokers"), plot.pause_s) as made:
        if plot.has_tails:
            made.copy_tails()
        yield made


@dataclass
class Story:
    """What came of it.

    Attributes:
        readers: over gRPC, one for each RLM, of all partitions.
        consumers: of each RLM's listener, one for each clean partition.
        contents: what the leaders' logs have, by partition.
        final: what each RLM's listener gave at the end, by node id, partition and isolation level.
        rows: of each partition, in any state.
        seconds: what each step took, in its order.
    """

    readers: dict[int, LogReader]
    consumers: list[ConstantConsumer]
    seconds: list[tuple[str, float]] = field(default_factory=list)
    contents: dict[TopicIdPartition, Content] = field(default_factory=dict)
    final: dict[tuple[int, TopicIdPartition, str], list[SeenRecord]] = field(default_factory=dict)
    rows: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(plot: Plot, scene: Scene) -> Story:
    chance = random.Random(SEED)
    names = [actor.name for actor in scene.actors]
    unclean = [actor.name for actor in scene.unclean]
    readers = {n: LogReader(scene.sidecar(n).rlm, names, unclean) for n in NODES}
    consumers = [
        ConstantConsumer(
            Cluster(scene.sidecar(node).listener),
            actor.name,
            LEVELS[(node + actor.name.partition) % 2],
            plot.rest_s,
        )
        for node in NODES
        for actor in scene.clean
    ]
    story = Story(readers, consumers)
    with ExitStack() as reading:
        for each in (*readers.values(), *consumers):
            reading.enter_context(each)
        with ExitStack() as writing:
            for actor in scene.actors:
                writing.enter_context(actor.traffic)
            for steps in plot.rounds:
                for done in play(scene, chance.sample(steps, len(steps)), chance):
                    story.seconds.append(done)
                    assert [r.failures for r in readers.values()] == [[]] * len(NODES), done
                    assert {f for c in consumers for f in c.failures} == set(), done
            for actor in scene.actors:
                with actor.traffic.paused():  # The last transaction of each has its end.
                    pass
        began_s = time.monotonic()
        settle(scene, story)
        story.seconds.append(("settled and read", time.monotonic() - began_s))
    return story


def settle(scene: Scene, story: Story) -> None:
    """Let each broker lead each partition, so that its RLM finishes what it began; read it all."""
    scene.wait_until_in_sync()
    for node in NODES:
        for actor in scene.actors:
            if node in scene.admin.replicas(actor.name.topic, actor.name.partition).assigned:
                scene.lead(actor, node)
                scene.wait_until_all_is_tiered(actor)
    for actor in scene.actors:
        # An RLM without the log has what is in the tier.
        end = scene.copied_end(actor) if actor in scene.unclean else actor.truth.end_offset
        for reader in story.readers.values():
            eventually(partial(has_read, reader, actor, end), DEADLINE_MS)
        story.contents[actor.name] = content_of(actor.truth.data)
        eventually_holds(partial(assert_nothing_is_under_way, scene, actor), DEADLINE_MS)
        story.rows[actor.name] = scene.rows(actor.name)
        for node in NODES:
            for level in LEVELS:
                listener = Cluster(scene.sidecar(node).listener)
                read = listener.read(actor.name.topic, actor.name.partition, level)
                story.final[node, actor.name, level] = [of_message(m) for m in read]


def has_read(reader: LogReader, actor: Actor, end_offset: int) -> bool:
    return bool(reader.failures) or reader.logs[actor.name].end_offset >= end_offset


def assert_nothing_is_under_way(scene: Scene, actor: Actor) -> None:
    """Nothing is half copied or half deleted, and no copy is left that another one makes needless;
    the leader's RLM passes twice a second."""
    assert {row.state for row in scene.rows(actor.name)} == {FINISHED}, actor
    assert superseded(scene.finished(actor)) == [], actor
    if scene.has_tails:
        assert scene.copied_end(actor, with_tails=True) == actor.truth.end_offset, actor


# --- readers ----------------------------------------------------------------------------------


def test_every_acknowledged_record_is_in_the_leaders_log_once(scene: Scene, story: Story) -> None:
    for actor in scene.actors:
        said, content = actor.traffic.acknowledged, story.contents[actor.name]
        sent = {at: r for at, r in said.records.items() if r.key not in actor.lost}
        assert len(sent) > LEAST_RECORDS, actor
        assert {at: content.records.get(at) for at in sent} == sent, actor
        assert set(Counter(r.key for r in content.records.values()).values()) == {1}, actor


def test_each_rlm_gave_the_leaders_bytes_once_and_in_order(scene: Scene, story: Story) -> None:
    for node, reader in story.readers.items():
        assert reader.failures == []
        for actor in scene.actors:
            read, truth = reader.logs[actor.name].data, actor.truth.data
            assert read == truth[: len(read)], (node, actor)
            if actor in scene.clean:
                assert len(read) == len(truth), (node, actor)


def test_each_listener_gives_the_records_of_the_leaders_log(scene: Scene, story: Story) -> None:
    for (node, name, level), read in story.final.items():
        content = story.contents[name]
        offsets = [record.offset for record in read]
        assert offsets == sorted(set(offsets)), (node, name, level)
        wanted = content.committed if level == "read_committed" else content.records.keys()
        is_whole = node in scene.admin.replicas(name.topic, name.partition).assigned
        expected = sorted(at for at in wanted if is_whole or at <= offsets[-1])
        assert offsets == expected, (node, name, level)
        for record in read:
            sent = content.records[record.offset]
            assert (record.key, record.value) == (sent.key, sent.value), (node, name)


def test_no_consumer_read_a_wrong_record_meanwhile(scene: Scene, story: Story) -> None:
    for consumer in story.consumers:
        assert consumer.failures == []
        assert consumer.passes > 0, consumer
        final = {r.offset: r for r in story.final[1, consumer.name, consumer.isolation_level]}
        assert consumer.seen.items() <= final.items(), consumer


def test_an_unclean_election_lost_only_what_the_new_leader_lacked(
    scene: Scene, story: Story
) -> None:
    for actor in scene.unclean:
        assert actor.lost
        has = {r.key for r in story.contents[actor.name].records.values()}
        assert actor.lost.isdisjoint(has), actor


# --- the tier ---------------------------------------------------------------------------------


def test_nothing_was_lost_before_it_was_copied(scene: Scene, story: Story) -> None:
    for actor in scene.actors:
        assert scene.sidecars[0].rlmm.partition_state(actor.name).value.gaps == (), actor
        last = max(row.end_offset for row in scene.finished(actor))
        assert scene.copied_end(actor, with_tails=True) == last + 1, actor


def test_each_segment_has_its_objects_and_no_object_is_without_a_row(
    scene: Scene, story: Story
) -> None:
    for actor in scene.actors:
        ids = [row.remote_log_segment_id.id.hex for row in story.rows[actor.name]]
        keys = scene.objects(actor.name)
        found = Counter(next((id_ for id_ in ids if id_ in key), key) for key in keys)
        assert found == dict.fromkeys(ids, OBJECTS_OF_A_SEGMENT), actor


def test_reconcile_finds_nothing(scene: Scene, story: Story) -> None:
    world = scene.world
    done = world.sediment("reconcile", "--grace", "0", "--rsm", world.rsm.address, "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["anomalies"].values()) == {0}, report


def test_several_rlms_have_copied_what_the_brokers_have_deleted(scene: Scene, story: Story) -> None:
    assert scene.trims > 0
    for actor in scene.clean:
        assert len({row.broker_id for row in scene.finished(actor)}) > 1, actor
    assert {row.broker_id for actor in scene.clean for row in scene.finished(actor)} == set(NODES)


Pair = tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]


def overlapping(rows: Sequence[RemoteLogSegmentMetadata]) -> list[Pair]:
    """Return the pairs of segments that have offsets in common, the one that begins first first."""
    return [
        (first, second)
        for first, second in combinations(sorted(rows, key=_start_and_length), 2)
        if second.start_offset <= first.end_offset
    ]


def superseded(rows: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Return the segments of one lineage whose offsets another one has, too."""
    return [inner for outer, inner in overlapping(rows) if inner.end_offset <= outer.end_offset]


def deleted_as_superseded(scene: Scene, actor: Actor) -> set[UUID]:
    """Return the ids of the segments that were deleted because others have their records."""
    events = all_events(scene.sidecars[0].rlmm, EventQuery(actor.name))
    reason = DeletionReason.SUPERSEDED.value
    return {e.segment_id for e in events if e.reason == reason and e.segment_id is not None}


def _start_and_length(row: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return row.start_offset, -row.end_offset


def test_counts(scene: Scene, story: Story, record_property: Callable[[str, object], None]) -> None:
    pairs = [pair for actor in scene.actors for pair in overlapping(scene.finished(actor))]
    deleted = set[UUID]().union(*(deleted_as_superseded(scene, actor) for actor in scene.actors))
    superseded_tails = sum(map(is_tail_uuid, deleted))
    counts = {
        "records acknowledged": sum(len(a.traffic.acknowledged.records) for a in scene.actors),
        "of these lost in unclean elections": sum(
            record.key in actor.lost
            for actor in scene.actors
            for record in actor.traffic.acknowledged.records.values()
        ),
        "records in the leaders' logs": sum(len(c.records) for c in story.contents.values()),
        "transactions ended": sum(n for c in story.contents.values() for n in c.markers.values()),
        "leader epochs": sum(a.truth.last_epoch or 0 for a in scene.actors),
        "leaders chosen": scene.moves,
        "trims of the brokers' logs": scene.trims,
        "segments in the tier": sum(len(rows) for rows in story.rows.values()),
        "of these of the leaders' logs": sum(len(scene.finished(a)) for a in scene.actors),
        "tails in the tier": sum(is_tail(row) for rows in story.rows.values() for row in rows),
        "superseded tails, deleted": superseded_tails,
        "other superseded copies, deleted": len(deleted) - superseded_tails,
        "overlaps of unlike borders": sum(
            second.end_offset > first.end_offset for first, second in pairs
        ),
        "batches read over gRPC, by RLM": {
            node: sum(len(log.batches) for log in reader.logs.values())
            for node, reader in story.readers.items()
        },
        "answers of an RLM that was away": sum(r.away for r in story.readers.values()),
        "logs cut by readers": sum(sum(r.cut.values()) for r in story.readers.values()),
        "records of consumers, by listener": {
            node: sum(len(read) for (at, *_), read in story.final.items() if at == node)
            for node in NODES
        },
        "passes of consumers": sum(consumer.passes for consumer in story.consumers),
        "seconds": [f"{name}: {seconds:.0f}" for name, seconds in story.seconds],
    }
    record_property("counts", counts)
    assert (superseded_tails > 0) == scene.has_tails
