"""Define RLM's settings: RLM_ and the field's name in capitals; Kafka's names if Kafka has them."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.api.remote_log_manager import MAX_FETCH_BYTES
from services.api.segment_batches import MAX_LEASE_MS, MIN_LEASE_MS
from services.api.topic_config import AS_RETENTION
from services.api.validation import INT64_MAX
from services.common.settings import (
    Address,
    ServiceSettings,
    Target,
)
from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from services.rlm.roles.partition_roles import PartitionSource

_INT32_MAX = 2**31 - 1


class RlmSettings(ServiceSettings):
    """The settings of RLM, read once in `__main__`."""

    model_config = SettingsConfigDict(env_prefix="RLM_")
    rsm_address: Target
    """Target of RSM: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT."""
    rlmm_address: Target
    """Target of RLMM, as of RSM."""
    tls_server_ca_file: Path | None = None
    """PEM file with the authorities that sign the certificates of RSM and RLMM. Default:
    RLM_TLS_CLIENT_CA_FILE. RLM presents its own certificate to both."""
    log_dirs: Annotated[tuple[Path, ...], NoDecode] = ()
    """The broker's log directories, separated by commas (Kafka: log.dirs). RLM only reads them. If
    empty, RLM serves only what is in the tier."""
    advertised_address: Address | None = None
    """Address that readers reach this RLM's gRPC at, HOST:PORT, which it announces in RLMM.
    Default: RLM_LISTEN_ADDRESS, with this machine's name for 0.0.0.0."""
    consumer_listen_address: Address | None = None
    """Address to serve Kafka's own protocol on, read-only, to ordinary consumers, HOST:PORT. With
    TLS as gRPC: each needs a client certificate, and the policy holds. With
    RLM_KAFKA_SECURITY_PROTOCOL=SASL_*, consumers log in as at the broker instead. Default: none."""
    consumer_advertised_address: Address | None = None
    """Address that consumers connect to, HOST:PORT (Kafka: advertised.listeners). Default:
    RLM_CONSUMER_LISTEN_ADDRESS."""
    consumer_max_connections: int = Field(default=64, ge=1, le=1_024)
    """Maximum connections of consumers; each has a thread. A further one ends the oldest idle
    one."""
    consumer_fetch_max_bytes: int = Field(default=4 * 1024 * 1024, ge=1, le=MAX_FETCH_BYTES)
    """Most bytes of an answer to a consumer's Fetch, whatever it allows (Kafka: fetch.max.bytes). A
    connection holds twice as many; a larger batch is sent whole."""
    consumer_idle_timeout_ms: int = Field(default=600_000, ge=1, le=_INT32_MAX)
    """How long a consumer's connection waits for its next request, ms (Kafka:
    connections.max.idle.ms)."""
    remote_log_manager_task_interval_ms: int = Field(default=30_000, ge=1, le=_INT32_MAX)
    """Time between a partition's passes, and between polls of the cluster, ms."""
    remote_log_manager_copier_thread_pool_size: int = Field(default=10, ge=1, le=128)
    """Maximum partitions copied at the same time."""
    partition_source: PartitionSource = PartitionSource.STATIC
    """How RLM learns which partitions the broker leads: static (every partition in RLM_LOG_DIRS),
    callbacks (calls of OnLeadershipChange and StopPartitions) or poller (RLM polls the brokers of
    RLM_BOOTSTRAP_SERVERS)."""
    bootstrap_servers: Annotated[tuple[Address, ...], NoDecode] = ()
    """The brokers to which RLM connects first, HOST:PORT, separated by commas (Kafka:
    bootstrap.servers): for the poller, and with every source for the cleanup.policy of topics."""
    tiered_topics: Annotated[tuple[str, ...], NoDecode] = ()
    """Topics that are copied without remote.storage.enable: names and patterns with *, separated by
    commas; those of one that begins with ! are not. Internal and compacted topics never are. If
    empty: all, but with the poller none."""
    cluster_id: str | None = Field(default=None, min_length=1, max_length=255)
    """Id of the cluster to poll if RLM_LOG_DIRS is empty (Kafka: cluster.id). RLM then leads
    nothing: it watches the topics that this cluster's brokers tier through the plugin."""
    kafka_security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """Protocol between poller and brokers (Kafka: security.protocol), TLS 1.2 or newer. Files named
    by RLM_KAFKA_* settings are read again at each poll."""
    kafka_sasl_mechanism: SaslMechanism | None = None
    """SASL mechanism of the poller (Kafka: sasl.mechanism): PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or
    OAUTHBEARER."""
    kafka_username: str | None = None
    """SASL user of the poller."""
    kafka_password_file: Path | None = None
    """File with the password of that user, or with OAUTHBEARER the token; a final newline is
    ignored."""
    kafka_ssl_ca_file: Path | None = None
    """PEM file with the CAs that sign the brokers' certificates. If empty: the system's CAs."""
    kafka_ssl_certificate_file: Path | None = None
    """PEM file with the poller's client certificate and its chain. If empty: no client
    certificate."""
    kafka_ssl_key_file: Path | None = None
    """PEM file with the private key of that certificate. If empty: the key is in
    RLM_KAFKA_SSL_CERTIFICATE_FILE."""
    kafka_ssl_key_password_file: Path | None = None
    """File with the password of that key, if it has one."""
    deletion_confirm_ms: int = Field(default=3_600_000, ge=0)
    """How long the poller must find a topic missing, in every poll, before RLM marks its partitions
    for deletion, ms."""
    remote_log_manager_expiration_thread_pool_size: int = Field(default=10, ge=1, le=128)
    """Maximum concurrent passes of retention."""
    remote_partition_remover_task_interval_ms: int = Field(default=3_600_000, ge=1, le=_INT32_MAX)
    """How often RLM searches for partitions that are marked for deletion, ms. Every RLM removes
    them, no matter which process marked them."""
    deletion_grace_ms: int = Field(default=3_600_000, ge=0)
    """How long RLM waits after a partition was marked for deletion before it removes it, ms."""
    remote_log_manager_copy_max_bytes_per_second: int = Field(default=INT64_MAX, ge=1)
    """Maximum rate of all copies of this process together, bytes/s. A segment that is larger is
    copied whole, and the next one waits longer. 2^63-1: no limit."""
    remote_log_manager_fetch_max_bytes_per_second: int = Field(default=INT64_MAX, ge=1)
    """Maximum rate of all reads of the tier together, bytes/s. A read that begins while it is used
    up is answered without records, with the time to wait. 2^63-1: no limit."""
    log_remote_copy_lag_ms: int = Field(default=0, ge=-1)
    """How old the newest record of a rolled segment must be before the segment is copied, ms. Used
    if the topic does not set remote.copy.lag.ms. 0: copy immediately; -1: as old as local retention
    allows."""
    log_remote_copy_lag_bytes: int = Field(default=-1, ge=-1)
    """How many bytes of the log must follow a rolled segment before it is copied. Used if the topic
    does not set remote.copy.lag.bytes; reaching either lag is enough. 0: copy immediately; -1: as
    many as local retention allows."""
    log_local_retention_ms: int = Field(default=AS_RETENTION, ge=AS_RETENTION)
    """How long records stay on the broker's disk, ms, where RLM deletes them
    (sediment.local.retention.owner=rlm). Used if the topic does not set local.retention.ms. -1: for
    ever; -2: as long as retention.ms."""
    log_local_retention_bytes: int = Field(default=AS_RETENTION, ge=AS_RETENTION)
    """How much of a partition stays on the broker's disk, bytes, where RLM deletes. Used if the
    topic does not set local.retention.bytes. -1: all; -2: as much as retention.bytes."""
    remote_log_manager_task_retry_backoff_max_ms: int = Field(default=30_000, ge=1, le=_INT32_MAX)
    """Longest wait after repeated failures, ms."""
    remote_log_reader_threads: int = Field(default=10, ge=1, le=511)
    """Maximum concurrent reads of the tier. Must be below RLM_STREAM_THREADS, so that local reads
    are served even while the tier is slow."""
    metadata_max_age_ms: int = Field(default=1000, ge=0, le=_INT32_MAX)
    """Maximum age of what RLM knows of the tier to serve consumers from segments that it knows, ms.
    The end of the tier and ListOffsets always read RLMM. 0: each read of the tier reads RLMM."""
    metadata_stale_reads_ms: int = Field(default=300_000, ge=0, le=_INT32_MAX)
    """Maximum age of what RLM knows of the tier to serve consumers with it while RLMM cannot be
    reached, ms. Answers show the age. 0: such reads are answered TIERED_STORAGE_NOT_AVAILABLE."""
    remote_log_reader_max_pending_tasks: int = Field(default=100, ge=0, le=_INT32_MAX)
    """Maximum reads of the tier that wait for a reader thread. Further ones are answered
    TIERED_STORAGE_NOT_AVAILABLE at once."""
    remote_fetch_max_wait_ms: int = Field(default=500, ge=1, le=_INT32_MAX)
    """How long a read of the tier waits for a reader thread, and for the store's next bytes, ms. A
    read that takes longer is answered without records, and fills the cache for the next one."""
    remote_list_offsets_request_timeout_ms: int = Field(default=30_000, ge=1, le=_INT32_MAX)
    """Maximum time to find the offsets of one ListOffsets request, ms. What is not found by then is
    REQUEST_TIMED_OUT."""
    remote_log_chunk_cache_memory_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Memory for parts of remote segments that were read, or are read ahead of sequential readers,
    bytes. With 16 MiB for each of these RLM reads ahead of it; with 8 MiB its requests are long. If
    it is full, each reader has up to 1 MiB more."""
    direct_reads: bool = False
    """Read logs of the tier from the object store itself, by URLs of RSM, as
    rsm.config.direct.reads of the Kafka plugin does. Needs RSM_DIRECT_READS=true in RSM and a route
    to the store. What fails is streamed by RSM. Read docs/run/security.md before."""
    remote_log_index_cache_memory_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Memory for indexes of remote segments, bytes."""
    remote_log_index_file_cache_dir: Path | None = None
    """Directory that keeps indexes of remote segments in files across restarts. It must be on a
    local disk and outside of RLM_LOG_DIRS, and is created if missing. If empty: indexes are kept in
    memory only."""
    remote_log_index_file_cache_total_size_bytes: int = Field(default=1024 * 1024 * 1024, ge=1)
    """Maximum size of these files, bytes, each rounded up to blocks of 4 KiB. Beyond 65,536 files
    the least recently used ones are removed, too."""
    remote_log_index_file_cache_ttl_ms: int = Field(default=900_000, ge=-1)
    """How long an unused file is kept, ms; -1: until its space is needed."""

    copy_lease_ms: int = Field(default=60_000, ge=MIN_LEASE_MS, le=MAX_LEASE_MS)
    """How long a copy is protected while its RLM sends nothing, ms. RLM renews the lease three
    times as often. After RLM was killed, the copy's offsets wait this long before they are copied
    again."""
    stream_threads: int = Field(default=16, ge=2, le=512)
    """Maximum concurrent fetches of one process, with TLS of one identity."""

    @model_validator(mode="after")
    def _write_nothing_to_logs(self) -> Self:
        cache = self.remote_log_index_file_cache_dir
        for log_dir in self.log_dirs if cache is not None else ():
            if cache is not None and cache.resolve().is_relative_to(log_dir.resolve()):
                raise ValueError(
                    "RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR must not be in "
                    f"{log_dir}, a directory of the broker (RLM_LOG_DIRS); choose another directory"
                )
        return self

    @model_validator(mode="after")
    def _leave_threads_to_local_reads(self) -> Self:
        if self.remote_log_reader_threads >= self.stream_threads:
            raise ValueError(
                "RLM_REMOTE_LOG_READER_THREADS must be below RLM_STREAM_THREADS "
                f"({self.stream_threads}), so that local reads always find a thread"
            )
        return self

    @model_validator(mode="after")
    def _have_log_dirs_of_partitions(self) -> Self:
        source = self.partition_source
        if source is PartitionSource.CALLBACKS and not self.log_dirs:
            raise ValueError(
                f"RLM_PARTITION_SOURCE={source.value} needs RLM_LOG_DIRS, the directories with the "
                "partitions' logs"
            )
        if source is PartitionSource.POLLER and not self.log_dirs and self.cluster_id is None:
            raise ValueError(
                "RLM_PARTITION_SOURCE=poller needs RLM_LOG_DIRS, the directories with the "
                "partitions' logs; or, beside brokers with the plugin, RLM_CLUSTER_ID, the id of "
                "the cluster to watch"
            )
        watches = source is PartitionSource.POLLER and not self.log_dirs
        if self.cluster_id is not None and not watches:
            raise ValueError(
                "RLM_CLUSTER_ID has no use here: remove it, or set RLM_PARTITION_SOURCE=poller "
                "without RLM_LOG_DIRS; with directories the id is read from meta.properties"
            )
        if source is PartitionSource.POLLER and not self.bootstrap_servers:
            raise ValueError(
                "RLM_PARTITION_SOURCE=poller needs RLM_BOOTSTRAP_SERVERS, the brokers to poll"
            )
        return self

    @model_validator(mode="after")
    def _connect_to_brokers_in_one_way(self) -> Self:
        self.kafka_security()
        return self

    def kafka_security(self) -> KafkaSecurity:
        """Group the settings that secure the poller's connections."""
        return KafkaSecurity(
            self.kafka_security_protocol,
            self.kafka_sasl_mechanism,
            self.kafka_username,
            self.kafka_password_file,
            self.kafka_ssl_ca_file,
            self.kafka_ssl_certificate_file,
            self.kafka_ssl_key_file,
            self.kafka_ssl_key_password_file,
        )

    @field_validator("log_dirs", "bootstrap_servers", "tiered_topics", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
