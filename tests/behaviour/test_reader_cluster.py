"""Test which RLM serves a partition's readers, over gRPC and Kafka's protocol.

The RLMs of two brokers share an RLMM on PostgreSQL; the cluster's answers are given by hand.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.client import TierConsumer
from services.local.process import LOOPBACK
from services.rlm.consumers.listener import ConsumerListener
from services.rlm.kafka_admin.client import BrokerConnection, connected
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    NoTopic,
    PartitionView,
    PolicyView,
    TopicView,
)
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.kafka_admin.security import KafkaSecurity
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.partition_readers import UNREACHABLE_S
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.callback_rlm import broker_beside, turn
from tests.harness.sediment_command import sediment
from tests.harness.served import served_rlm
from tests.harness.ship_stack import Stack
from tests.harness.synthetic_log import honest_batch
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

ONE, TWO, THREE = 7, 8, 9
EPOCH = 4
NONE, OUT_OF_RANGE, LEADER_NOT_AVAILABLE, NOT_LEADER = 0, 1, 5, 6
FENCED, UNKNOWN_EPOCH = 74, 75


def records_of_five(base: int) -> bytes:
    return honest_batch(base, [b"value"] * 5)


@dataclass
class Answers:
    """The admin API of a cluster with the answers of the test, and a clock."""

    leader: int | None = ONE
    epoch: int = EPOCH
    in_sync: Collection[int] = (ONE, TWO)
    topics: Collection[str] = (NAME.topic,)
    cluster_id: str = "c"
    is_away: bool = False
    now_s: float = 0.0
    views: list[Collection[str]] = field(default_factory=list)

    def view(self, topics: Collection[str]) -> ClusterView:
        self.views.append(topics)
        if self.is_away:
            raise ClusterUnreachableError("timed out")
        epoch = None if self.leader is None else self.epoch
        replicas, in_sync = frozenset({ONE, TWO}), frozenset(self.in_sync)
        found = PartitionView(self.leader, epoch, replicas, in_sync)
        shown = {NAME.topic: TopicView(NAME.topic_id, {NAME.partition: found})}
        answers = {n: shown[n] if n in self.topics else NoTopic.UNKNOWN for n in topics}
        return ClusterView(self.cluster_id, answers)

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        return PolicyView(self.view(topics), dict.fromkeys(topics, "delete"))

    def stable_offsets(self, leader: int, epochs: Mapping[TopicIdPartition, int]) -> dict[Any, int]:
        return {}

    def log_offsets(self, leader: int, epochs: Mapping[TopicIdPartition, int]) -> dict[Any, Any]:
        return {}


class Asked:
    """One RLM's listener, as a consumer sees it."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._call = connection.call

    def metadata(self) -> tuple[list[int], tuple[int, int, int]]:
        """Return the nodes, and the error, the leader and the epoch of the partition."""
        wanted = MetadataRequest.MetadataRequestTopic(name=NAME.topic)
        answer = self._call(MetadataRequest(topics=[wanted], min_version=10))
        (topic,) = answer.topics
        (found,) = topic.partitions
        nodes = [each.node_id for each in answer.brokers]
        return nodes, (found.error_code, found.leader_id, found.leader_epoch)

    def fetch(self, offset: int = 0, epoch: int = -1) -> int:
        """Return the error of a fetch."""
        kind: Any = FetchRequest.FetchTopic
        wanted = kind.FetchPartition(
            partition=NAME.partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=NAME.topic, partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
            max_version=12,
        )
        ((found,),) = (topic.partitions for topic in self._call(request).responses)
        return int(found.error_code)

    def end(self, epoch: int = -1) -> tuple[int, int]:
        """Return the error and the offset of a query of the log's end."""
        kind: Any = ListOffsetsRequest.ListOffsetsTopic
        wanted = kind.ListOffsetsPartition(
            partition_index=NAME.partition, current_leader_epoch=epoch, timestamp=-1
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[kind(name=NAME.topic, partitions=[wanted])],
            timeout_ms=1_000,
            min_version=6,
        )
        ((found,),) = (topic.partitions for topic in self._call(request).topics)
        return found.error_code, found.offset


class LostRlmm(Wrapper[Any]):
    """The real RLMM, which cannot be reached for announcements while `is_away`."""

    is_away = False

    def announce_endpoint(self, *args: Any) -> Any:
        if self.is_away:
            raise RetriableRemoteStorageError("RLMM is away")
        return self.real.announce_endpoint(*args)


@dataclass
class World:
    """Two brokers' RLMs with listeners and gRPC, and the cluster's answers."""

    stack: Stack
    cluster: Answers
    opened: ExitStack
    logs: dict[int, Path] = field(default_factory=dict)
    rlms: dict[int, BrokerRemoteLogManager] = field(default_factory=dict)
    asked: dict[int, Asked] = field(default_factory=dict)
    grpc: dict[int, str] = field(default_factory=dict)
    rlmm: Any = None

    def serve(self, broker: int, log_dir: Path) -> None:
        self.rlmm = self.rlmm or LostRlmm(self.stack.rlmm)
        rlm = BrokerRemoteLogManager(
            [log_dir],
            self.stack.rsm,
            self.rlmm,
            clock=lambda: self.cluster.now_s,
            source=PartitionSource.POLLER,
            cluster=PolledCluster(self.cluster, self.cluster.cluster_id, 3600.0),
        )
        listener = ConsumerListener(rlm, (LOOPBACK, 0), None, broker, readers=rlm.readers)
        listener.start()
        self.opened.callback(listener.stop)
        options = KafkaSecurity().connection_options()
        connection = self.opened.enter_context(connected(listener.address, options, 10))
        _, self.grpc[broker] = self.opened.enter_context(served_rlm(rlm))
        rlm.announce(self.grpc[broker], listener.advertised)
        self.logs[broker], self.rlms[broker], self.asked[broker] = log_dir, rlm, Asked(connection)

    def pass_time(self, seconds: float = 3.4) -> None:
        """Let the leases be renewed once, by each RLM that lives."""
        self.cluster.now_s += seconds
        for _ in range(2):  # The first one's list lacks those that announce after it.
            for rlm in self.rlms.values():
                turn(rlm.lanes.announcements)
                rlm.readers.renew()

    def end(self, broker: int) -> None:
        self.rlms.pop(broker).readers.withdraw()
        self.pass_time()


@pytest.fixture
def world(stack: Stack) -> Iterator[World]:
    with ExitStack() as opened:
        made = World(stack, Answers(), opened)
        files = PartitionFiles(stack.log_dir)
        for base in (0, 10):
            files.segment(base, [records_of_five(base), records_of_five(base + 5)])
            files.snapshot(base + 10)
        files.segment(20, [records_of_five(20)])
        stack.ship()
        for broker, logs in ((ONE, stack.log_dir), (TWO, broker_beside(stack.log_dir, TWO))):
            made.serve(broker, logs)
        made.pass_time()
        for rlm in made.rlms.values():
            turn(rlm.lanes.poll)
        yield made


def test_each_rlm_names_the_nodes_and_the_leader_as_the_cluster_has_them(world: World) -> None:
    for each in world.asked.values():
        assert each.metadata() == ([ONE, TWO], (NONE, ONE, EPOCH))
    assert world.asked[ONE].fetch(epoch=EPOCH) == NONE
    assert world.asked[ONE].end(EPOCH) == (NONE, 25)
    assert world.asked[TWO].fetch(epoch=EPOCH) == NOT_LEADER
    assert world.asked[TWO].end() == (NOT_LEADER, -1)


def test_consumers_move_with_the_leader_before_it_has_its_role(world: World) -> None:
    world.cluster.leader, world.cluster.epoch = TWO, EPOCH + 1
    world.cluster.now_s += 1.1
    assert world.asked[ONE].metadata() == ([ONE, TWO], (NONE, TWO, EPOCH + 1))
    assert world.asked[TWO].fetch(epoch=EPOCH + 1) == NONE
    assert world.asked[ONE].fetch(epoch=EPOCH) == NOT_LEADER


def test_an_rlm_that_no_consumer_asks_for_leaders_learns_that_it_leads_no_more(
    world: World,
) -> None:
    assert world.asked[ONE].fetch(epoch=EPOCH) == NONE
    world.cluster.leader, world.cluster.epoch = TWO, EPOCH + 1
    assert world.asked[ONE].fetch(epoch=EPOCH) == NONE
    world.pass_time()
    assert world.asked[ONE].fetch(epoch=EPOCH) == NOT_LEADER


def test_an_epoch_is_compared_with_the_clusters(world: World) -> None:
    assert world.asked[ONE].fetch(epoch=EPOCH - 1) == FENCED
    assert world.asked[ONE].fetch(epoch=EPOCH + 1) == UNKNOWN_EPOCH
    assert world.asked[ONE].end(EPOCH - 1) == (FENCED, -1)
    world.cluster.now_s, world.cluster.epoch = world.cluster.now_s + 1.1, EPOCH + 1
    assert world.asked[ONE].fetch(epoch=EPOCH + 1) == NONE


def test_an_in_sync_follower_stands_in_for_a_dead_rlm(world: World) -> None:
    world.end(ONE)
    assert world.asked[TWO].metadata() == ([TWO], (NONE, TWO, EPOCH))
    assert world.asked[TWO].fetch(24, EPOCH) == NONE
    assert world.asked[TWO].end(EPOCH) == (NONE, 25)
    # The leader may have more: a consumer must not begin again.
    assert world.asked[TWO].fetch(26, EPOCH) == NOT_LEADER


def test_without_one_no_leader_is_available(world: World) -> None:
    world.cluster.in_sync = (ONE,)
    world.end(ONE)
    assert world.asked[TWO].metadata() == ([TWO], (LEADER_NOT_AVAILABLE, -1, EPOCH))
    assert world.asked[TWO].fetch(epoch=EPOCH) == NOT_LEADER


def test_the_end_of_a_leaders_log_is_the_end(world: World) -> None:
    assert world.asked[ONE].fetch(26, EPOCH) == OUT_OF_RANGE


@pytest.mark.parametrize("change", [{"leader": None}, {"topics": ()}], ids=["offline", "deleted"])
def test_what_no_broker_leads_is_read_from_any(world: World, change: dict[str, Any]) -> None:
    for name, value in change.items():
        setattr(world.cluster, name, value)
    world.pass_time()
    for broker, asked in world.asked.items():
        nodes, (error, leader, _) = asked.metadata()
        assert (nodes, error, leader) == ([ONE, TWO], NONE, broker)
        assert asked.fetch() == NONE


def test_leaders_stay_while_the_cluster_is_away(world: World) -> None:
    assert world.asked[TWO].metadata()[1] == (NONE, ONE, EPOCH)
    world.cluster.is_away = True
    world.cluster.now_s += 1.1
    assert world.asked[TWO].metadata()[1] == (NONE, ONE, EPOCH)
    asked_before = len(world.cluster.views)
    world.cluster.now_s += UNREACHABLE_S / 2
    assert world.asked[TWO].metadata()[1] == (NONE, ONE, EPOCH)
    assert len(world.cluster.views) == asked_before


def test_rlms_that_lived_last_live_while_rlmm_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.rlmm.is_away = True
    world.pass_time()
    world.pass_time()
    assert world.asked[TWO].metadata() == ([ONE, TWO], (NONE, ONE, EPOCH))
    assert caplog.text.count("cannot be announced: RLMM is away") == 2  # Once for each RLM.


def test_a_second_rlm_of_a_broker_serves_and_is_not_announced(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.rlms[ONE]
    world.serve(ONE, world.logs[ONE])
    world.pass_time()
    assert f"another RLM, at {first.readers.live[0].address}, has announced" in caplog.text
    assert world.asked[ONE].fetch(epoch=EPOCH) == NONE
    assert [each.broker_id for each in first.readers.live] == [ONE, TWO]


def test_the_rlms_of_two_clusters_are_apart(world: World, tmp_path: Path) -> None:
    other = broker_beside(world.stack.log_dir, THREE)
    (other / "meta.properties").write_text("version=1\nnode.id=9\ncluster.id=other\n")
    elsewhere = World(
        world.stack, Answers(leader=THREE, cluster_id="other"), world.opened, rlmm=world.rlmm
    )
    elsewhere.serve(THREE, other)
    elsewhere.pass_time()
    world.pass_time()
    assert elsewhere.asked[THREE].metadata()[0] == [THREE]
    assert world.asked[ONE].metadata()[0] == [ONE, TWO]


def test_a_tier_consumer_given_any_rlm_reads_from_the_leaders(world: World) -> None:
    log = world.logs[ONE] / f"{NAME.topic}-{NAME.partition}" / f"{20:020}.log"
    with log.open("ab") as file:
        file.write(records_of_five(25))  # Which the follower does not have yet.
    for given in world.grpc.values():
        with TierConsumer(given) as consumer:
            offsets = [each.offset for each in consumer.records(NAME.topic, NAME.partition)]
        assert offsets == [*range(30)]


def test_a_tier_consumer_reads_at_the_given_rlm_if_the_leaders_is_out_of_reach(
    world: World,
) -> None:
    rlm = world.rlms[ONE]
    for address in ("rlm.example:50053", f"{LOOPBACK}:1"):
        rlm.readers.serve_at(address, None)
        world.pass_time()
        with TierConsumer(world.grpc[TWO]) as consumer:
            read = [each.offset for each in consumer.records(NAME.topic, NAME.partition)]
        assert read == [*range(25)]


def test_doctor_names_announced_addresses_that_cannot_be_reached(world: World) -> None:
    world.rlms[TWO].readers.serve_at(f"{LOOPBACK}:1", "rlm.invalid:9192")
    world.pass_time()
    done = sediment("doctor", "--rlm", world.grpc[ONE], "--timeout", 120, "-o", "json")
    findings = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "readers"]
    assert {each["level"] for each in findings} == {"WARN"}
    assert [each["text"].partition(": ")[0] for each in findings] == [
        f"the RLM of broker {TWO} announces {LOOPBACK}:1",
        f"the RLM of broker {TWO} announces rlm.invalid:9192",
    ]
    assert [each["next"].split()[2] for each in findings] == [
        "RLM_ADVERTISED_ADDRESS",
        "RLM_CONSUMER_ADVERTISED_ADDRESS",
    ]
