"""Define RLMM's settings, which are environment variables."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from services.common.settings import DividedSettings, whole_of
from services.rlmm.database.engine import DatabaseLimits
from services.rlmm.database.limits import Limits
from services.rlmm.database.shares import WatchLimits


class RlmmSettings(DividedSettings):
    """Settings of RLMM; each is an environment variable with the prefix RLMM_."""

    # Not the watches: how they spread over the processes is chance, and a refused one is costly.
    DIVIDED = (*DividedSettings.DIVIDED, "database_pool_size")

    model_config = SettingsConfigDict(env_prefix="RLMM_")

    database_url: SecretStr
    """URL of the PostgreSQL database, postgresql://USER:PASSWORD@HOST:PORT/NAME; without :PASSWORD
    if RLMM_DATABASE_PASSWORD_FILE is set."""
    database_password_file: Path | None = None
    """File with the database password, read for each new connection."""
    database_pool_size: int = Field(default=16, ge=1, le=512)
    """Maximum connections of one process to the database. With TLS a process has more, for calls of
    other identities: 22 by default. PostgreSQL's max_connections must allow for all processes."""
    database_pool_timeout_ms: int = Field(default=5_000, ge=1)
    """How long a call waits for a connection from the pool, ms."""
    database_statement_timeout_ms: int = Field(default=20_000, ge=1)
    """How long one SQL statement may run, ms."""
    database_lock_timeout_ms: int = Field(default=10_000, ge=1)
    """How long a statement waits for a row lock, ms."""
    custom_metadata_max_bytes: int = Field(default=128, ge=0, le=65_536)
    """Maximum size of a segment's custom metadata, bytes (Kafka:
    remote.log.metadata.custom.metadata.max.bytes)."""
    watch_threads: int = Field(default=64, ge=1, le=512)
    """Maximum concurrent watches of partitions of one process: each broker and each RLM has one.
    Further ones are refused, and their clients ask RLMM for each look-up."""
    watched_partitions_max: int = Field(default=100_000, ge=1, le=10_000_000)
    """Maximum partitions that all watches of one process name together, with TLS those of one
    identity; each takes some 0.5 KB of memory. Further watches are refused."""
    watch_max_age_ms: int = Field(default=3_600_000, ge=1_000)
    """Age at which a watch ends, ms, less up to a fifth by chance; its client begins another one,
    with its present certificate or token."""

    def database_limits(self) -> DatabaseLimits:
        return DatabaseLimits(
            pool_size=whole_of(self.database_pool_size, self.share_percent),
            pool_timeout_ms=self.database_pool_timeout_ms,
            statement_timeout_ms=self.database_statement_timeout_ms,
            lock_timeout_ms=self.database_lock_timeout_ms,
        )

    def watch_limits(self) -> WatchLimits:
        return WatchLimits(
            partitions=self.watched_partitions_max,
            partitions_in_all=whole_of(self.watched_partitions_max, self.share_percent),
            max_age_s=self.watch_max_age_ms / 1000,
        )

    def limits(self) -> Limits:
        return Limits(custom_metadata_bytes=self.custom_metadata_max_bytes)
