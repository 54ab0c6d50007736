"""Define RLMM's settings, which are environment variables."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from services.common.settings import ServiceSettings
from services.rlmm.db import DatabaseLimits
from services.rlmm.limits import Limits


class RlmmSettings(ServiceSettings):
    """Settings of RLMM; each is an environment variable with the prefix RLMM_."""

    model_config = SettingsConfigDict(env_prefix="RLMM_")

    database_url: SecretStr = Field(
        description="URL of the PostgreSQL database, postgresql://USER:PASSWORD@HOST:PORT/NAME; "
        "without :PASSWORD if RLMM_DATABASE_PASSWORD_FILE is set."
    )
    database_password_file: Path | None = Field(
        default=None,
        description="File with the database password, read for each new connection.",
    )
    database_pool_size: int = Field(
        default=16, ge=1, le=512, description="Maximum connections of one process to the database."
    )
    database_pool_timeout_ms: int = Field(
        default=5_000, ge=1, description="How long a call waits for a connection from the pool, ms."
    )
    database_connect_timeout_ms: int = Field(
        default=5_000,
        ge=2_000,
        description="How long opening a connection may take, ms; rounded up to whole seconds.",
    )
    database_statement_timeout_ms: int = Field(
        default=20_000, ge=1, description="How long one SQL statement may run, ms."
    )
    database_lock_timeout_ms: int = Field(
        default=10_000, ge=1, description="How long a statement waits for a row lock, ms."
    )
    database_idle_in_transaction_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="How long a transaction may be idle, ms; then the database ends it.",
    )
    custom_metadata_max_bytes: int = Field(
        default=128,
        ge=0,
        le=65_536,
        description="Maximum size of a segment's custom metadata, bytes (Kafka: "
        "remote.log.metadata.custom.metadata.max.bytes).",
    )
    leader_epochs_per_segment_max: int = Field(
        default=10_000, ge=1, le=100_000, description="Maximum leader epochs of one segment."
    )

    def database_limits(self) -> DatabaseLimits:
        return DatabaseLimits(
            pool_size=self.database_pool_size,
            pool_timeout_ms=self.database_pool_timeout_ms,
            connect_timeout_ms=self.database_connect_timeout_ms,
            statement_timeout_ms=self.database_statement_timeout_ms,
            lock_timeout_ms=self.database_lock_timeout_ms,
            idle_in_transaction_timeout_ms=self.database_idle_in_transaction_timeout_ms,
        )

    def limits(self) -> Limits:
        return Limits(
            custom_metadata_bytes=self.custom_metadata_max_bytes,
            leader_epochs_per_segment=self.leader_epochs_per_segment_max,
        )
