"""Three brokers over two pairs of services, and a story beside clients that never rest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from demos.kafka_broker import plugin_settings
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.harness.kafka_cluster import Assignments, KafkaCluster
from tests.harness.proxy import TcpProxy
from tests.harness.world import running_world
from tests.kafka.traffic import Traffic
from tests.plugin.constant_consumer import ConstantConsumer
from tests.plugin.replicated import CLUSTER_SETTINGS, NODES, ClusterDeployment
from tests.plugin.scenes import SEGMENT_BYTES, Scene, Story, settle
from tests.plugin.seen import ISOLATION_LEVELS

_SEED = 405
_KINDS = [("none", True), ("zstd", True)]
_PAUSE_S = 0.1


@contextmanager
def running_scene(
    jar: Path,
    directory: Path,
    postgres: EmbeddedPostgres,
    template: str,
    s3: S3Endpoint,
    assignments: Assignments,
) -> Iterator[Scene]:
    """Run brokers, and services of their own, for they are restarted; make a tiered topic."""
    store = f"brokers-{uuid4()}"
    s3.ensure_bucket(store)
    url = postgres.create_database(store, template=template)
    with ExitStack() as cleanup:
        worlds = [
            cleanup.enter_context(running_world(directory / name, url, s3, store, directory))
            for name in ("first", "second")
        ]
        ways = [
            [cleanup.enter_context(TcpProxy(world.rsm.address)) for world in worlds] for _ in NODES
        ]
        rlmms = "ipv4:" + ",".join(world.rlmm.address for world in worlds)
        settings = [
            {
                **CLUSTER_SETTINGS,
                **plugin_settings(jar, "ipv4:" + ",".join(way.address for way in own), rlmms),
            }
            for own in ways
        ]
        brokers = cleanup.enter_context(KafkaCluster(directory, settings))
        deployment = ClusterDeployment(brokers, worlds[0])
        partitions = deployment.create(
            "story", assignments, SEGMENT_BYTES, local_retention_bytes="1"
        )
        yield Scene(deployment, worlds, ways, partitions)
    postgres.drop_database(store)
    s3.remove_bucket(store)


def tell(scene: Scene, act: Callable[[Story], None], leaders: Sequence[int] = NODES) -> Story:
    """Let things happen beside producers and consumers; then read all of it with these leaders."""
    story = Story(scene.partitions)
    cluster = scene.deployment.cluster
    traffic = [
        Traffic(cluster, p.topic, _SEED, partition=p.name.partition, kinds=_KINDS, pause_s=_PAUSE_S)
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
            act(story)
        story.acknowledged = [each.acknowledged for each in traffic]
        settle(scene, story, leaders)
    return story
