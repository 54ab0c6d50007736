"""Run a real Kafka cluster: a controller, and brokers that tests kill and whose disks they wipe."""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from demos.kafka_broker import (
    KafkaBroker,
    Membership,
    find_java,
    format_storage,
    new_cluster_id,
    small_jvm,
)
from services.local.process import LOOPBACK, ChildProcess, HeldPorts, start_on_free_ports
from tests.harness.class_archives import ensure_kafka_archive
from tests.harness.kafka_jars import ensure_kafka_jars

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
        self._ports: HeldPorts | None = None

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
    ) -> None:
        """Prepare one broker for each entry of ``settings``, which are properties by Kafka's names;
        nothing runs yet.
        """
        self._directory = directory
        self._settings = settings
        self._log_dirs = log_dirs
        self._jars = ensure_kafka_jars(version)
        ensure_kafka_archive(self._jars)
        self._cleanup = ExitStack()
        self.brokers: Sequence[KafkaBroker] = ()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

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
            controller = KafkaController(self._directory / "controller", self._jars)
            cleanup.callback(controller.kill)
            controller.start()
            self.brokers = [
                self._new_broker(controller, number, settings)
                for number, settings in enumerate(self._settings, 1)
            ]
            for broker in self.brokers:
                cleanup.callback(broker.kill)  # a stop would wait for the others
            with ThreadPoolExecutor() as pool:
                list(pool.map(KafkaBroker.start, self.brokers))
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def _new_broker(
        self, controller: KafkaController, number: int, settings: Mapping[str, str]
    ) -> KafkaBroker:
        return KafkaBroker(
            self._directory / f"broker-{number}",
            self._jars,
            {**REPLICATED, **settings},
            log_dirs=self._log_dirs,
            jvm_options=[*small_jvm(self._jars), _BROKER_HEAP],
            membership=Membership(number, controller.cluster_id, controller.voter),
        )


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True
