"""Three brokers that tier with Kafka's own classes move to Sediment one by one, are used there, and
leave again both ways; each step is followed by a comparison of all that consumers read."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from demos.kafka_broker import plugin_settings
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.imported_segments import is_imported
from services.api.remote_log_metadata_manager import all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Topic
from tests.harness.pages import shown_commands
from tests.harness.world import World, running_world
from tests.kafka.constant_consumer import ConstantConsumer
from tests.kafka.records import consumed
from tests.kafka.traffic import Traffic
from tests.plugin.migration import (
    DEADLINE_MS,
    NODES,
    SETTINGS,
    Migrating,
    contents_of,
    migrating,
    own_tier,
)
from tests.plugin.seen import ISOLATION_LEVELS

# All of the story happens before the first test of it.
pytestmark = [pytest.mark.plugin, pytest.mark.long, pytest.mark.timeout(1800)]

SEED = 405
PAGE = Path(__file__).parents[2] / "docs/run/come-and-leave.md"
SOURCE = 7
FOLDER = "kafka-tiered-storage"
TIERED = {"remote.storage.enable": "true", "segment.ms": "2000"}
ORDERS = Topic("orders", 2, 24_576, {**TIERED, "local.retention.bytes": "1"})
DOOMED = Topic("doomed", 1, 24_576, {**TIERED, "local.retention.bytes": "1"})
TOPICS = (ORDERS, DOOMED)
NOTHING_COPIED = {
    "remote_log_copy_disable": "true",
    "local_retention_ms": "-2",
    "local_retention_bytes": "-2",
}
COPIED_AGAIN = {
    "remote_log_copy_disable": "false",
    "local_retention_ms": "-2",
    "local_retention_bytes": "1",
}
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True)
class Step:
    """One line of the story's table: what was compared after it."""

    name: str
    records: int
    differences: int


@dataclass
class Story:
    """
    Attributes:
        lost: offsets that were acknowledged while brokers were switched, and cannot be read.
        wrong, least_passes: of the consumers that read everything again and again meanwhile.
    """

    steps: list[Step] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    least_passes: int = 0


class Narrator:
    """Tell the story, and compare after each step what consumers read with what they read first."""

    def __init__(self, deployment: Migrating, world: World) -> None:
        self.deployment = deployment
        self.world = world
        self.story = Story()
        self._ends: dict[TopicIdPartition, int] = {}
        self._first = contents_of(deployment.cluster, {})

    def begin(self, names: list[TopicIdPartition]) -> None:
        self._ends = self.deployment.ends(names)
        self._first = contents_of(self.deployment.cluster, self._ends)
        assert all(each.records for each in self._first.values())

    def forget(self, topic: str) -> None:
        self._ends = {n: end for n, end in self._ends.items() if n.topic != topic}

    def compare(self, step: str) -> None:
        now = contents_of(self.deployment.cluster, self._ends)
        differences = sum(self._first[key] != contents for key, contents in now.items())
        records = sum(contents.records for contents in now.values())
        self.story.steps.append(Step(step, records, differences))

    def rows(self, name: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Return the readable segments; none of a partition that RLMM does not know yet."""
        with self.world.metadata() as rlmm, suppress(RemoteResourceNotFoundError):
            return [row for row in all_segments(rlmm, name) if row.state is FINISHED]
        return []


@contextmanager
def following(world: World, servers: str) -> Iterator["subprocess.Popen[str]"]:
    """The page's command for the switch, until the block sends it a signal."""
    (line,) = [line for line in shown_commands(PAGE) if "--switch" in line]
    words = line.replace("kafka:9092", servers).replace("location 2", f"location {SOURCE}").split()
    command = [sys.executable, "-m", "services.cli", *words]
    command += ["--rlmm", world.rlmm.address, "-o", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def run(world: World, *arguments: str, of: Sequence[str] = ("rsm", "rlmm")) -> str:
    """Run a command that uses these services; it must succeed."""
    addresses = {"rsm": world.rsm.address, "rlmm": world.rlmm.address}
    services = [word for name in of for word in (f"--{name}", addresses[name])]
    command = [sys.executable, "-m", "services.cli", *arguments, *services, "-o", "json"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def story(jar: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("migration")
    tier = directory / "tier"
    with (
        running_world(directory, *store, directory, locations(directory, tier)) as world,
        migrating(directory / "brokers", own_tier(tier)) as deployment,
    ):
        yield tell(Narrator(deployment, world), jar, directory)


def locations(directory: Path, tier: Path) -> Mapping[str, str]:
    file = directory / "locations.toml"
    file.write_text(
        f"[[location]]\nid = {SOURCE}\nlayout = 'local-tiered-storage'\nbackend = 'filesystem'\n"
        f"directory = '{tier}'\nprefix = '{FOLDER}/'\nread_only = false\n"
    )
    return {"RSM_LOCATIONS_FILE": str(file)}


def tell(narrator: Narrator, jar: Path, directory: Path) -> Story:
    deployment, world = narrator.deployment, narrator.world
    sediment = {**SETTINGS, **plugin_settings(jar, world.rsm.address, world.rlmm.address)}
    names = create_and_fill(deployment)
    narrator.begin(names)
    narrator.compare("before, with Kafka's own classes")

    come(narrator, names, sediment)
    narrator.compare("all brokers switched")
    for topic in TOPICS:
        deployment.cluster.configure(topic.name, **COPIED_AGAIN)
    write_until_copied_by_sediment(narrator, names)
    narrator.compare("copying again")

    run(world, "copy", "--adopt")
    assert all(is_own(row) for name in names for row in narrator.rows(name))
    narrator.compare("adopted")

    deployment.cluster.delete(DOOMED.name)
    narrator.forget(DOOMED.name)
    names = deployment.partitions(ORDERS.name)
    narrator.compare("a topic deleted")
    let_retention_run(narrator, names)
    narrator.begin(names)

    deployment.cluster.configure(ORDERS.name, **NOTHING_COPIED)
    leave(narrator)
    own_classes = own_tier(directory / "left")
    kafkas_rlmm = {key: value for key, value in own_classes.items() if is_of_metadata(key)}
    others = {key: value for key, value in sediment.items() if not is_of_metadata(key)}
    deployment.replace_tier({**others, **kafkas_rlmm}, names)
    narrator.compare("out, metadata only: Kafka's RLMM, our RSM")
    deployment.replace_tier(sediment, names)
    narrator.compare("back again")

    run(world, "copy", "--to", str(directory / "left"))
    leave(narrator)
    deployment.replace_tier(own_classes, names)
    narrator.compare("out, bytes too: Kafka's own classes")
    deployment.cluster.configure(ORDERS.name, **COPIED_AGAIN)
    for name in names:
        tiered = deployment.tiered_through(name)
        with writing(deployment, name, SEED + 3):
            wait_until_tiered(deployment, name, tiered + 1)
    narrator.compare("Kafka's own classes copying again")
    return narrator.story


def leave(narrator: Narrator) -> None:
    """Export, at rest: no broker writes the topic, and none copies."""
    servers = narrator.deployment.brokers.bootstrap_servers
    command = ["metadata", "export", "--bootstrap-server", servers]
    run(narrator.world, *command, of=("rlmm",))


def is_of_metadata(setting: str) -> bool:
    return setting.startswith(("remote.log.metadata.manager.", "rlmm.config."))


def let_retention_run(narrator: Narrator, names: list[TopicIdPartition]) -> None:
    """Let the brokers delete the oldest segments, and keep what they have then."""
    (topic,) = {name.topic for name in names}
    sizes = [sum(row.segment_size_in_bytes for row in narrator.rows(name)) for name in names]
    narrator.deployment.cluster.configure(topic, retention_bytes=str(min(sizes) // 2))
    for name in names:
        wait_until_deleted(narrator, name)
    narrator.deployment.cluster.configure(topic, retention_bytes="-1")


def wait_until_deleted(narrator: Narrator, name: TopicIdPartition) -> None:
    cluster = narrator.deployment.cluster
    eventually(
        lambda: cluster.offsets(name.topic, name.partition).log_start_offset > 0, DEADLINE_MS
    )


def wait_until_tiered(deployment: Migrating, name: TopicIdPartition, offset: int) -> None:
    eventually(lambda: deployment.tiered_through(name) >= offset, DEADLINE_MS)


def create_and_fill(deployment: Migrating) -> list[TopicIdPartition]:
    """Make the topics and write until a part of each lies in the tier alone."""
    for topic in TOPICS:
        assignments = [NODES[at:] + NODES[:at] for at in range(topic.partitions)]
        deployment.admin.create(topic.name, assignments, topic.configs())
    wanted = sum(topic.partitions for topic in TOPICS)
    topics = [topic.name for topic in TOPICS]
    names = eventually(lambda: exactly(deployment.partitions(*topics), wanted), DEADLINE_MS)
    for name in names:
        with writing(deployment, name, SEED):
            deployment.wait_until_read_from_tier([name])
    return names


def names_of(names: list[TopicIdPartition], topic: Topic) -> list[TopicIdPartition]:
    return [name for name in names if name.topic == topic.name]


def exactly(names: list[TopicIdPartition], wanted: int) -> list[TopicIdPartition]:
    return names if len(names) == wanted else []


def come(narrator: Narrator, names: list[TopicIdPartition], sediment: Mapping[str, str]) -> None:
    """Import, and switch broker by broker while records are produced and consumed."""
    deployment, world = narrator.deployment, narrator.world
    for topic in TOPICS:
        deployment.cluster.configure(topic.name, **NOTHING_COPIED)
    with following(world, deployment.brokers.bootstrap_servers) as importing:
        eventually_holds(lambda: assert_all_known(narrator, names), DEADLINE_MS)
        writer = Traffic(deployment.cluster, ORDERS, SEED + 1)
        consumers = [
            ConstantConsumer(deployment.cluster, name, level)
            for name in names_of(names, ORDERS)
            for level in ISOLATION_LEVELS
        ]
        with ExitStack() as busy:
            for each in (writer, *consumers):
                busy.enter_context(each)
            for node_id in NODES:
                deployment.switch(node_id, sediment, names)
                narrator.compare(f"broker {node_id} switched and leading")
                others = NODES[: node_id - 1] + NODES[node_id:]
                for name in names:
                    deployment.admin.lead(name.topic, name.partition, others[0])
        importing.send_signal(signal.SIGINT)
        output, errors = importing.communicate(timeout=120)
    assert importing.returncode == 0, errors
    report = json.loads(output)
    assert report["lag"] == 0
    narrator.story.wrong = [text for each in consumers for text in each.failures]
    narrator.story.least_passes = min(each.passes for each in consumers)
    there = {record.offset for record in consumed(deployment.cluster, names_of(names, ORDERS)[0])}
    narrator.story.lost = [at for at in writer.acknowledged.records if at not in there]


def assert_all_known(narrator: Narrator, names: list[TopicIdPartition]) -> None:
    """RLMM has all that the source's leader knows its tier to have."""
    for name in names:
        ends = [row.end_offset for row in narrator.rows(name)]
        assert max(ends, default=-1) == narrator.deployment.tiered_through(name), name


def write_until_copied_by_sediment(narrator: Narrator, names: list[TopicIdPartition]) -> None:
    for name in names:
        with writing(narrator.deployment, name, SEED + 2):
            wait_until_some_is_own(narrator, name)


def wait_until_some_is_own(narrator: Narrator, name: TopicIdPartition) -> None:
    eventually(lambda: any(is_own(row) for row in narrator.rows(name)), DEADLINE_MS)


def is_own(row: RemoteLogSegmentMetadata) -> bool:
    return not is_imported(row.custom_metadata)


def writing(deployment: Migrating, name: TopicIdPartition, seed: int) -> Traffic:
    (topic,) = [topic for topic in TOPICS if topic.name == name.topic]
    return Traffic(deployment.cluster, topic, seed, partition=name.partition)


def test_nothing_differs_after_any_step(story: Story) -> None:
    for step in story.steps:
        sys.stdout.write(f"{step.name:45} {step.records:8} {step.differences:4}\n")
    assert [step for step in story.steps if step.differences] == []
    assert all(step.records for step in story.steps)


def test_consumers_read_nothing_wrong_while_brokers_are_switched(story: Story) -> None:
    assert story.wrong == []
    assert story.least_passes > 2


def test_no_acknowledged_record_is_lost(story: Story) -> None:
    assert story.lost == []
