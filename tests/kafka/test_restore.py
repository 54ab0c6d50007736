"""Brokers serve logs that `sediment restore` has written: of a deleted topic, of a wiped disk."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from demos.kafka_broker import KafkaBroker, find_java
from hatch_build import ROOT
from services.local.process import ProcessError
from services.rlm.copy.ship import ship
from services.rlm.kafka_log.log_dir import find_partitions
from tests.data.kafka_log_content import PAYMENTS, TELEMETRY, produce_payments, produce_telemetry
from tests.harness.databases import Store, Stores
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars, ensure_tools_jars
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import (
    CLIENT_TIMEOUT_S,
    NOW,
    Cluster,
    Record,
    Topic,
    send_batch,
)
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster
from tests.harness.sediment_command import sediment
from tests.harness.world import World, running_world
from tests.kafka.records import SeenRecord, of_message
from tests.kafka.tiered_broker import rolled

pytestmark = pytest.mark.kafka

PAGE = ROOT / "docs/run/restore.md"
AGAIN, BEFORE = Topic("payments-again", 2, 8192), Topic("payments-before", 2, 8192)
LATER = time.time_ns() // 1_000_000 + 1_800_000
KEEPS_ALL = {"log.retention.ms": "-1"}
ISOLATIONS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True)
class Digest:
    """What consumers read of a partition: how many records, and sha256 over all of each."""

    records: int
    sha256: str

    @classmethod
    def of(cls, records: Sequence[SeenRecord]) -> "Digest":
        digest = sha256()
        for each in records:
            seen = (each.offset, each.key, each.value, each.headers, each.timestamp_ms)
            digest.update(repr(seen).encode())
        return cls(len(records), digest.hexdigest())


def digests(cluster: Cluster, topic: Topic) -> list[Digest]:
    """Return what consumers read of each partition, by both isolations."""
    return [
        Digest.of([of_message(each) for each in cluster.read(topic.name, partition, isolation)])
        for partition in range(topic.partitions)
        for isolation in ISOLATIONS
    ]


def produce_more(cluster: Cluster, topic: Topic) -> None:
    """Commit a transaction and abort one, in each partition, and send some records without."""
    with cluster.transactional("more") as producer, cluster.idempotent("lz4") as plain:
        for is_aborted in (False, True, False):
            producer.begin_transaction()
            for partition in range(topic.partitions):
                send_batch(producer, topic, partition, [Record(b"k", b"more" * 400, NOW)] * 3)
                send_batch(plain, topic, partition, [Record(b"p", b"plain", NOW)])
            if is_aborted:
                producer.abort_transaction(CLIENT_TIMEOUT_S)
            else:
                producer.commit_transaction(CLIENT_TIMEOUT_S)


def ship_all(world: World, log_dir: Path, least: int = 10) -> None:
    with world.storage() as rsm, world.metadata() as rlmm:
        report = ship([log_dir], rsm, rlmm)
    assert [p for partition in report.partitions for p in partition.problems] == []
    assert sum(partition.copied_segments for partition in report.partitions) >= least


def without_rolled_segments(log_dir: Path, saved: Path, topic: str) -> Path:
    """Save what a broker has of a topic that is not in the tier."""
    for folder in log_dir.glob(f"{topic}-[0-9]"):
        shutil.copytree(folder, saved / folder.name)
        for segment in rolled(saved / folder.name):
            segment.log_path.unlink()
    return saved


def run_commands(world: World, chapter: str, log_dir: Path, saved: Path) -> list[dict[str, Any]]:
    """Run the commands of a chapter of the page; return the partitions that they restored."""
    (text,) = re.findall(
        rf"(?ms)^## {chapter}$(.*?)(?=^## |\Z)", PAGE.read_text().replace("\\\n", "")
    )
    places = {"/var/lib/kafka/data": log_dir, "/mnt/old-disk": saved, "2026-11-29T12:00:00Z": LATER}
    found = []
    for line in re.findall(r"(?m)^ *sediment (restore .*)$", text):
        found += restored(world, *(places.get(word, word) for word in line.split()))
    return found


def restored(world: World, *arguments: object) -> list[dict[str, Any]]:
    addresses = {"SEDIMENT_RSM": world.rsm.address, "SEDIMENT_RLMM": world.rlmm.address}
    done = sediment(*arguments, "-o", "json", environment=addresses)
    assert done.returncode == 0, done.stderr
    partitions: list[dict[str, Any]] = json.loads(done.stdout)["partitions"]
    return partitions


@pytest.fixture
def store(stores: Stores) -> Iterator[Store]:
    with stores.new("restore") as made:
        yield made


@pytest.mark.timeout(900)
def test_a_deleted_topic_is_served_again_and_replicated(
    store: Store, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with (
        KafkaCluster(tmp_path, [KEEPS_ALL] * 3) as brokers,
        running_world(tmp_path / "services", *store, tmp_path) as world,
    ):
        broker, admin = brokers.broker(1), ClusterAdmin(brokers.bootstrap_servers)
        cluster = Cluster(brokers.bootstrap_servers)
        admin.create(PAYMENTS.name, [(1,), (1,)], PAYMENTS.configs())
        produce_payments(cluster, 0)
        broker.restart()
        produce_payments(cluster, 1)
        broker.restart()
        produce_payments(cluster, 2)
        before = digests(cluster, PAYMENTS)
        with cluster.idempotent("lz4") as bad_deploy:
            for partition in range(PAYMENTS.partitions):
                send_batch(bad_deploy, PAYMENTS, partition, [Record(b"k", b"bad", LATER)] * 3)
        produced = digests(cluster, PAYMENTS)
        broker.stop()
        ship_all(world, broker.log_dir)
        saved = without_rolled_segments(broker.log_dir, tmp_path / "saved", PAYMENTS.name)
        broker.start()
        cluster.delete(PAYMENTS.name)

        for topic in (AGAIN, BEFORE):
            admin.create(topic.name, [(1,), (1,)], topic.configs())
        eventually(lambda: len([*broker.log_dir.glob("payments-*-[01]")]) == 4)
        broker.stop()
        found = run_commands(world, "As a new topic", broker.log_dir, saved)
        assert [each["open_transactions"] for each in found] == [[]] * 4
        broker.start()
        for topic in (AGAIN, BEFORE):
            for partition in range(topic.partitions):
                admin.wait_for_leader(topic.name, partition)
        assert digests(cluster, AGAIN) == produced
        assert digests(cluster, BEFORE) == before

        produce_more(cluster, AGAIN)
        with_more = digests(cluster, AGAIN)
        assert all(
            later.records > earlier.records
            for later, earlier in zip(with_more, produced, strict=True)
        )
        for partition in range(AGAIN.partitions):
            admin.reassign(AGAIN.name, partition, (1, 2, 3))
            admin.lead(AGAIN.name, partition, 2)
        broker.stop()
        assert digests(cluster, AGAIN) == with_more
        # All that the broker has: the topic with this replica alone comes from the tier.
        ship_all(world, broker.log_dir, 1)
        saved = without_rolled_segments(broker.log_dir, tmp_path / "once more", BEFORE.name)
        ids = (broker.log_dir / "meta.properties").read_text()
        shutil.rmtree(broker.log_dir)
        broker.log_dir.mkdir()
        (broker.log_dir / "meta.properties").write_text(ids)
        restored(world, "restore", *partitions_of(BEFORE), broker.log_dir, "--local", saved)
        broker.start()
        for partition in range(BEFORE.partitions):
            admin.wait_for_leader(BEFORE.name, partition)
            admin.wait_until_in_sync(AGAIN.name, partition, 3)
        assert digests(cluster, BEFORE) == before
        assert digests(cluster, AGAIN) == with_more
        record_property(
            "counts", {"records of both isolations": [each.records for each in produced]}
        )


def test_a_wiped_disk_serves_the_same_topic(store: Store, tmp_path: Path) -> None:
    with (
        kafka_broker(tmp_path / "broker", KEEPS_ALL) as broker,
        running_world(tmp_path / "services", *store, broker.log_dir) as world,
    ):
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(PAYMENTS, TELEMETRY, AGAIN)
        produce_payments(cluster, 0)
        produce_telemetry(cluster, 0)
        broker.restart()
        cluster = Cluster(broker.bootstrap_servers)
        produce_payments(cluster, 1)
        with cluster.transactional("cut off") as producer:
            producer.begin_transaction()
            send_batch(producer, PAYMENTS, 0, [Record(b"k", b"v", NOW)] * 3)
            cut = cluster.offsets(PAYMENTS.name, 0).log_end_offset
            producer.commit_transaction(CLIENT_TIMEOUT_S)
        before = [*digests(cluster, PAYMENTS), *digests(cluster, TELEMETRY)]
        broker.stop()
        ship_all(world, broker.log_dir)
        saved = without_rolled_segments(broker.log_dir, tmp_path / "saved", "*")
        for folder in partitions_of(PAYMENTS, TELEMETRY):
            shutil.rmtree(broker.log_dir / folder)
        for checkpoint in broker.log_dir.glob("*-offset-checkpoint"):
            checkpoint.unlink()
        # No broker begins an empty log while a restore has not ended.
        unfinished = broker.log_dir / "payments-0.restoring"
        unfinished.mkdir()
        with pytest.raises(ProcessError, match=re.escape(unfinished.name)):
            broker.start()
        unfinished.rmdir()
        run_commands(world, "A disk was wiped", broker.log_dir, saved)
        options = (broker.log_dir, "--local", saved)
        restored(world, "restore", "telemetry-0", *options)
        (part,) = restored(
            world, "restore", "payments-0", *options, "--as", AGAIN.name, "--to", cut
        )
        broker.start()
        cluster = Cluster(broker.bootstrap_servers)
        assert [*digests(cluster, PAYMENTS), *digests(cluster, TELEMETRY)] == before
        produce_more(cluster, PAYMENTS)
        assert all(
            a.records > b.records
            for a, b in zip(digests(cluster, PAYMENTS), before[:4], strict=True)
        )
        for name, found in find_partitions([broker.log_dir]).partitions.items():
            for segment in rolled(found.path)[:-1]:
                assert segment.producer_snapshot_path.exists(), (name, segment)
        [opened] = part["open_transactions"]
        offsets = cluster.offsets(AGAIN.name, 0)
        assert (offsets.last_stable_offset, offsets.log_end_offset) == (cut - 3, cut)
        abort(broker, AGAIN.name, opened["start_offset"])
        eventually(lambda: cluster.offsets(AGAIN.name, 0).last_stable_offset == cut + 1)


def abort(broker: KafkaBroker, topic: str, start_offset: int) -> None:
    """Abort a transaction with the command that `sediment restore` prints."""
    tools = [find_java(), "-cp", f"{ensure_tools_jars()}/*:{ensure_kafka_jars()}/*"]
    tools += ["org.apache.kafka.tools.TransactionsCommand"]
    tools += ["--bootstrap-server", broker.bootstrap_servers, "abort", "--topic", topic]
    tools += ["--partition", "0", "--start-offset", str(start_offset)]
    done = subprocess.run(tools, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def partitions_of(*topics: Topic) -> list[str]:
    return [
        f"{topic.name}-{partition}" for topic in topics for partition in range(topic.partitions)
    ]
