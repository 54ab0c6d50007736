"""Three brokers tier through the plugin while leaders move, brokers die and lose their disks, and
services restart: clients see each acknowledged record once, and nothing is left over.

All of it happens in the fixture `story`, beside producers and consumers that never rest.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from demos.kafka_broker import plugin_settings
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.harness.eventually import eventually_holds
from tests.harness.kafka_cluster import KafkaCluster
from tests.harness.proxy import TcpProxy
from tests.harness.world import running_world
from tests.kafka.traffic import Traffic
from tests.plugin.constant_consumer import ConstantConsumer
from tests.plugin.deployment import DEADLINE_MS
from tests.plugin.replicated import (
    CLUSTER_SETTINGS,
    NODES,
    ClusterDeployment,
)
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

# All of the story happens before its first test: ten minutes of two processors.
pytestmark = [pytest.mark.plugin, pytest.mark.long, pytest.mark.timeout(900)]

SEED = 405
KINDS = [("none", True), ("zstd", True)]
PAUSE_S = 0.1


@pytest.fixture(scope="module")
def scene(
    jar: Path,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[Scene]:
    """Services of this module's own, for they are restarted here."""
    store = f"brokers-{uuid4()}"
    s3.ensure_bucket(store)
    url = postgres.create_database(store, template=migrated_database)
    directory = tmp_path_factory.mktemp("brokers")
    with ExitStack() as cleanup:
        worlds = [
            cleanup.enter_context(running_world(directory / name, url, s3, store, directory))
            for name in ("first", "second")
        ]
        ways = [
            [cleanup.enter_context(TcpProxy(world.rsm.address)) for world in worlds] for _ in NODES
        ]
        rlmms = ",".join(world.rlmm.address for world in worlds)
        settings = [
            {
                **CLUSTER_SETTINGS,
                **plugin_settings(jar, ",".join(way.address for way in own), rlmms),
            }
            for own in ways
        ]
        brokers = cleanup.enter_context(KafkaCluster(directory, settings))
        deployment = ClusterDeployment(brokers, worlds[0])
        partitions = deployment.create(
            "story", [NODES, NODES[::-1]], SEGMENT_BYTES, local_retention_bytes="1"
        )
        yield Scene(deployment, worlds, ways, partitions)
    postgres.drop_database(store)
    s3.remove_bucket(store)


@pytest.fixture(scope="module")
def story(scene: Scene) -> Story:
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
            story.copied_by_both = [
                move_leader_while_it_copies(scene, partition)
                for _ in range(2)
                for partition in scene.partitions
            ]
            kill_a_leader(scene)
            story.first_offsets_after_wipe = wipe_a_leader(scene)
            elect_preferred_leaders_in_a_storm(scene)
            reassign_to_fewer_and_back(scene)
            lose_records_by_an_unclean_election(scene, story)
            stop_all_services(scene)
            roll_services(scene, story)
        story.acknowledged = [each.acknowledged for each in traffic]
        settle(scene, story)
    return story


# --- what came of it ----------------------------------------------------------------------------


def test_every_acknowledged_record_is_read_once_as_it_was_sent(story: Story) -> None:
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        read = story.as_led_by[str(partition), "read_uncommitted"][0]
        assert len(said.records) > 200, partition
        got = {record.offset: record for record in read}
        sent = {
            offset: (record.key, record.value, tuple(record.headers))
            for offset, record in said.records.items()
        }
        assert {
            offset: (got[offset].key, got[offset].value, got[offset].headers) for offset in sent
        } == sent, partition
        others = [record.key for record in read if record.offset not in sent]
        assert set(others) <= said.in_doubt, partition
        assert set(Counter(record.key for record in read).values()) == {1}, partition


def test_read_committed_omits_only_aborted_records(story: Story) -> None:
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        everything = story.as_led_by[str(partition), "read_uncommitted"][0]
        committed = story.as_led_by[str(partition), "read_committed"][0]
        assert len(said.committed) > 20, partition
        assert len(said.aborted) > 20, partition
        offsets = {record.offset for record in committed}
        assert offsets.isdisjoint(said.aborted), partition
        assert said.records.keys() - said.aborted - said.undecided <= offsets, partition
        assert [r for r in everything if r.offset in offsets] == committed, partition


def test_every_broker_serves_the_same_as_leader(story: Story) -> None:
    for what, reads in story.as_led_by.items():
        assert len(reads) == len(NODES)
        assert reads == [reads[0]] * len(NODES), what


def test_no_consumer_read_a_wrong_record(story: Story) -> None:
    for consumer in story.consumers:
        assert consumer.failures == []
        assert consumer.passes > 3, consumer
    wanted = [(str(p), level) for p in story.partitions for level in ISOLATION_LEVELS]
    for consumer, what in zip(story.consumers, wanted, strict=True):
        final = {record.offset: record for record in story.as_led_by[what][0]}
        assert consumer.seen.items() <= final.items(), consumer


def test_tier_has_segments_of_every_leader(story: Story) -> None:
    assert len(story.copied_by_both) == 2 * len(story.partitions)
    for partition in story.partitions:
        assert {row.broker_id for row in partition.finished()} == set(NODES), partition


def test_wiped_broker_fetches_only_offsets_above_the_tier(story: Story) -> None:
    for partition, offset in zip(story.partitions, story.first_offsets_after_wipe, strict=True):
        assert offset > 0, partition
        assert partition.finished()[0].start_offset == 0, partition


def test_unclean_election_loses_records_that_the_new_leader_lacks(story: Story) -> None:
    assert story.unclean_reads == [story.without_the_lost] * 2


def test_no_call_of_a_broker_fails_while_services_are_rolled(story: Story) -> None:
    assert story.errors_in_the_roll == []


def test_every_object_has_a_row_and_every_finished_row_its_objects(story: Story) -> None:
    for partition in story.partitions:
        partition.assert_nothing_wrong()
    assert story.reconciled["failures"] == []
    anomalies = story.reconciled["anomalies"]
    assert isinstance(anomalies, dict)
    assert {kind for kind, count in anomalies.items() if count} == set()


def test_the_deleted_topic_leaves_nothing(scene: Scene, story: Story) -> None:
    scene.deployment.cluster.delete(story.partitions[0].name.topic)
    for partition in story.partitions:
        eventually_holds(partition.assert_nothing_is_left, DEADLINE_MS)
