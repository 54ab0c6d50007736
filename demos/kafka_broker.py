"""Run a real Kafka broker (KRaft): a whole cluster in one process, or a member of another."""

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.process import LOOPBACK, ChildProcess, ServerProcess, last_error

MINIMUM_JAVA = 17


class JavaMissingError(RuntimeError):
    """There is no java on the PATH, or it is too old."""


def find_java() -> str:
    """Find the java on the PATH.

    Raises:
        JavaMissingError: there is none, or it is too old for Kafka.
    """
    java = shutil.which("java")
    if java is None:
        raise JavaMissingError(
            f"java is not on the PATH: Kafka needs a Java runtime, {MINIMUM_JAVA} or newer"
        )
    command = [java, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else "unknown"
        raise JavaMissingError(
            f"Kafka needs Java {MINIMUM_JAVA} or newer; the java on the PATH is version {found}"
        )
    return java


_PACKAGE = "io.sediment.kafka"


def plugin_settings(
    jar: Path, rsm_address: str, rlmm_address: str, security: ClientSecurity = PLAINTEXT
) -> dict[str, str]:
    """Return broker properties by Kafka's names, for services at `host:port`.

    Each topic has its own setting for tiering, remote.storage.enable.
    """
    storage, metadata = "remote.log.storage.manager", "remote.log.metadata.manager"
    return {
        "remote.log.storage.system.enable": "true",
        f"{storage}.class.name": f"{_PACKAGE}.SedimentRemoteStorageManager",
        f"{storage}.class.path": str(jar),
        "rsm.config.endpoint": rsm_address,
        "rsm.config.rlmm.endpoint": rlmm_address,
        **_connection_settings("rsm.config", security),
        f"{metadata}.class.name": f"{_PACKAGE}.SedimentRemoteLogMetadataManager",
        f"{metadata}.class.path": str(jar),
        "rlmm.config.endpoint": rlmm_address,
        **_connection_settings("rlmm.config", security),
    }


def _connection_settings(prefix: str, security: ClientSecurity) -> dict[str, str]:
    if security == PLAINTEXT:
        return {f"{prefix}.security.protocol": "PLAINTEXT"}
    return {
        f"{prefix}.security.protocol": "SSL",
        f"{prefix}.ssl.ca.file": str(security.ca),
        f"{prefix}.ssl.certificate.file": str(security.certificate),
        f"{prefix}.ssl.key.file": str(security.key),
    }


NODE_ID = 1
_FORMAT_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0

SMALL_JVM = (
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the cheap compiler only: the broker lives for seconds
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    # Hundreds of lines of settings at each start would push a failure's cause out of the log's
    # tail.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


def class_archive(jars: Path) -> Path:
    """Return where the archive of the classes of these jars is, if it was made."""
    return jars.with_name(f"{jars.name}.jsa")


def small_jvm(jars: Path) -> list[str]:
    """Return SMALL_JVM, and the archive of classes if there is one: half of a start's CPU time."""
    archive = class_archive(jars)
    if not archive.is_file():
        return [*SMALL_JVM]
    # Java ignores the archive of another Java; without a line about it.
    return [*SMALL_JVM, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"]


_DEFAULT_SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",  # the default alone is half of this heap
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""Defaults for one node on a small machine; a caller's settings override them."""

_OWNED_SETTINGS = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "process.roles",
    }
)
"""Settings that only KafkaBroker sets; the caller's settings must not contain them."""

_PROTOCOLS_OF_LISTENERS = ",".join(
    [
        "CONTROLLER:PLAINTEXT",
        *(f"{name}:{name}" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    ]
)


class KafkaBrokerError(RuntimeError):
    """The broker could not be created, or did not stop cleanly."""


@dataclass(frozen=True)
class Membership:
    """The place of a broker in a cluster whose controller is another process.

    Attributes:
        controller: Kafka's form of the one voter, ``NODE_ID@HOST:PORT``.
    """

    node_id: int
    cluster_id: str
    controller: str


class KafkaBroker(ServerProcess):
    """Run one broker in ``directory``, which keeps its state between starts.

    * ``log_dirs`` are Kafka's log.dirs, of which ``log_dir`` is the first;
      ``directory/broker.log`` is Kafka's output since the last start.
    * Ports are free loopback ports, which stay the same over restarts.
    * As a context manager it starts on entry; it stops cleanly on exit, or is killed if the body
      raised. It never outlives this process.
    * Not thread-safe.
    """

    _START_TIMEOUT_MS = 120_000

    def __init__(
        self,
        directory: Path,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        *,
        log_dirs: int = 1,
        listeners: Sequence[str] = (),
        jvm_options: Sequence[str] | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Prepare a broker; nothing runs yet.

        ``jars`` is a directory with all jars of a broker. ``settings`` are broker properties by
        Kafka's names. ``listeners`` are additional to PLAINTEXT, each named like its security
        protocol. ``jvm_options`` are by default `small_jvm`, for a broker that lives for seconds.
        Without ``membership`` the broker is its own controller and the whole cluster.
        """
        owned = _OWNED_SETTINGS.intersection(settings or {})
        if owned:
            raise ValueError(f"KafkaBroker chooses these itself: {', '.join(sorted(owned))}")
        self.directory = directory.resolve()
        names = ["data", *(f"data-{number}" for number in range(2, log_dirs + 1))]
        self.log_dirs = tuple(self.directory / name for name in names)
        self.log_dir = self.log_dirs[0]
        self._properties = self.directory / "server.properties"
        self._settings = {**_DEFAULT_SETTINGS, **(settings or {})}
        self._jars = jars
        self._listeners = ("PLAINTEXT", *listeners)
        super().__init__(1 + len(self._listeners))
        self._jvm_options = small_jvm(jars) if jvm_options is None else jvm_options
        self._membership = membership
        self.node_id = membership.node_id if membership else NODE_ID

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port`` for a client's bootstrap.servers; raises before the first start."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Return ``host:port`` of a listener; raises before the first start."""
        _, *ports = self._ports
        return dict(self._addresses(ports))[listener]

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id from its formatting; raises before the first start."""
        match = re.search(r"^cluster\.id=(.+)$", self._meta_properties.read_text(), re.MULTILINE)
        if match is None:
            raise KafkaBrokerError("meta.properties names no cluster.id")
        return match[1].strip()

    def start(self) -> None:
        """Start, and return once a client gets metadata in which every partition has a leader.

        A member of a larger cluster is ready once the cluster lists it.

        Raises:
            JavaMissingError: there is no java, or it is too old.
            KafkaBrokerError: the storage could not be formatted.
            ProcessError: the broker died or did not respond until the deadline; the message has
                the last error of its log.
        """
        super().start()

    def stop(self) -> None:
        """Send SIGTERM and wait for a clean shutdown; no effect if the broker was not started.

        Raises:
            KafkaBrokerError: there is no mark of a clean shutdown, because the broker had died
                before or was killed for taking too long.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.stop(_STOP_TIMEOUT_S)
        if not (self.log_dir / ".kafka_cleanshutdown").is_file():
            raise process.failed(KafkaBrokerError, "did not shut down cleanly")

    def kill(self) -> None:
        """Send SIGKILL, like a power failure: the next start recovers the logs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        """Take these broker properties instead of those given before, from the next start on."""
        self._settings = {**_DEFAULT_SETTINGS, **settings}

    def restart(self) -> None:
        """Stop cleanly and start again: each partition gets new leader epochs."""
        self.stop()
        self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Killed after a failure, so that an unclean stop cannot hide the first error.
        if error is None:
            self.stop()
        else:
            self.kill()

    @property
    def _meta_properties(self) -> Path:
        return self.log_dir / "meta.properties"

    def _program(self) -> ChildProcess:
        command = [find_java(), *self._jvm_options, "-cp", f"{self._jars}/*"]
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_properties(*self._ports)
        if not self._meta_properties.exists():
            self._format(command)
        command += ["kafka.Kafka", str(self._properties)]
        self._admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,  # refused connections are expected until it listens
            }
        )
        return ChildProcess("broker", command, self.directory, os.environ)

    def _is_ready(self) -> bool:
        if self._membership is None:
            return _has_leaders(self._admin, self.cluster_id)
        return _lists(self._admin, self.node_id, self._ports[-1])

    def _addresses(self, ports: Sequence[int]) -> Iterator[tuple[str, str]]:
        for listener, port in zip(self._listeners, ports, strict=True):
            yield listener, f"{LOOPBACK}:{port}"

    def _write_properties(self, controller_port: int, *ports: int) -> None:
        controller = f"{LOOPBACK}:{controller_port}"
        listeners = [f"{name}://{address}" for name, address in self._addresses(ports)]
        membership = self._membership
        own = [] if membership else [f"CONTROLLER://{controller}"]
        settings = {
            **self._settings,
            "process.roles": "broker" if membership else "broker,controller",
            "node.id": str(self.node_id),
            # The voters are here and not in the metadata log, so that the port may change.
            "controller.quorum.voters": (
                membership.controller if membership else f"{NODE_ID}@{controller}"
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*listeners, *own]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": _PROTOCOLS_OF_LISTENERS,
            "log.dirs": ",".join(map(str, self.log_dirs)),
        }
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in sorted(settings.items())))

    def _format(self, command: Sequence[str]) -> None:
        cluster_id = self._membership.cluster_id if self._membership else new_cluster_id()
        format_storage(command, cluster_id, self._properties)


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def format_storage(java: Sequence[str], cluster_id: str, properties: Path) -> None:
    """Format the storage of a node, as Kafka requires before its first start.

    Raises:
        KafkaBrokerError: Kafka's tool failed.
    """
    # With "=", because an id may begin with a dash.
    arguments = ["format", "--ignore-formatted", f"--cluster-id={cluster_id}"]
    done = subprocess.run(
        [*java, "kafka.tools.StorageTool", *arguments, f"--config={properties}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaBrokerError(f"formatting the storage failed: {last_error(done.stdout)}")


def _has_leaders(admin: AdminClient, cluster_id: str) -> bool:
    """Return whether a client could work now.

    The broker must be registered and each partition must have a leader. The cluster id
    distinguishes our broker from another one that took its port.
    """
    try:
        metadata = admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    leaders = [p.leader for topic in metadata.topics.values() for p in topic.partitions.values()]
    ours = metadata.cluster_id == cluster_id and bool(metadata.brokers)
    return ours and all(leader >= 0 for leader in leaders)


def _lists(admin: AdminClient, node_id: int, port: int) -> bool:
    """Return whether the cluster has the broker at this port: registered, and not fenced."""
    try:
        metadata = admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    found = metadata.brokers.get(node_id)
    return found is not None and found.port == port
