"""Define RLM's settings: RLM_ and the field's name in capitals; Kafka's names if Kafka has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.api.segment_batches import MAX_LEASE_MS, MIN_LEASE_MS
from services.api.validation import INT64_MAX
from services.common.settings import Address, ServiceSettings
from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from services.rlm.roles.partition_roles import PartitionSource

_INT32_MAX = 2**31 - 1


class RlmSettings(ServiceSettings):
    """The settings of RLM, read once in `__main__`."""

    model_config = SettingsConfigDict(env_prefix="RLM_")
    renamed: ClassVar[Mapping[str, str]] = {
        "RLM_REMOTE_LOG_INDEX_CACHE_TOTAL_SIZE_BYTES": "RLM_REMOTE_LOG_INDEX_CACHE_MEMORY_BYTES",
    }

    rsm_address: Address = Field(description="Where RSM is served, HOST:PORT.")
    rlmm_address: Address = Field(description="Where RLMM is served, HOST:PORT.")
    log_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="The broker's log directories, separated by commas (Kafka: log.dirs). Never "
        "written to without RLM_LOCAL_RETENTION_ENFORCE. None: only what the tier has is served.",
    )
    remote_log_manager_task_interval_ms: int = Field(
        default=30_000, ge=1, le=_INT32_MAX, description="Between two passes of a partition, ms."
    )
    remote_log_manager_copier_thread_pool_size: int = Field(
        default=10, ge=1, le=128, description="Partitions that are copied at once."
    )
    partition_source: PartitionSource = Field(
        default=PartitionSource.STATIC,
        description="What tells which partitions the broker leads: static (every one that lies in "
        "RLM_LOG_DIRS), callbacks (calls of OnLeadershipChange and StopPartitions) or poller (the "
        "brokers of RLM_BOOTSTRAP_SERVERS are asked).",
    )
    bootstrap_servers: Annotated[tuple[Address, ...], NoDecode] = Field(
        default=(),
        description="The brokers that the poller asks first, HOST:PORT, separated by commas "
        "(Kafka: bootstrap.servers).",
    )
    kafka_security_protocol: SecurityProtocol = Field(
        default=SecurityProtocol.PLAINTEXT,
        description="What the poller speaks to brokers (Kafka: security.protocol), TLS 1.2 or "
        "newer. Files named by RLM_KAFKA_* settings are read again at each poll.",
    )
    kafka_sasl_mechanism: SaslMechanism | None = Field(
        default=None, description="How the poller logs in (Kafka: sasl.mechanism)."
    )
    kafka_username: str | None = Field(default=None, description="The user that logs in.")
    kafka_password_file: Path | None = Field(
        default=None,
        description="File with that user's password; a newline at its end is ignored.",
    )
    kafka_ssl_ca_file: Path | None = Field(
        default=None,
        description="PEM file with the CAs of the brokers' certificates. None: the system's CAs.",
    )
    kafka_ssl_certificate_file: Path | None = Field(
        default=None,
        description="PEM file with the certificate that the poller shows to brokers, and its "
        "chain. None: it shows none.",
    )
    kafka_ssl_key_file: Path | None = Field(
        default=None,
        description="PEM file with the private key of that certificate. None: it is in "
        "RLM_KAFKA_SSL_CERTIFICATE_FILE.",
    )
    kafka_ssl_key_password_file: Path | None = Field(
        default=None, description="File with the password of that key. None: it has none."
    )
    partition_poll_interval_ms: int = Field(
        default=30_000, ge=1, le=_INT32_MAX, description="Between two polls of the cluster, ms."
    )
    deletion_confirm_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="Over how long the cluster must answer the poller, without a break, that a "
        "topic is not there before its partitions are marked for deletion, ms.",
    )
    remote_log_manager_expiration_thread_pool_size: int = Field(
        default=10, ge=1, le=128, description="Partitions whose retention is kept at once."
    )
    remote_log_manager_follower_thread_pool_size: int = Field(
        default=2, ge=1, le=128, description="Followed partitions whose tier is looked at at once."
    )
    remote_partition_remover_task_interval_ms: int = Field(
        default=3_600_000,
        ge=1,
        le=_INT32_MAX,
        description="How often partitions that are marked for deletion are looked for, ms; every "
        "RLM removes them, whoever marked them.",
    )
    deletion_grace_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="How long a partition is left alone after it was marked for deletion, ms.",
    )
    local_retention_enforce: bool = Field(
        default=False,
        description="Whether RLM owns RLM_LOG_DIRS and keeps local.retention.ms and .bytes there: "
        "it deletes local segments that are in the tier. It holds Kafka's lock on each directory, "
        "and does not start where somebody else, as a broker, holds one.",
    )
    log_retention_check_interval_ms: int = Field(
        default=300_000,
        ge=1,
        le=_INT32_MAX,
        description="Between two passes of local retention over a partition, ms.",
    )
    remote_log_manager_copy_max_bytes_per_second: int = Field(
        default=INT64_MAX,
        ge=1,
        description="What all copies of this process may take together, bytes a second; a segment "
        "that is larger passes whole, and the next one waits for as long as it counts. 2^63-1: no "
        "limit.",
    )
    remote_log_manager_copy_quota_window_num: int = Field(
        default=11,
        ge=1,
        le=_INT32_MAX,
        description="How many windows of unused rate copies may make up for at once.",
    )
    remote_log_manager_copy_quota_window_size_seconds: int = Field(
        default=1, ge=1, le=_INT32_MAX, description="How long each of the windows is, s."
    )
    log_remote_copy_lag_ms: int = Field(
        default=0,
        ge=-1,
        description="How old a rolled segment's newest record is before it is copied, ms, where "
        "its topic does not say (remote.copy.lag.ms); 0: copied at once, -1: as old as the local "
        "retention allows.",
    )
    log_remote_copy_lag_bytes: int = Field(
        default=-1,
        ge=-1,
        description="How much of the log lies behind a rolled segment before it is copied, bytes, "
        "where its topic does not say (remote.copy.lag.bytes); either lag is enough. 0: copied at "
        "once, -1: as much as the local retention allows.",
    )
    remote_log_manager_task_retry_backoff_ms: int = Field(
        default=500, ge=1, le=_INT32_MAX, description="Wait after a partition's first failure, ms."
    )
    remote_log_manager_task_retry_backoff_max_ms: int = Field(
        default=30_000, ge=1, le=_INT32_MAX, description="The longest wait after failures, ms."
    )
    remote_log_manager_task_retry_jitter: float = Field(
        default=0.2,
        ge=0,
        le=0.5,
        description="Each wait after a failure is longer or shorter by up to this share of it.",
    )
    report_interval_ms: int = Field(
        default=300_000,
        ge=1,
        le=600_000,
        description="How often a partition at rest is reported to RLMM again, ms, where "
        "retention.bytes is set: a sweep applies that by a report of the last 15 minutes only.",
    )
    remote_log_reader_threads: int = Field(
        default=10,
        ge=1,
        le=511,
        description="Reads of the tier at once; less than the streams served at once, so that "
        "local reads are served whatever the tier does.",
    )
    remote_fetch_max_wait_ms: int = Field(
        default=500,
        ge=1,
        le=_INT32_MAX,
        description="How long a read of the tier waits for its turn, ms.",
    )
    remote_log_index_cache_memory_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="Memory for indexes of remote segments, bytes.",
    )
    remote_log_index_file_cache_dir: Path | None = Field(
        default=None,
        description="Directory that keeps indexes of remote segments in files, over restarts: on a "
        "local disk, outside of RLM_LOG_DIRS, created if missing. None: indexes are kept in memory "
        "only.",
    )
    remote_log_index_file_cache_total_size_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1,
        description="Maximum size of these files, bytes, each counted in whole blocks of 4 KiB; of "
        "more than 65,536 files the least recently used are removed, too.",
    )
    remote_log_index_file_cache_ttl_ms: int = Field(
        default=900_000,
        ge=-1,
        description="How long an unused file stays, ms; -1: until others need its room.",
    )
    remote_log_metadata_custom_metadata_max_bytes: int = Field(
        default=128, ge=0, le=_INT32_MAX, description="Longest custom metadata that RSM may give."
    )
    copy_chunk_bytes: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=2 * 1024 * 1024,
        description="How much of a segment one message to RSM carries, bytes.",
    )

    copy_lease_ms: int = Field(
        default=60_000,
        ge=MIN_LEASE_MS,
        le=MAX_LEASE_MS,
        description="How long nobody else ends a copy whose RLM is silent, ms: it renews the lease "
        "three times as often. After a kill, copying of what it was at waits as long.",
    )
    stream_threads: int = Field(
        default=16, ge=2, le=512, description="Fetches served at once by one process."
    )

    @model_validator(mode="after")
    def _write_nothing_to_logs(self) -> Self:
        cache = self.remote_log_index_file_cache_dir
        if cache is None:
            return self
        for log_dir in self.log_dirs:
            if cache.resolve().is_relative_to(log_dir.resolve()):
                raise ValueError(
                    f"RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR must not lie in {log_dir}, which is of "
                    "RLM_LOG_DIRS and the broker's"
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
    def _have_logs_of_what_is_told(self) -> Self:
        source = self.partition_source
        if source is not PartitionSource.STATIC and not self.log_dirs:
            raise ValueError(
                f"RLM_PARTITION_SOURCE={source.value} needs RLM_LOG_DIRS: where the logs of the "
                "partitions lie that it is told"
            )
        if source is PartitionSource.POLLER and not self.bootstrap_servers:
            raise ValueError(
                "RLM_PARTITION_SOURCE=poller needs RLM_BOOTSTRAP_SERVERS: which brokers are asked"
            )
        return self

    @field_validator(
        "remote_log_index_file_cache_dir",
        "kafka_sasl_mechanism",
        "kafka_username",
        "kafka_password_file",
        "kafka_ssl_ca_file",
        "kafka_ssl_certificate_file",
        "kafka_ssl_key_file",
        "kafka_ssl_key_password_file",
        mode="before",
    )
    @classmethod
    def _none_is_given(cls, value: object) -> object:
        return None if value == "" else value

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

    @model_validator(mode="after")
    def _own_what_is_deleted(self) -> Self:
        if not self.local_retention_enforce:
            return self
        if not self.log_dirs:
            raise ValueError("RLM_LOCAL_RETENTION_ENFORCE needs RLM_LOG_DIRS: what RLM owns")
        if self.partition_source is PartitionSource.POLLER:
            raise ValueError(
                "RLM_LOCAL_RETENTION_ENFORCE cannot be used with RLM_PARTITION_SOURCE=poller: the "
                "directories are a live broker's, which deletes by its own retention.*; leave it "
                "off, and set the topics' retention.* in the broker"
            )
        return self

    @field_validator("log_dirs", "bootstrap_servers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
