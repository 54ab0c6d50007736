"""Run what the faults break: RSM, RLMM and RLM as processes, over real servers and proxies."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentState
from services.local.certificates import Certificate, CertificateAuthority
from services.local.seaweedfs import SeaweedFS
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlmm.database import schema
from tests.alerts.cluster_state import ClusterState, published_state
from tests.harness.certificates import OPERATOR
from tests.harness.eventually import eventually
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.local_servers import DatabaseServer
from tests.harness.metadata_broker import MetadataBroker, described, metadata, partition
from tests.harness.metadata_broker import topic as topic_of
from tests.harness.proxy import TcpProxy
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import World, running_world

SEGMENT_BYTES = 256 * 1024
CONNECTIONS = 4
STRANGER = "spiffe://sediment.test/stranger"
TOPICS = ("cold", "damaged", "denied", "due", "expiring", "held", "lost", "steady", "uncopied")
POLICY = f"""\
[[grant]]
identities = ["{OPERATOR}"]
roles = ["reader"]
topics = ["*"]
"""

_RSM = {"RSM_STREAM_THREADS": "2", "RSM_RETRIES": "0"}
_RLMM = {"RLMM_DATABASE_POOL_SIZE": str(CONNECTIONS)}
_RLM = {
    "RLM_REMOTE_LOG_READER_THREADS": "1",
    "RLM_REMOTE_LOG_MANAGER_TASK_RETRY_BACKOFF_MAX_MS": "2000",
    "RLM_REMOTE_FETCH_MAX_WAIT_MS": "2000",
    # So that each read of the tier needs RSM, and its index a file.
    "RLM_REMOTE_LOG_CHUNK_CACHE_MEMORY_BYTES": "0",
    "RLM_REMOTE_LOG_INDEX_CACHE_MEMORY_BYTES": "1",
}
_INTERVAL_MS = 500
_NO_LIMIT = "-1"


@dataclass(frozen=True)
class Deployment:
    """What runs.

    Attributes:
        world: RSM and RLMM, plaintext.
        store: between RSM and the S3 server.
        rlm: over all topics of the log directory.
        tls_rsm: an RSM with TLS, over the files in `objects`, which have a mirror.
        poller: an RLM that polls a broker through `broker`, and may trim a log of one topic.
        trimmed: that topic's partition.
        broker_retention: retention.ms of all topics at the broker.
        database: between RLMM and PostgreSQL; `database_url` leads past it.
        cluster: what kube-state-metrics would publish.
    """

    world: World
    store: HttpProxy
    rlm: ServiceProcess
    index_cache: Path
    tls_rsm: ServiceProcess
    objects: Path
    authority: CertificateAuthority
    certificate: Certificate
    operator: Certificate
    stranger: Certificate
    policy: Path
    poller: ServiceProcess
    trimmed: TopicIdPartition
    broker_retention: list[str]
    broker: TcpProxy
    database: TcpProxy
    database_url: str
    cluster: ClusterState

    @property
    def services(self) -> dict[str, list[ServiceProcess]]:
        """Return the processes by service."""
        return {
            "rsm": [self.world.rsm, self.tls_rsm],
            "rlmm": [self.world.rlmm],
            "rlm": [self.rlm, self.poller],
        }

    def folder(self, topic: str) -> Path:
        return self.world.log_dir / f"{topic}-0"

    def name(self, topic: str) -> TopicIdPartition:
        """Return the name of the topic's first partition."""
        partitions = self.world.local_segments()
        return next(name for name in partitions if (name.topic, name.partition) == (topic, 0))

    def roll(self, topic: str, size_bytes: int = SEGMENT_BYTES) -> Path:
        """Roll one more segment; return its log."""
        active = max(self.folder(topic).glob("*.log"))
        roll_segment(self.folder(topic), int(active.stem), size_bytes)
        return active

    def finished(self, topic: str) -> int:
        """Return how many segments of the topic are in the tier."""
        rows = self.world.rows()
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        return sum(row.topic_id_partition.topic == topic and row.state is finished for row in rows)

    def configure(self, topic: str, settings: dict[str, str]) -> None:
        name = self.trimmed if topic == self.trimmed.topic else self.name(topic)
        with self.world.metadata() as rlmm:
            rlmm.put_topic_config(name.topic_id, settings, now=True)


@contextmanager
def deployed(directory: Path) -> Iterator[Deployment]:
    """Start everything, with one segment of each topic in the tier."""
    with ExitStack() as ending:
        postgres = ending.enter_context(DatabaseServer(directory / "postgres"))
        database_url = postgres.create_database("alerts")
        schema.upgrade(database_url)
        s3 = SeaweedFS(directory / "s3")
        s3.start()
        ending.callback(s3.kill)
        s3.endpoint.ensure_bucket("alerts")
        store = ending.enter_context(HttpProxy(s3.endpoint.endpoint, s3_operation))
        endpoint = replace(s3.endpoint, endpoint=store.address)
        log_dir = _log_dir(directory)
        server = urlsplit(database_url)
        database = ending.enter_context(TcpProxy(f"{server.hostname}:{server.port}"))
        proxied_url = database_url.replace(f"{server.hostname}:{server.port}", database.address)
        settings = {**_RSM, **_RLMM}
        running = running_world(directory, proxied_url, endpoint, "alerts", log_dir, settings)
        world = ending.enter_context(running)
        index_cache = directory / "indexes"
        settings = rlm_settings(
            world.rsm.address, world.rlmm.address, [log_dir], _INTERVAL_MS, index_cache
        )
        rlm = ServiceProcess("rlm", {**settings, **_RLM}, directory / "rlm")
        authority, policy = CertificateAuthority(directory), directory / "policy.toml"
        policy.write_text(POLICY)
        certificate = authority.issue("server")
        make_log_dir(directory / "trimmed", 1, 0, SEGMENT_BYTES, "trimmed")
        (trimmed,) = find_partitions([directory / "trimmed"]).partitions
        broker_retention, addresses = [_NO_LIMIT], ["broker-0:1"]
        led = topic_of("trimmed", trimmed.topic_id, partition(0, 1, 0, [1]))
        broker = ending.enter_context(
            MetadataBroker(
                lambda names: metadata((led,), "bench", addresses),
                lambda names: [_described(name, broker_retention[0]) for name in names],
            )
        )
        polled = ending.enter_context(TcpProxy(broker.address))
        addresses.append(polled.address)
        objects = directory / "objects"
        made = Deployment(
            world,
            store,
            rlm,
            index_cache,
            _tls_rsm(directory, objects, authority, certificate, policy),
            objects,
            authority,
            certificate,
            authority.issue("operator", hosts=(), uris=[OPERATOR]),
            authority.issue("stranger", hosts=(), uris=[STRANGER]),
            policy,
            _poller(directory, world, polled.address),
            trimmed,
            broker_retention,
            polled,
            database,
            database_url,
            ending.enter_context(published_state()),
        )
        for service in (made.rlm, made.tls_rsm, made.poller):
            service.start()
            ending.callback(service.kill)
        eventually(lambda: all(made.finished(topic) == 1 for topic in TOPICS), 120_000, 500)
        yield made


def _log_dir(directory: Path) -> Path:
    log_dir = directory / "log"
    for topic in TOPICS:
        made = directory / f"of-{topic}"
        make_log_dir(made, 1, 1, SEGMENT_BYTES, topic)
        log_dir.mkdir(exist_ok=True)
        (made / f"{topic}-0").rename(log_dir / f"{topic}-0")
        (made / "meta.properties").replace(log_dir / "meta.properties")
    return log_dir


def _tls_rsm(
    directory: Path,
    objects: Path,
    authority: CertificateAuthority,
    certificate: Certificate,
    policy: Path,
) -> ServiceProcess:
    mirror, file = objects.with_name("mirror"), directory / "locations.toml"
    entry = '[[location]]\nid = {}\nbackend = "filesystem"\nprefix = ""\ndirectory = "{}"\n'
    file.write_text(f"{entry.format(1, objects)}mirror = 2\n{entry.format(2, mirror)}")
    for each in (objects, mirror):
        each.mkdir()
    settings = {
        "RSM_LOCATIONS_FILE": str(file),
        "RSM_BACKEND": "filesystem",
        "RSM_DIRECTORY": str(objects),
        "RSM_TLS_CERTIFICATE_FILE": str(certificate.certificate),
        "RSM_TLS_KEY_FILE": str(certificate.key),
        "RSM_TLS_CLIENT_CA_FILE": str(authority.certificate),
        "RSM_POLICY_FILE": str(policy),
        "RSM_METRICS_PLAINTEXT": "true",
    }
    return ServiceProcess("rsm", settings, directory / "tls-rsm")


def _described(name: str, retention_ms: str) -> Any:
    """Build what a broker has of a topic's retention."""
    made = described(name, "delete")
    for setting, value in (("retention.ms", retention_ms), ("retention.bytes", _NO_LIMIT)):
        (made_of,) = described(name, value).configs
        made_of.name = setting
        made.configs.append(made_of)
    return made


def _poller(directory: Path, world: World, broker: str) -> ServiceProcess:
    settings = {
        **rlm_settings(
            world.rsm.address, world.rlmm.address, [directory / "trimmed"], _INTERVAL_MS
        ),
        "RLM_PARTITION_SOURCE": "poller",
        "RLM_BOOTSTRAP_SERVERS": broker,
    }
    return ServiceProcess("rlm", settings, directory / "poller")
