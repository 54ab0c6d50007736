"""Consumers read three brokers' partitions through three RLMs, given the address of one of them."""

import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from demos.kafka_broker import find_java
from services.cli.output import say
from services.client import TierConsumer
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.partition_readers import LEASE_MS
from tests.harness.databases import Stores
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster
from tests.harness.world import World, running_world
from tests.kafka.sidecar import BROKER_SETTINGS, RLM_SETTINGS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1_200)]

READ = Path(__file__).parents[2] / "docs" / "clients" / "Read.java"
TOPIC, BROKERS, LISTENER = "read", (1, 2, 3), "RLM_CONSUMER_LISTEN_ADDRESS"
MARGIN_S = 3.0
SLOW = 10
"""How much slower a busy machine may be than the margin; what it took is printed."""
DEADLINE_MS = 120_000


@dataclass
class Readers:
    """Three brokers, an RLM beside each, and one topic with a partition led by each broker."""

    brokers: KafkaCluster
    admin: ClusterAdmin
    world: World
    rlms: Mapping[int, ServiceProcess]

    def listener(self, broker: int) -> str:
        return self.rlms[broker].listen_address(LISTENER)


@pytest.fixture(scope="module")
def readers(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    directory = tmp_path_factory.mktemp("readers")
    with ExitStack() as opened:
        brokers = opened.enter_context(KafkaCluster(directory, [BROKER_SETTINGS] * len(BROKERS)))
        admin = ClusterAdmin(brokers.bootstrap_servers)
        admin.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], {"min.insync.replicas": "1"})
        store = opened.enter_context(stores.new("readers"))
        world = opened.enter_context(
            running_world(directory / "services", *store, brokers.broker(1).log_dir)
        )
        rlms = {}
        for number in BROKERS:
            settings = {
                **rlm_settings(
                    world.rsm.address,
                    world.rlmm.address,
                    brokers.broker(number).log_dirs,
                    task_interval_ms=1_000,
                ),
                **RLM_SETTINGS,
                "RLM_BOOTSTRAP_SERVERS": brokers.bootstrap_servers,
            }
            folder = directory / f"rlm-{number}"
            folder.mkdir()
            rlms[number] = ServiceProcess("rlm", settings, folder, more_addresses=[LISTENER])
            rlms[number].start()
            opened.callback(rlms[number].kill)
        yield Readers(brokers, admin, world, rlms)


class Producing:
    """Write numbers to each partition until the end, ten a second; count what is acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 2}
        self._producer = Producer({**settings, "enable.idempotence": True})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)

    def __enter__(self) -> "Producing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.1):
            for partition in range(len(BROKERS)):
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=partition, on_delivery=self._note
                )
            number += 1
            self._producer.poll(0)

    def _note(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()].append(message.value())


class Consuming:
    """Read all partitions from the beginning by an unchanged consumer, until the end."""

    def __init__(self, address: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "unused", "log_level": 2}
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.values: dict[int, list[bytes]] = defaultdict(list)

    def __enter__(self) -> "Consuming":
        self._consumer.assign([TopicPartition(TOPIC, n, 0) for n in range(len(BROKERS))])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            message: Any = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.values[message.partition()].append(message.value())

    def seconds_until_read(self, partition: int, produced: Producing, since_s: float) -> float:
        """Return when a record was read that was acknowledged later than now."""
        known = len(produced.acknowledged[partition])
        eventually(lambda: len(produced.acknowledged[partition]) > known, DEADLINE_MS)
        wanted = len(produced.acknowledged[partition])
        eventually(lambda: len(self.values[partition]) >= wanted, DEADLINE_MS)
        return time.monotonic() - since_s


def test_consumers_move_with_leaders_and_around_dead_rlms(readers: Readers) -> None:
    admin = readers.admin
    with (
        Producing(readers.brokers.bootstrap_servers) as produced,
        Consuming(readers.listener(1)) as consumer,
    ):
        for partition in range(len(BROKERS)):
            consumer.seconds_until_read(partition, produced, time.monotonic())
        moved_s = time.monotonic()
        admin.lead(TOPIC, 0, 2)
        took_s = consumer.seconds_until_read(0, produced, moved_s)
        say(f"leader moved: read again {took_s:.1f} s after the command")

        readers.rlms[3].kill()
        killed_s = time.monotonic()
        took_s = consumer.seconds_until_read(2, produced, killed_s)
        say(f"RLM killed: read again after {took_s:.1f} s; its lease is {LEASE_MS / 1000:.0f} s")
        assert took_s <= LEASE_MS / 1000 + SLOW * MARGIN_S
        readers.rlms[3].start()
        eventually(lambda: len(nodes_of(readers, 1)) == len(BROKERS), DEADLINE_MS)

        leader = admin.replicas(TOPIC, 1).leader
        readers.rlms[leader].kill()
        readers.brokers.broker(leader).kill()
        killed_s = time.monotonic()
        admin.wait_for_leader(TOPIC, 1, other_than=leader)
        failed_over_s = time.monotonic() - killed_s
        took_s = consumer.seconds_until_read(1, produced, killed_s)
        say(f"both killed: the cluster led again after {failed_over_s:.1f} s, read {took_s:.1f} s")
        assert took_s <= failed_over_s + SLOW * MARGIN_S
        readers.brokers.broker(leader).start()
        readers.rlms[leader].start()
    for partition in range(len(BROKERS)):
        admin.wait_until_in_sync(TOPIC, partition, len(BROKERS))
    for partition, values in produced.acknowledged.items():
        read = consumer.values[partition]
        assert read == values[: len(read)], partition
        assert read


def nodes_of(readers: Readers, broker: int) -> list[int]:
    """Return the nodes that an RLM names to consumers."""
    with closing(Consumer({"bootstrap.servers": readers.listener(broker), "group.id": "x"})) as c:
        return sorted(c.list_topics(timeout=10).brokers)


def test_any_one_address_leads_to_the_leader(readers: Readers) -> None:
    """Also Kafka's own client, and TierConsumer, read each partition from each address."""
    eventually(lambda: nodes_of(readers, 1) == [*BROKERS], DEADLINE_MS)
    command = [str(find_java()), "-cp", f"{ensure_kafka_jars()}/*", str(READ)]
    counts = set()
    for number in BROKERS:
        args = [readers.listener(number), TOPIC, "0"]
        done = subprocess.run(
            [*command, *args], capture_output=True, text=True, timeout=120, env=os.environ
        )
        assert done.returncode == 0, done.stderr
        counts.add(done.stdout.count("\n"))
        with TierConsumer(readers.rlms[number].address) as tier:
            counts.add(sum(1 for _ in tier.records(TOPIC, 0)))
    assert len(counts) == 1, counts
