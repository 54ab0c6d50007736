"""RLM deletes its broker's records once the tier has them, and the tier's start stays."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.partition_dir import list_segments
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Topic
from tests.harness.sediment_command import Completed, sediment
from tests.harness.world import running_world
from tests.kafka.records import consumed, fetched
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS, Sidecar, running_sidecar
from tests.kafka.tiered_broker import FINISHED, produce_segments, ranges_on_disk

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SEGMENT_BYTES = 8192
OWNER = "sediment.local.retention.owner"
NO_RETENTION = {"retention.ms": "-1", "retention.bytes": "-1"}
OWN_RETENTION = {"retention.ms": "86400000", "retention.bytes": "1000000"}


@pytest.fixture(scope="module")
def sidecar(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("sidecar")
    with (
        kafka_broker(directory / "kafka", BROKER_SETTINGS) as broker,
        running_world(directory / "services", *store, broker.log_dir) as world,
        running_sidecar(broker, world, directory / "rlm", broker.log_dirs) as made,
    ):
        yield made


@dataclass(frozen=True)
class Kept:
    """A topic that RLM copies, and the command about it."""

    sidecar: Sidecar
    topic: Topic
    name: TopicIdPartition

    @property
    def folder(self) -> Path:
        return self.sidecar.folder(self.name)

    def run(self, *arguments: object) -> Completed:
        addresses = ("--rlmm", self.sidecar.world.rlmm.address)
        return sediment(*arguments, *addresses, "--rlm", self.sidecar.process.address)

    def set(self, *settings: str) -> Completed:
        return self.run("topics", "set", self.topic.name, *settings)

    def produce(self) -> None:
        produce_segments(self.sidecar.cluster, self.topic)

    def wait_until_copied(self) -> int:
        """Return the offset after the last rolled segment, once the tier has it."""
        (*_, (_, last)) = ranges_on_disk(self.folder)

        def is_copied() -> bool:
            rows = [row for row in self.sidecar.rows(self.name) if row.state is FINISHED]
            return bool(rows) and max(row.end_offset for row in rows) == last

        eventually(is_copied, DEADLINE_MS)
        return last + 1

    def config(self) -> dict[str, str | None]:
        return broker_config(self.sidecar, self.topic.name)

    def metric(self, series: str) -> float:
        """Return a series of RLM's own as it is scraped; 0 if it does not exist yet."""
        address = self.sidecar.process.announcement.metrics
        with urlopen(f"http://{address}/metrics") as page:
            lines = page.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)

    def report_number(self) -> int:
        report = self.sidecar.rlmm.partition_state(self.name).value.report
        assert report is not None
        return report.report_number

    def reported_start(self) -> int:
        report = self.sidecar.rlmm.partition_state(self.name).value.report
        assert report is not None
        return report.local_log_start_offset

    def trim_offset(self) -> int:
        report = self.sidecar.rlmm.partition_state(self.name).value.report
        assert report is not None
        return report.local_trim_offset

    def problems(self) -> list[ProblemKind]:
        return [problem.kind for problem in self.sidecar.describe(self.name).problems]

    def log_start(self) -> int:
        return self.sidecar.rlmm.partition_state(self.name).value.log_start_offset


_RETENTION = ("retention.ms", "retention.bytes")
_OF_TOPIC = 1


def broker_config(sidecar: Sidecar, topic: str) -> dict[str, str | None]:
    """Return the retention that the topic itself has at the broker."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = sidecar.cluster.admin  # it has to live until the answer
    (described,) = admin.describe_configs([resource]).values()
    found = described.result(CLIENT_TIMEOUT_S)
    return {name: found[name].value for name in _RETENTION if found[name].source == _OF_TOPIC}


@pytest.fixture
def kept(sidecar: Sidecar, request: pytest.FixtureRequest) -> Kept:
    topic = Topic(request.node.name.replace("_", "-")[:60], 1, SEGMENT_BYTES, OWN_RETENTION)
    (name,) = sidecar.create_tiered(topic)
    kept = Kept(sidecar, topic, name)
    kept.produce()
    return kept


def test_rolled_records_leave_the_broker_once_the_tier_has_them(kept: Kept) -> None:
    sidecar, name = kept.sidecar, kept.name
    records = consumed(sidecar.cluster, name)
    copied = kept.wait_until_copied()
    assert kept.config() == OWN_RETENTION
    done = kept.set(f"{OWNER}=rlm", "local.retention.ms=0")
    assert done.returncode == 0, done.stderr
    assert kept.config() == NO_RETENTION
    eventually_holds(lambda: _equal(sidecar.local_start(name), copied), DEADLINE_MS)
    assert kept.trim_offset() == copied
    assert kept.metric("sediment_rlm_log_dirs_free_bytes") > 0
    eventually(lambda: list_segments(kept.folder)[0].base_offset == copied, DEADLINE_MS)
    assert fetched(sidecar.rlm, name, 0) == records
    assert kept.log_start() == 0
    eventually_holds(lambda: _equal(kept.problems(), []), DEADLINE_MS)


def _equal(found: object, expected: object) -> None:
    assert found == expected


def test_a_log_that_need_not_move_is_left_alone(kept: Kept) -> None:
    trim(kept)
    reports, trimmed = kept.report_number(), kept.metric("sediment_rlm_local_trimmed_bytes_total")
    assert trimmed > 0
    other = Topic("moves-meanwhile", 1, SEGMENT_BYTES, OWN_RETENTION)
    (name,) = kept.sidecar.create_tiered(other)
    moved = Kept(kept.sidecar, other, name)
    moved.produce()
    trim(moved)
    assert kept.report_number() == reports
    of_other = kept.metric("sediment_rlm_local_trimmed_bytes_total") - trimmed
    assert 0 < of_other <= trimmed


def trim(kept: Kept) -> int:
    """Let RLM trim all that it may; return where the broker's log begins then."""
    copied = kept.wait_until_copied()
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=0").returncode == 0
    eventually_holds(lambda: _equal(kept.sidecar.local_start(kept.name), copied), DEADLINE_MS)
    eventually_holds(lambda: _equal(kept.trim_offset(), copied), DEADLINE_MS)
    eventually_holds(lambda: _equal(kept.reported_start(), copied), DEADLINE_MS)
    return copied


def test_groups_behind_the_trim_are_named_before_anything_changes(kept: Kept) -> None:
    kept.wait_until_copied()
    commit(kept, "slow", 1)
    commit(kept, "done", 10)
    refused = kept.set(f"{OWNER}=rlm", "local.retention.ms=0")
    assert refused.returncode == 2, refused.stderr
    assert "slow (partition 0: 1, below" in refused.stderr
    assert "done" not in refused.stderr
    assert kept.config() == OWN_RETENTION
    assert kept.sidecar.rlmm.topic_config(kept.name.topic_id).config.is_trimmed_by_rlm is False
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=0", "--yes").returncode == 0
    assert kept.config() == NO_RETENTION


def test_a_retention_set_at_the_broker_is_shown_and_left(kept: Kept) -> None:
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=86400000").returncode == 0
    kept.sidecar.cluster.configure(kept.topic.name, retention_ms="86400000")
    kept.sidecar.process.kill()  # it looks once a minute
    kept.sidecar.process.start()
    expected = [ProblemKind.BROKER_RETENTION_SET]
    eventually_holds(lambda: _equal(kept.problems(), expected), DEADLINE_MS)
    labels = f'{{topic="{kept.topic.name}"}}'
    eventually(lambda: kept.metric(f"sediment_rlm_broker_retention_set{labels}") == 1, DEADLINE_MS)
    assert "the broker's own retention may delete" in kept.run("status").stdout
    assert kept.config() == {**NO_RETENTION, "retention.ms": "86400000"}
    # The same command ends it, and remembers what was set since.
    assert kept.set(f"{OWNER}=rlm").returncode == 0
    assert kept.config() == NO_RETENTION


def test_the_way_back_is_refused_while_the_broker_would_delete_what_only_it_has(
    kept: Kept,
) -> None:
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=86400000").returncode == 0
    kept.sidecar.rlmm.put_topic_config(
        kept.name.topic_id,
        {
            "remote.storage.enable": "true",
            OWNER: "rlm",
            "sediment.local.retention.broker.ms": "1",
        },
    )
    copied = kept.wait_until_copied()

    def is_refused() -> None:
        refused = kept.run("topics", "set", kept.topic.name, "--unset", OWNER)
        assert refused.returncode != 0
        assert f"{kept.topic.name}-0 from offset {copied}" in refused.stderr

    eventually_holds(is_refused, DEADLINE_MS)
    assert kept.config() == NO_RETENTION
    settings = f"sediment.local.retention.broker.ms={OWN_RETENTION['retention.ms']}"
    assert kept.set(settings).returncode == 0
    done = kept.run("topics", "set", kept.topic.name, "--unset", OWNER)
    assert done.returncode == 0, done.stderr
    assert kept.config() == {"retention.ms": OWN_RETENTION["retention.ms"]}
    stored = kept.sidecar.rlmm.topic_config(kept.name.topic_id)
    assert dict(stored.entries) == {"remote.storage.enable": "true"}


def test_a_topic_that_its_brokers_compact_is_refused_and_unchanged(sidecar: Sidecar) -> None:
    topic = Topic("compacts", 1, SEGMENT_BYTES, {**OWN_RETENTION, "cleanup.policy": "compact"})
    (name,) = sidecar.create_tiered(topic)
    kept = Kept(sidecar, topic, name)
    refused = kept.set(f"{OWNER}=rlm", "local.retention.ms=0")
    assert refused.returncode != 0
    assert "cleanup.policy=compact" in refused.stderr
    assert kept.config() == OWN_RETENTION
    assert kept.sidecar.rlmm.topic_config(name.topic_id).config.is_trimmed_by_rlm is False


def test_what_is_deleted_at_the_broker_stays_in_the_tier_until_both_are_told(kept: Kept) -> None:
    sidecar, name = kept.sidecar, kept.name
    records = consumed(sidecar.cluster, name)
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=86400000").returncode == 0
    copied = kept.wait_until_copied()
    eventually_holds(lambda: _equal(kept.trim_offset(), 0), DEADLINE_MS)
    eventually(lambda: sidecar.describe(name).problems == (), DEADLINE_MS)
    # To the border of a segment, before RLM's first trim.
    sidecar.cluster.delete_records(name.topic, 0, copied)
    deleted = [ProblemKind.DELETED_AT_BROKER]
    eventually_holds(lambda: _equal(kept.problems(), deleted), DEADLINE_MS)
    status = " ".join(kept.run("status").stdout.split())
    assert "records of 1 partition were deleted at the broker alone: `sediment topics" in status
    command = f"sediment topics delete-records {name.topic}-0 --before {copied} --yes"
    shown = sediment("partitions", name.topic, "--rlm", sidecar.process.address)
    assert command in shown.stderr
    sidecar.process.kill()
    sidecar.process.start()
    eventually(lambda: sidecar.describe(name).local_log_start_offset == copied, DEADLINE_MS)
    assert fetched(sidecar.rlm, name, 0) == records
    assert kept.log_start() == 0
    deleting = ("topics", "delete-records", f"{name.topic}-0", "--before", copied)
    assert kept.run(*deleting).returncode == 2
    assert kept.log_start() == 0
    done = kept.run(*deleting, "--yes")
    assert done.returncode == 0, done.stderr
    assert kept.log_start() == copied == sidecar.local_start(name)
    eventually_holds(lambda: _equal(kept.problems(), []), DEADLINE_MS)


def commit(kept: Kept, group: str, offset: int) -> None:
    with closing(kept.sidecar.cluster.consumer("read_uncommitted", **{"group.id": group})) as of:
        place = TopicPartition(kept.topic.name, 0, offset)
        of.commit(offsets=[place], asynchronous=False)
