"""RLM's settings: RLM_ and the field's name in capitals; Kafka's names where Kafka has them."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.api.copy_leases import MAX_LEASE_MS, MIN_LEASE_MS
from services.rpc.settings import Address, ServiceSettings
from services.rpc.stream_places import share_of

_INT32_MAX = 2**31 - 1


class RlmSettings(ServiceSettings):
    """Read once in `__main__`."""

    model_config = SettingsConfigDict(env_prefix="RLM_")

    rsm_address: Address = Field(description="Where RSM is served, HOST:PORT.")
    rlmm_address: Address = Field(description="Where RLMM is served, HOST:PORT.")
    log_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="The broker's log directories, separated by commas (Kafka: log.dirs). Never "
        "written to. None: only what the tier has is served.",
    )
    remote_log_manager_task_interval_ms: int = Field(
        default=30_000, ge=1, le=_INT32_MAX, description="Between two passes of a partition, ms."
    )
    remote_log_manager_copier_thread_pool_size: int = Field(
        default=10, ge=1, le=128, description="Partitions that are copied at once."
    )
    remote_log_manager_expiration_thread_pool_size: int = Field(
        default=10, ge=1, le=128, description="Partitions whose retention is kept at once."
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
        description="How often a partition at rest is reported to RLMM again, ms; a sweep applies "
        "retention.bytes by a report of the last 15 minutes only.",
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
    remote_log_index_cache_total_size_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="Memory for offset indexes of remote segments, bytes.",
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
    def _leave_threads_to_local_reads(self) -> Self:
        of_one_address = share_of(self.stream_threads, self.address_share_percent)
        if self.remote_log_reader_threads >= of_one_address:
            raise ValueError(
                "RLM_REMOTE_LOG_READER_THREADS must be below what one address may have of "
                f"RLM_STREAM_THREADS (RLM_ADDRESS_SHARE_PERCENT), which is {of_one_address}"
            )
        return self

    @field_validator("log_dirs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
