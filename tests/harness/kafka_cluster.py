"""Run a real Kafka cluster that tests kill and wipe, and move its leaders and replicas."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.inet import KafkaNetSocket
from kafka.structs import TopicPartition, TopicPartitionReplica

from demos.kafka_broker import (
    KafkaBroker,
    Membership,
    find_java,
    format_storage,
    new_cluster_id,
    small_jvm,
)
from services.local.process import LOOPBACK, ChildProcess, ReservedPorts, start_on_free_ports
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import ensure_kafka_archive

CONTROLLER_ID = 100
_START_TIMEOUT_MS = 120_000
_CONTROLLER_HEAP = "-Xmx192m"
_BROKER_HEAP = "-Xmx256m"

REPLICATED: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "auto.leader.rebalance.enable": "false",
    # A killed broker is missed soon, and one that stands still for some seconds is not.
    "broker.session.timeout.ms": "6000",
    "replica.fetch.backoff.ms": "100",
}
"""Broker properties of three brokers whose leaders only the tests move."""


class KafkaController:
    """Run the one controller of a cluster in ``directory``."""

    def __init__(self, directory: Path, jars: Path) -> None:
        self.directory = directory.resolve()
        self.cluster_id = new_cluster_id()
        self._java = [find_java(), *small_jvm(jars), _CONTROLLER_HEAP, "-cp", f"{jars}/*"]
        self._process: ChildProcess | None = None
        self._ports: ReservedPorts | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def voter(self) -> str:
        """Return NODE_ID@HOST:PORT, as brokers have it in their properties."""
        assert self._ports is not None
        return self._voter(self._ports.ports)

    def start(self) -> None:
        """Format the storage, start, and wait until brokers can connect."""
        self._ports = start_on_free_ports(1, self._start_on)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _voter(self, ports: Sequence[int]) -> str:
        return f"{CONTROLLER_ID}@{LOOPBACK}:{ports[0]}"

    def _start_on(self, ports: Sequence[int]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "controller.properties"
        settings = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "controller.quorum.voters": self._voter(ports),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://{LOOPBACK}:{ports[0]}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            # Without it the controller refuses tiered topics, whatever the brokers can do.
            "remote.log.storage.system.enable": "true",
            **REPLICATED,
        }
        properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        format_storage(self._java, self.cluster_id, properties)
        command = [*self._java, "kafka.Kafka", str(properties)]
        self._process = ChildProcess("controller", command, self.directory, os.environ)
        self._process.start()
        self._process.wait_until_ready(lambda: _listens(ports[0]), _START_TIMEOUT_MS)


class KafkaCluster:
    """Run brokers 1, 2, ... and their controller below ``directory`` while it is entered.

    Each broker has log directories of its own. Tests stop, kill and start brokers, and leave all
    of them running.
    """

    def __init__(
        self,
        directory: Path,
        settings: Sequence[Mapping[str, str]],
        *,
        log_dirs: int = 1,
        version: str | None = None,
        spare: int = 0,
        jvm_options: Sequence[str] = (),
    ) -> None:
        """Prepare one broker for each entry of ``settings``, which are properties by Kafka's names;
        nothing runs yet. The last ``spare`` of them are started by tests.

        ``jvm_options`` are by default those of brokers that live for seconds.
        """
        self._directory = directory
        self._settings = settings
        self._log_dirs = log_dirs
        self._spare = spare
        self._jars = ensure_kafka_jars(version)
        ensure_kafka_archive(self._jars)
        self._jvm_options = jvm_options or [*small_jvm(self._jars), _BROKER_HEAP]
        self._cleanup = ExitStack()
        self.brokers: Sequence[KafkaBroker] = ()
        self.controller = KafkaController(self._directory / "controller", self._jars)

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses of all brokers but the spare ones."""
        return ",".join(broker.bootstrap_servers for broker in self._always_there)

    @property
    def _always_there(self) -> Sequence[KafkaBroker]:
        return self.brokers[: len(self.brokers) - self._spare]

    def broker(self, node_id: int) -> KafkaBroker:
        return self.brokers[node_id - 1]

    def wipe(self, node_id: int) -> None:
        """Stop a broker, remove all that it has on its disks, and start it again."""
        broker = self.broker(node_id)
        broker.stop()
        for log_dir in broker.log_dirs:
            shutil.rmtree(log_dir)
        broker.start()

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            cleanup.callback(self.controller.kill)
            self.controller.start()
            self.brokers = [
                self._new_broker(number, settings)
                for number, settings in enumerate(self._settings, 1)
            ]
            for broker in self.brokers:
                cleanup.callback(broker.kill)  # a stop would wait for the others
            with ThreadPoolExecutor() as pool:
                list(pool.map(KafkaBroker.start, self._always_there))
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _new_broker(self, number: int, settings: Mapping[str, str]) -> KafkaBroker:
        return KafkaBroker(
            self._directory / f"broker-{number}",
            self._jars,
            {**REPLICATED, **settings},
            log_dirs=self._log_dirs,
            jvm_options=self._jvm_options,
            membership=Membership(number, self.controller.cluster_id, self.controller.voter),
        )


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True


_DEADLINE_MS = 120_000
_POLL_MS = 100  # each request has a connection of its own
_PREFERRED, _UNCLEAN = 0, 1
_T = TypeVar("_T")
Assignments = Sequence[Sequence[int]]
"""For each partition the ids of its replicas, the preferred leader first."""


class ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Close a socket that finds no broker: kafka-python leaves that to the garbage collector."""

    SCHEMES = ("closing",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: Any = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


@dataclass(frozen=True)
class Replicas:
    """A partition's replicas by node id; `leader` is -1 if there is none."""

    leader: int
    assigned: tuple[int, ...]
    in_sync: frozenset[int]


class ClusterAdmin:
    """Administers one cluster. Every method waits until the brokers have done what it asks."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers.split(",")

    def create(self, topic: str, assignments: Assignments, config: Mapping[str, str]) -> None:
        numbered = {number: list(replicas) for number, replicas in enumerate(assignments)}
        with self._admin() as admin:
            admin.create_topics({topic: {"assignments": numbered, "configs": dict(config)}})
        for partition in numbered:
            self.wait_for_leader(topic, partition)

    def expand(self, topic: str, assignments: Assignments) -> None:
        """Add partitions, one for each list of replicas."""
        with self._admin() as admin:
            (described,) = admin.describe_topics([topic])
            before = len(described["partitions"])
            replicas = [list(each) for each in assignments]
            admin.create_partitions(
                {topic: {"count": before + len(replicas), "assignments": replicas}}
            )
        for partition in range(before, before + len(replicas)):
            self.wait_for_leader(topic, partition)

    def replicas(self, topic: str, partition: int) -> Replicas:
        """Return what a broker knows of them, once one knows the partition."""

        def known() -> list[Replicas]:
            with self._admin() as admin:
                (described,) = admin.describe_topics([topic])
            return [
                Replicas(p["leader_id"], tuple(p["replica_nodes"]), frozenset(p["isr_nodes"]))
                for p in described["partitions"]
                if p["partition_index"] == partition
            ]

        return _eventually(known)[0]

    def wait_for_leader(self, topic: str, partition: int, other_than: int | None = None) -> int:
        """Return the leader once there is one, and not the given one."""

        def leads() -> list[int]:
            leader = self._leader(topic, partition)
            return [] if leader in (-1, other_than) else [leader]

        return _eventually(leads)[0]

    def wait_until_in_sync(self, topic: str, partition: int, count: int) -> None:
        """Wait until so many replicas are in sync, and no other is assigned."""

        def are_in_sync() -> bool:
            found = self.replicas(topic, partition)
            assert len(found.in_sync) == len(found.assigned) == count, found
            return True

        _eventually(are_in_sync)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to these brokers and wait until all of them have it."""
        name = TopicPartition(topic, partition)

        def is_accepted() -> bool:
            with self._admin() as admin:
                return admin.alter_partition_reassignments({name: list(replicas)})[name] is None

        _eventually(is_accepted)

        def is_done() -> bool:
            with self._admin() as admin:
                under_way = admin.list_partition_reassignments({topic: [partition]})
            assert not under_way
            assert self.replicas(topic, partition).assigned == tuple(replicas)
            return True

        _eventually(is_done)
        self.wait_until_in_sync(topic, partition, len(replicas))

    def elect_preferred(self, topic: str, partition: int) -> None:
        """Let the first of the assigned replicas lead."""
        preferred = self.replicas(topic, partition).assigned[0]

        def leads() -> bool:
            if self._leader(topic, partition) != preferred:
                self._elect(_PREFERRED, topic, partition)
            return self._leader(topic, partition) == preferred

        _eventually(leads)

    def elect_unclean(self, topic: str, partition: int, node_id: int) -> None:
        """Let the one replica that lives lead, though it is not in sync."""

        def leads() -> bool:
            if self._leader(topic, partition) != node_id:
                self._elect(_UNCLEAN, topic, partition)
            return self._leader(topic, partition) == node_id

        _eventually(leads)

    def lead(self, topic: str, partition: int, node_id: int) -> None:
        """Let this replica lead: it becomes the preferred one, and is elected."""
        assigned = self.replicas(topic, partition).assigned
        self.reassign(topic, partition, (node_id, *(n for n in assigned if n != node_id)))
        self.elect_preferred(topic, partition)

    def move_log_dir(self, topic: str, partition: int, node_id: int, log_dir: str) -> None:
        """Ask a broker to move its replica to another of its log directories."""
        replica = TopicPartitionReplica(topic, partition, node_id)
        with self._admin() as admin:
            (error,) = admin.alter_replica_log_dirs({replica: log_dir}).values()
        assert error.errno == 0, error

    def offset(self, topic: str, partition: int, question: int) -> int:
        """Return the leader's answer to a ListOffsets: of a time, or with a special timestamp."""
        return self.offset_and_epoch(topic, partition, question)[0]

    def offset_and_epoch(self, topic: str, partition: int, question: int) -> tuple[int, int]:
        """Return the leader epoch of that offset too; -1 if there is none."""
        name = TopicPartition(topic, partition)
        with self._admin() as admin:
            found = admin.list_partition_offsets({name: question})[name]
        return int(found.offset), -1 if found.leader_epoch is None else int(found.leader_epoch)

    def _leader(self, topic: str, partition: int) -> int:
        return self.replicas(topic, partition).leader

    def _elect(self, kind: int, topic: str, partition: int) -> None:
        with self._admin() as admin:
            admin.elect_leaders(kind, {topic: [partition]}, raise_errors=False)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        """Connect for one request: a kept connection may be to a broker that was killed."""
        admin = _eventually(self._connected)
        try:
            yield admin
        except KafkaError as e:
            raise AssertionError(f"{type(e).__name__}: {e}") from e
        finally:
            admin.close()

    def _connected(self) -> KafkaAdminClient:
        try:
            return KafkaAdminClient(
                bootstrap_servers=self._bootstrap_servers, proxy_url="closing://"
            )
        except KafkaError as e:
            raise AssertionError(f"no broker answers: {e}") from e


def _eventually(check: Callable[[], _T]) -> _T:
    return eventually(check, _DEADLINE_MS, _POLL_MS)
