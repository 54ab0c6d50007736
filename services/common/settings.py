"""Read the settings of a service process from its environment."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

_HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(?P<port>\d{1,5})")
_MAX_PORT = 65_535


def _host_and_port(value: str) -> str:
    match = _HOST_AND_PORT.fullmatch(value)
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ValueError(f"must be HOST:PORT, the port 0 to {_MAX_PORT}")
    return value


Address = Annotated[str, AfterValidator(_host_and_port)]
"""HOST:PORT; an IPv6 host in brackets."""


class ServiceSettings(BaseSettings):
    """Hold the settings that every service has: read once in `__main__`, passed on as values.

    A subclass sets `env_prefix` ("RSM_"); every field's description has its unit.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    """Variables of earlier releases, and their present names."""

    listen_address: Address = Field(
        default="127.0.0.1:0",
        description="Address to serve gRPC on, HOST:PORT; port 0 picks a free port.",
    )
    health_address: Address = Field(
        default="127.0.0.1:0",
        description="Address to serve grpc.health.v1 on, HOST:PORT; port 0 picks a free port.",
    )
    metrics_address: Address = Field(
        default="127.0.0.1:0",
        description="Address to serve Prometheus metrics on, HOST:PORT; port 0 picks a free port.",
    )
    unary_threads: int = Field(
        default=16,
        ge=1,
        le=512,
        description="Maximum concurrent unary calls of one process. Three times as many may wait "
        "for a thread; further calls are refused and may be retried.",
    )
    stream_threads: int = Field(
        default=8,
        ge=1,
        le=512,
        description="Maximum concurrent streams from one process to its clients. Twice as many "
        "may wait for a thread; further calls are refused and may be retried.",
    )
    stream_idle_timeout_ms: int = Field(
        default=60_000,
        ge=1,
        description="How long a stream waits for a client that neither sends nor receives, ms; "
        "then the stream is cancelled.",
    )
    default_deadline_ms: int = Field(
        default=30_000, ge=1, description="Deadline of a unary call whose client sets none, ms."
    )
    drain_timeout_ms: int = Field(
        default=10_000, ge=0, description="How long SIGTERM waits for active calls, ms."
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Lowest level of log lines that are written to standard error."
    )

    @classmethod
    def from_environment(cls) -> Self:
        """Read the settings; fail if a variable with our prefix is unknown.

        pydantic-settings alone would ignore a mistyped variable and use the default.

        Raises:
            SystemExit: names the variables that are unknown, missing or out of bounds.
        """
        prefix = cls.model_config["env_prefix"]
        known = {f"{prefix}{name}".upper() for name in cls.model_fields}
        ours = {name for name in os.environ if name.upper().startswith(prefix)}
        unknown = sorted(name for name in ours if name.upper() not in known)
        if unknown:
            named = (f"{n} (now {cls.renamed[n]})" if n in cls.renamed else n for n in unknown)
            raise SystemExit(
                f"unknown setting: {', '.join(named)}; remove or correct it (see docs/config.md)"
            )
        try:
            return cls()
        except ValidationError as e:
            raise SystemExit("\n".join(_complaints(e, prefix))) from e


def _complaints(error: ValidationError, prefix: str) -> list[str]:
    """List the settings at fault by variable, never with their values: they may be secret."""
    return [
        f"{_variable(complaint['loc'], prefix)}{complaint['msg'].removeprefix('Value error, ')}"
        for complaint in error.errors(include_input=False)
    ]


def _variable(location: tuple[int | str, ...], prefix: str) -> str:
    """Return "RSM_BUCKET: ", or "" if the message names several settings that conflict."""
    name = "_".join(map(str, location)).upper()
    return f"{prefix}{name}: " if name else ""
