"""Three brokers tier through the plugin while leaders move, brokers die and lose their disks, and
services restart: clients see each acknowledged record once, and nothing is left over.

All of it happens in the fixture `story`, beside producers and consumers that never rest: in brief
in a minute or two, at length in ten minutes of two processors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from demos.kafka_broker import plugin_settings
from tests.harness.databases import Store
from tests.harness.kafka_cluster import Assignments, KafkaCluster
from tests.harness.proxy import TcpProxy
from tests.harness.world import running_world
from tests.kafka.constant_consumer import ConstantConsumer
from tests.kafka.traffic import Traffic
from tests.plugin.replicated import CLUSTER_SETTINGS, NODES, ClusterDeployment
from tests.plugin.scenes import (
    SEGMENT_BYTES,
    Scene,
    Story,
    elect_preferred_leaders_in_a_storm,
    kill_a_leader,
    lose_records_by_an_unclean_election,
    move_leader_while_it_copies,
    reassign_to_fewer_and_back,
    roll_services,
    settle,
    stop_all_services,
    wipe_a_leader,
)
from tests.plugin.seen import ISOLATION_LEVELS

pytestmark = [pytest.mark.plugin, pytest.mark.timeout(900)]

SEED = 405
KINDS = [("none", True), ("zstd", True)]
PAUSE_S = 0.1


@dataclass(frozen=True)
class Plot:
    """What is to happen, and what must come of it at the least.

    Attributes:
        act: what happens beside the clients.
        leaders: the brokers with which as leaders everything is read at the end.
        acknowledged: records of each partition.
        ended: records of each partition in transactions, for each way of ending one.
        passes: of each consumer over the whole partition.
    """

    assignments: Assignments
    act: Callable[[Scene, Story], None]
    leaders: Sequence[int]
    acknowledged: int
    ended: int
    passes: int


def act_in_brief(scene: Scene, story: Story) -> None:
    story.copied_by_both.append(move_leader_while_it_copies(scene, scene.partitions[0]))
    kill_a_leader(scene)
    roll_services(scene, story)


def act_at_length(scene: Scene, story: Story) -> None:
    for _ in range(2):
        for partition in scene.partitions:
            story.copied_by_both.append(move_leader_while_it_copies(scene, partition))
    kill_a_leader(scene)
    story.first_offsets_after_wipe = wipe_a_leader(scene)
    elect_preferred_leaders_in_a_storm(scene)
    reassign_to_fewer_and_back(scene)
    lose_records_by_an_unclean_election(scene, story)
    stop_all_services(scene)
    roll_services(scene, story)


BRIEF = Plot([NODES], act_in_brief, NODES[:2], acknowledged=50, ended=0, passes=1)
LONG = Plot([NODES, NODES[::-1]], act_at_length, NODES, acknowledged=200, ended=20, passes=4)
PLOTS = [
    pytest.param(BRIEF, id="in brief"),
    pytest.param(LONG, id="at length", marks=pytest.mark.long),
]
at_length = pytest.mark.parametrize("plot", PLOTS[1:], indirect=True)


@pytest.fixture(scope="module", params=PLOTS)
def plot(request: pytest.FixtureRequest) -> Plot:
    chosen: Plot = request.param
    return chosen


@pytest.fixture(scope="module")
def scene(
    plot: Plot, jar: Path, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Three brokers over two pairs of services, which are restarted, and a tiered topic."""
    directory = tmp_path_factory.mktemp("brokers")
    with ExitStack() as cleanup:
        worlds = [
            cleanup.enter_context(running_world(directory / name, *store, directory))
            for name in ("first", "second")
        ]
        ways = [
            [cleanup.enter_context(TcpProxy(world.rsm.address)) for world in worlds] for _ in NODES
        ]
        rlmms = "ipv4:" + ",".join(world.rlmm.address for world in worlds)
        rsms = ["ipv4:" + ",".join(way.address for way in own) for own in ways]
        settings = [{**CLUSTER_SETTINGS, **plugin_settings(jar, rsm, rlmms)} for rsm in rsms]
        brokers = cleanup.enter_context(KafkaCluster(directory, settings))
        deployment = ClusterDeployment(brokers, worlds[0])
        partitions = deployment.create(
            "story", plot.assignments, SEGMENT_BYTES, local_retention_bytes="1"
        )
        yield Scene(deployment, worlds, ways, partitions)


@pytest.fixture(scope="module")
def story(plot: Plot, scene: Scene) -> Story:
    """What happened beside producers and consumers; in the end everything was read."""
    story = Story(scene.partitions)
    cluster = scene.deployment.cluster
    traffic = [
        Traffic(cluster, p.topic, SEED, partition=p.name.partition, kinds=KINDS, pause_s=PAUSE_S)
        for p in scene.partitions
    ]
    story.consumers = [
        ConstantConsumer(cluster, p.name, level)
        for p in scene.partitions
        for level in ISOLATION_LEVELS
    ]
    with ExitStack() as reading:
        for consumer in story.consumers:
            reading.enter_context(consumer)
        with ExitStack() as writing:
            for each in traffic:
                writing.enter_context(each)
            plot.act(scene, story)
        story.acknowledged = [each.acknowledged for each in traffic]
        settle(scene, story, plot.leaders)
    return story


def test_every_acknowledged_record_is_read_once_as_it_was_sent(plot: Plot, story: Story) -> None:
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        read = story.as_led_by[str(partition), "read_uncommitted"][0]
        assert len(said.records) > plot.acknowledged, partition
        records = {record.offset: record for record in read}
        sent = {
            offset: (record.key, record.value, tuple(record.headers))
            for offset, record in said.records.items()
        }
        of_sent = {offset: records[offset] for offset in sent}
        assert {at: (r.key, r.value, r.headers) for at, r in of_sent.items()} == sent, partition
        others = [record.key for record in read if record.offset not in sent]
        assert set(others) <= said.in_doubt, partition
        assert set(Counter(record.key for record in read).values()) == {1}, partition


def test_read_committed_omits_only_aborted_records(plot: Plot, story: Story) -> None:
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        everything = story.as_led_by[str(partition), "read_uncommitted"][0]
        committed = story.as_led_by[str(partition), "read_committed"][0]
        assert len(said.committed) > plot.ended, partition
        assert len(said.aborted) > plot.ended, partition
        offsets = {record.offset for record in committed}
        assert offsets.isdisjoint(said.aborted), partition
        assert said.records.keys() - said.aborted - said.undecided <= offsets, partition
        assert [r for r in everything if r.offset in offsets] == committed, partition


def test_every_broker_serves_the_same_as_leader(plot: Plot, story: Story) -> None:
    for what, reads in story.as_led_by.items():
        assert len(reads) == len(plot.leaders)
        assert reads == [reads[0]] * len(reads), what


def test_no_consumer_read_a_wrong_record(plot: Plot, story: Story) -> None:
    for consumer in story.consumers:
        assert consumer.failures == []
        assert consumer.passes >= plot.passes, consumer
    of_all = [(str(p), level) for p in story.partitions for level in ISOLATION_LEVELS]
    for consumer, what in zip(story.consumers, of_all, strict=True):
        final = {record.offset: record for record in story.as_led_by[what][0]}
        assert consumer.seen.items() <= final.items(), consumer


@at_length
def test_tier_has_segments_of_every_leader(story: Story) -> None:
    assert len(story.copied_by_both) == 2 * len(story.partitions)
    for partition in story.partitions:
        assert {row.broker_id for row in partition.finished()} == set(NODES), partition


@at_length
def test_wiped_broker_fetches_only_offsets_above_the_tier(story: Story) -> None:
    wiped = zip(story.partitions, story.first_offsets_after_wipe, strict=True)
    for partition, (latest_tiered, first_local) in wiped:
        assert latest_tiered > 0, partition
        assert first_local > latest_tiered, partition
        assert partition.finished()[0].start_offset == 0, partition


@at_length
def test_unclean_election_loses_records_that_the_new_leader_lacks(story: Story) -> None:
    assert story.unclean_reads == [story.without_the_lost] * 2


def test_no_call_of_a_broker_fails_while_services_are_rolled(story: Story) -> None:
    assert story.errors_in_the_roll == []


def test_every_object_has_a_row_and_every_finished_row_its_objects(story: Story) -> None:
    assert len(story.copied_by_both) >= 1
    for partition in story.partitions:
        partition.assert_nothing_wrong()
    assert story.reconciled["failures"] == []
    anomalies = story.reconciled["anomalies"]
    assert isinstance(anomalies, dict)
    assert {kind for kind, count in anomalies.items() if count} == set()


@at_length
def test_the_deleted_topic_leaves_nothing(scene: Scene, story: Story) -> None:
    scene.deployment.cluster.delete(story.partitions[0].name.topic)
    for partition in story.partitions:
        partition.wait_until_nothing_is_left()
