"""A real single-node Kafka (KRaft, broker and controller in one process) for tests and test data.

The jars come from Maven Central through ``tests/kafka/broker/pom.xml`` and are kept in the user's
cache directory, outside the repository. Needs ``java`` 17 or newer on the PATH, and ``mvn`` the
first time.

    with KafkaBroker(tmp_path / "kafka", {"log.retention.ms": "-1"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        ...
        broker.restart()  # each partition enters a new leader epoch
    # stopped cleanly: broker.log_dir is what Kafka leaves on a disk
"""

import base64
import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.etree import ElementTree

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

POM = Path(__file__).resolve().parents[1] / "kafka" / "broker" / "pom.xml"
MINIMUM_JAVA = 17
MAVEN_TIMEOUT_S = 900.0
FORMAT_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1
PORT_ATTEMPTS = 5
LOG_TAIL_CHARACTERS = 4096
NODE_ID = 1

JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the cheap compiler only: the broker lives for seconds
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    # Hundreds of lines of settings at each start would push the cause of a failure out of its tail.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

DEFAULT_SETTINGS: Mapping[str, str] = {
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
"""What one node on a small machine needs; a caller's settings win over these."""

OWNED_SETTINGS = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "process.roles",
    }
)
"""What KafkaBroker decides itself; naming one of these in the caller's settings is an error."""


class KafkaBrokerError(RuntimeError):
    """The broker cannot be had, did not start, or did not stop cleanly."""


class KafkaPortTakenError(KafkaBrokerError):
    """Another process took one of the ports between our finding it free and Kafka's bind."""


def ensure_kafka_jars(version: str | None = None) -> Path:
    """Return a directory with all jars of a broker, downloading them once per version and pom.

    The directory appears complete or not at all, and any number of processes may ask at the same
    time: one downloads, the others wait. ``version`` is Kafka's, by default the one in the pom.

    Raises:
        KafkaBrokerError: the jars are not there yet, and ``mvn`` is missing or failed.
    """
    version = version or pinned_kafka_version()
    pom_digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    jars = _cache_home() / "sediment" / f"kafka-{version}" / pom_digest
    if jars.is_dir():
        return jars
    mvn = _find_program("mvn", "Apache Maven, to fetch Kafka's jars")
    _find_java()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with (jars.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not jars.is_dir():
            _download_jars(mvn, version, jars)
    return jars


def pinned_kafka_version() -> str:
    """Kafka's version in the pom, the only place that names it."""
    version = ElementTree.parse(POM).findtext(".//{*}properties/{*}kafka.version")
    if version is None:
        raise KafkaBrokerError(f"{POM.name} names no kafka.version")
    return version


class KafkaBroker:
    """One broker in ``directory``, which keeps its state between starts.

    * ``directory/data`` (``log_dir``) is Kafka's log.dir; ``directory/broker.log`` is what Kafka
      printed over all starts.
    * Ports are free loopback ports; a restart keeps them unless somebody took them meanwhile, so
      read ``bootstrap_servers`` again after each start.
    * As a context manager it starts on entry; it stops cleanly on exit, or is killed when the body
      raised.
    * Not thread-safe.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        jars: Path | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        """Prepare a broker; nothing runs yet.

        ``settings`` are broker properties by Kafka's names. ``jars`` is the result of
        ``ensure_kafka_jars`` for another version than the pinned one.
        """
        owned = OWNED_SETTINGS.intersection(settings or {})
        if owned:
            raise ValueError(f"KafkaBroker chooses these itself: {', '.join(sorted(owned))}")
        self.directory = directory.resolve()
        self.log_dir = self.directory / "data"
        self.broker_log = self.directory / "broker.log"
        self._properties = self.directory / "server.properties"
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._jars = jars
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._broker_port, self._controller_port = _free_ports(2)
        self._run_starts_at_bytes = 0

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for a client's bootstrap.servers."""
        return f"127.0.0.1:{self._broker_port}"

    @property
    def cluster_id(self) -> str:
        """The id that formatting gave this cluster; raises before the first start."""
        match = re.search(r"^cluster\.id=(.+)$", self._meta_properties.read_text(), re.MULTILINE)
        if match is None:
            raise KafkaBrokerError("meta.properties names no cluster.id")
        return match[1].strip()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and return once a client gets metadata in which every partition has a leader.

        Raises:
            KafkaBrokerError: java or mvn is missing, or the broker died or stayed silent until the
                deadline; the message ends with the tail of its log.
        """
        if self.running:
            raise KafkaBrokerError("the broker already runs")
        java, jars = _find_java(), self._jars or ensure_kafka_jars()
        command = [java, *JVM_OPTIONS, "-cp", f"{jars}{os.sep}*"]
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(PORT_ATTEMPTS):
            self._write_properties()
            if not self._meta_properties.exists():
                self._format(command)
            self._process = self._launch(command)
            try:
                self._wait_until_ready(self._process)
            except KafkaPortTakenError:
                self._broker_port, self._controller_port = _free_ports(2)
            except BaseException:
                self.kill()
                raise
            else:
                return
        raise KafkaBrokerError(f"no free port stayed free in {PORT_ATTEMPTS} attempts")

    def stop(self) -> None:
        """SIGTERM, and wait for a clean shutdown. Nothing to do when it was not started.

        Raises:
            KafkaBrokerError: it had died before, took too long (it is killed then), or left no mark
                of a clean shutdown.
        """
        process, self._process = self._process, None
        if process is None:
            return
        died_before = process.poll() is not None
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self._failure(f"the broker did not stop within {STOP_TIMEOUT_S:g} s") from None
        if died_before:
            raise self._failure(f"the broker had died with exit code {process.returncode}")
        if not (self.log_dir / ".kafka_cleanshutdown").is_file():
            raise self._failure("the broker stopped without .kafka_cleanshutdown")

    def kill(self) -> None:
        """SIGKILL: no clean shutdown, as in a power failure. The next start recovers the logs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Stop cleanly and start again: each partition gets new leader epochs."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Killed after a failure, so that an unclean stop cannot hide what went wrong first.
        if exc_type is None:
            self.stop()
        else:
            self.kill()

    @property
    def _meta_properties(self) -> Path:
        return self.log_dir / "meta.properties"

    def _write_properties(self) -> None:
        broker, controller = self.bootstrap_servers, f"127.0.0.1:{self._controller_port}"
        settings = {
            **self._settings,
            "process.roles": "broker,controller",
            "node.id": str(NODE_ID),
            # The voters stand here and not in the metadata log, so that the port may change.
            "controller.quorum.voters": f"{NODE_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "log.dirs": str(self.log_dir),
        }
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in sorted(settings.items())))

    def _format(self, command: list[str]) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=", because an id may begin with a dash.
        arguments = ["format", "--ignore-formatted", f"--cluster-id={cluster_id}"]
        with self.broker_log.open("ab") as log:
            self._run_starts_at_bytes = log.tell()
            done = subprocess.run(
                [*command, "kafka.tools.StorageTool", *arguments, f"--config={self._properties}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=FORMAT_TIMEOUT_S,
                check=False,
            )
        if done.returncode != 0:
            raise self._failure("formatting the storage failed")

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.broker_log.open("ab") as log:
            self._run_starts_at_bytes = log.tell()
            return subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C at the terminal reaches only us; we stop the broker
            )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,  # refused connections are what we expect until it listens
            }
        )
        while not _has_leaders(admin, self.cluster_id):
            if time.monotonic() > deadline_s:
                raise self._failure(f"the broker was not ready in {self._start_timeout_s:g} s")
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLL_INTERVAL_S)
            if process.returncode is not None:
                if "Address already in use" in self._run_output():
                    raise KafkaPortTakenError("a port was taken meanwhile")
                raise self._failure(f"the broker died with exit code {process.returncode}")

    def _run_output(self) -> str:
        with self.broker_log.open("rb") as log:
            log.seek(self._run_starts_at_bytes)
            return log.read().decode(errors="replace")

    def _failure(self, what: str) -> KafkaBrokerError:
        tail = self._run_output()[-LOG_TAIL_CHARACTERS:]
        return KafkaBrokerError(f"{what}; the end of {self.broker_log}:\n{tail}")


def _has_leaders(admin: AdminClient, cluster_id: str) -> bool:
    """Whether a client could work now: this broker is registered and each partition has a leader.

    The cluster id tells our broker from another one that took its port.
    """
    try:
        metadata = admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    leaders = [p.leader for topic in metadata.topics.values() for p in topic.partitions.values()]
    ours = metadata.cluster_id == cluster_id and bool(metadata.brokers)
    return ours and all(leader >= 0 for leader in leaders)


def _free_ports(count: int) -> list[int]:
    """Different ports that were free a moment ago; the caller must cope with one taken since."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _download_jars(mvn: str, version: str, jars: Path) -> None:
    """Fetch into a sibling and rename: who looks without the lock sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="download-") as parent:
        incoming = Path(parent) / "jars"
        done = subprocess.run(
            [
                mvn,
                "-q",
                "-B",
                "-Dstyle.color=never",
                f"--file={POM}",
                "dependency:copy-dependencies",
                f"-Dkafka.version={version}",
                f"-DoutputDirectory={incoming}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            tail = done.stdout[-LOG_TAIL_CHARACTERS:]
            raise KafkaBrokerError(f"mvn could not fetch Kafka {version}:\n{tail}")
        incoming.rename(jars)


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _find_java() -> str:
    java = _find_program("java", f"a Java runtime, {MINIMUM_JAVA} or newer, to run Kafka")
    command = [java, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else "unknown"
        raise KafkaBrokerError(
            f"Kafka needs Java {MINIMUM_JAVA} or newer; the java on the PATH is version {found}"
        )
    return java


def _find_program(name: str, purpose: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise KafkaBrokerError(f"{name} is not on the PATH: it is needed as {purpose}")
    return found
