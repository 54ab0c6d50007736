"""Read the settings of a service process from its environment."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from services.api.errors import InvalidRequestError
from services.common.addresses import each_address, require_address, target_of

IDENTITY_SHARE_PERCENT = 75
"""The share of a process's calls of each kind that one identity may have, with TLS. The limits in
the settings are that share: beside it there is room for others (of 8: 8 for each, 11 for all)."""

MAX_PROCESSES_BY_DEFAULT = 4
"""A client has no more connections to a service, and each process takes memory."""


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """Return the validator of a value that raises InvalidRequestError if it is not valid."""

    def validate(value: str) -> str:
        try:
            check(value)
        except InvalidRequestError as e:
            raise ValueError(str(e)) from e
        return value

    return AfterValidator(validate)


def _require_http_url(value: str) -> None:
    scheme, separator, address = value.partition("://")
    if scheme not in {"http", "https"} or not separator:
        raise InvalidRequestError("must be http://HOST:PORT or https://HOST:PORT")
    require_address(address)


Address = Annotated[str, _checked(partial(require_address, least_port=0))]
"""HOST:PORT; an IPv6 host in brackets."""

Target = Annotated[str, _checked(target_of)]
"""The servers of one service: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT."""

Addresses = Annotated[str, _checked(each_address)]
"""Several HOST:PORT with commas between them."""

HttpUrl = Annotated[str, _checked(_require_http_url)]
"""http:// or https://, and HOST:PORT."""


def whole_of(share: int, percent: int) -> int:
    """Return the smallest total of which `share` is at most `percent` percent."""
    return -(-share * 100 // percent)


class VariableSettings(BaseSettings):
    """Hold settings that a process reads from its environment, once, in `__main__`.

    A subclass sets `env_prefix` ("RSM_"); every field's docstring has its unit, and stands in
    docs/reference/config.md.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_texts(cls, values: dict[str, object]) -> dict[str, object]:
        """Take an empty variable for a missing one."""
        return {name: value for name, value in values.items() if value != ""}

    def _named(self, *fields: str) -> dict[str, object]:
        """Return the values of fields by the names of their variables."""
        prefix = self.model_config["env_prefix"]
        return {f"{prefix}{field}".upper(): getattr(self, field) for field in fields}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the arguments only: `from_environment` reads variables."""
        return (init_settings,)

    @classmethod
    def variables(cls) -> list[str]:
        """Return the names of the variables that a service reads."""
        prefix = cls.model_config["env_prefix"]
        return [f"{prefix}{name}".upper() for name in cls.model_fields]

    @classmethod
    def _described(cls, unknown: str) -> str:
        """Return an unknown variable's name, with that which was probably meant."""
        similar = get_close_matches(unknown.upper(), cls.variables(), 1)
        return f"{unknown} (did you mean {similar[0]}?)" if similar else unknown

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from variables; fail if one with our prefix is unknown.

        pydantic-settings alone would ignore a mistyped variable and use the default.

        Raises:
            SystemExit: names the variables that are unknown, missing or out of bounds.
        """
        prefix = cls.model_config["env_prefix"]
        known = cls.variables()
        ours = {name for name in variables if name.upper().startswith(prefix)}
        unknown = sorted(name for name in ours if name.upper() not in known)
        if unknown:
            named = ", ".join(map(cls._described, unknown))
            raise SystemExit(
                f"unknown setting: {named}; remove or correct it (see docs/reference/config.md)"
            )
        source = EnvSettingsSource(cls)
        source.env_vars = {name.lower(): value for name, value in variables.items()}
        try:
            return cls(**source())
        except ValidationError as e:
            raise SystemExit("\n".join(_complaints(e, prefix))) from e

    @classmethod
    def to_serve(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Read the settings of a process that is about to start.

        Raises:
            SystemExit: as `from_environment`, or what the process refuses besides.
        """
        return cls.from_environment(variables)


class TlsSettings(VariableSettings):
    """Hold the settings of every process that others connect to."""

    listen_address: Address = "127.0.0.1:0"
    """Address to serve gRPC on, HOST:PORT; port 0 picks a free port."""
    tls_certificate_file: Path | None = None
    """PEM file with the certificate of this process and its intermediate ones. This and the two
    files below turn TLS on; they are read again when they change."""
    tls_key_file: Path | None = None
    """PEM file with the private key of that certificate."""
    tls_client_ca_file: Path | None = None
    """PEM file with the authorities that sign client certificates. Every client of the listen
    address must have one."""
    policy_file: Path | None = None
    """TOML file that grants roles to identities (docs/run/security.md); required with TLS, and read
    again when it changes."""

    @property
    def has_tls(self) -> bool:
        return self.tls_certificate_file is not None

    def _tls_variables(self, *, given: bool) -> list[str]:
        """Return the variables of the TLS files that are set, or of those that are not."""
        files = self._named("tls_certificate_file", "tls_key_file", "tls_client_ca_file")
        return [name for name, value in files.items() if (value is not None) is given]

    @model_validator(mode="after")
    def _has_all_tls_files(self) -> Self:
        given, missing = self._tls_variables(given=True), self._tls_variables(given=False)
        policy = f"{self.model_config['env_prefix']}POLICY_FILE"
        if given and missing:
            raise ValueError(f"{given[0]} is set without {' and '.join(missing)}")
        if given and self.policy_file is None:
            raise ValueError(
                f"{policy} is required with TLS: it says which client may do what "
                "(docs/run/security.md)"
            )
        if self.policy_file is not None and not given:
            raise ValueError(f"{policy} needs TLS: set {' and '.join(missing)}")
        return self


class ServiceSettings(TlsSettings):
    """Hold the settings that every service has; they are passed on as values."""

    health_address: Address = "127.0.0.1:0"
    """Address to serve grpc.health.v1 on, HOST:PORT; port 0 picks a free port."""
    metrics_address: Address = "127.0.0.1:0"
    """Address to serve Prometheus metrics on, HOST:PORT; port 0 picks a free port."""
    unary_threads: int = Field(default=16, ge=1, le=512)
    """Maximum concurrent unary calls of one process, with TLS of one identity. Three times as many
    may wait; further calls are refused and may be retried."""
    stream_threads: int = Field(default=8, ge=1, le=512)
    """Maximum concurrent streams from one process to its clients, with TLS to one identity. Twice
    as many may wait; further calls are refused and may be retried."""
    stream_idle_timeout_ms: int = Field(default=60_000, ge=1)
    """How long a stream waits for a client that neither sends nor receives, ms; then the stream is
    cancelled."""
    drain_timeout_ms: int = Field(default=10_000, ge=0)
    """How long SIGTERM waits for active calls, ms."""

    plaintext: bool = False
    """Serve gRPC and metrics without TLS: anyone who can reach the port can read and delete
    everything. A service without TLS files starts only with this set to true."""
    token_listen_address: Address | None = None
    """Address to serve gRPC on, with TLS, for clients that have a service-account token instead of
    a certificate, HOST:PORT. Default: none."""
    token_jwks_file: Path | None = None
    """JSON file with the public keys (JWKS) of the issuer of tokens; read again when it changes."""
    token_issuer: str = ""
    """The issuer that tokens must name."""
    token_audience: str = ""
    """The audience that tokens must name."""
    metrics_plaintext: bool = False
    """Serve metrics without TLS even if gRPC has it."""
    metrics_client_ca_file: Path | None = None
    """PEM file with the authorities that sign the certificates of those who read metrics. Default:
    with TLS, metrics need no client certificate."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of log lines that are written to standard error."""

    traces_endpoint: HttpUrl | None = None
    """Collector that traces are sent to by OTLP over gRPC, http://HOST:PORT or https://HOST:PORT.
    Needs the extra `tracing`. Default: nothing is traced."""
    traces_sample_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of the traces begun in this process that are recorded, 0 to 1. A call whose client has
    decided is recorded as the client says."""

    @property
    def share_percent(self) -> int:
        """Return the share of all calls that one identity may have; 100 without TLS."""
        return IDENTITY_SHARE_PERCENT if self.has_tls else 100

    @model_validator(mode="after")
    def _agree_about_transport(self) -> Self:
        prefix, given = self.model_config["env_prefix"], self._tls_variables(given=True)
        if given and self.plaintext:
            raise ValueError(f"{prefix}PLAINTEXT=true contradicts {given[0]}: remove one of them")
        of_tls = self._named("token_listen_address", "metrics_plaintext", "metrics_client_ca_file")
        for name, value in of_tls.items():
            if value and not given:
                missing = " and ".join(self._tls_variables(given=False))
                raise ValueError(f"{name} needs TLS: set {missing}")
        return self

    @model_validator(mode="after")
    def _agree_about_tokens(self) -> Self:
        port = f"{self.model_config['env_prefix']}TOKEN_LISTEN_ADDRESS"
        rules = self._named("token_jwks_file", "token_issuer", "token_audience")
        for name, value in rules.items():
            if self.token_listen_address is not None and not value:
                raise ValueError(f"{port} needs {name}: how tokens are verified")
            if self.token_listen_address is None and value:
                raise ValueError(f"{name} is set without {port}: no port takes tokens")
        return self

    @model_validator(mode="after")
    def _agree_about_metrics(self) -> Self:
        if self.metrics_plaintext and self.metrics_client_ca_file is not None:
            first, second = self._named("metrics_plaintext", "metrics_client_ca_file")
            raise ValueError(f"{first}=true contradicts {second}: remove one of them")
        return self

    def require_transport(self) -> None:
        """Check that plaintext is served by choice only.

        Raises:
            SystemExit: there are no TLS files, and plaintext was not chosen.
        """
        if not self.has_tls and not self.plaintext:
            prefix = self.model_config["env_prefix"]
            raise SystemExit(
                f"no TLS: set {prefix}TLS_CERTIFICATE_FILE, {prefix}TLS_KEY_FILE, "
                f"{prefix}TLS_CLIENT_CA_FILE and {prefix}POLICY_FILE, or {prefix}PLAINTEXT=true to "
                "serve everyone who reaches the port (docs/run/security.md)"
            )

    @classmethod
    def to_serve(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Read the settings of a service that is about to start.

        Raises:
            SystemExit: as `from_environment`; or neither TLS nor plaintext was chosen.
        """
        settings = cls.from_environment(variables)
        settings.require_transport()
        return settings


class DividedSettings(ServiceSettings):
    """Hold the settings of a service that may run in several processes behind one port.

    Attributes:
        DIVIDED: the limits that hold for all processes together.
    """

    DIVIDED: ClassVar[tuple[str, ...]] = ("unary_threads", "stream_threads")

    processes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Processes that serve the port together, on Linux; 0: one for each core that "
        "the service may use (affinity and cgroup), at most 4. What limits one process is divided "
        "between them (docs/adr/0027-processes-behind-one-port.md).",
    )

    @property
    def process_count(self) -> int:
        """Return the number of processes that serve."""
        return self.processes or min(usable_cores(), MAX_PROCESSES_BY_DEFAULT)

    def part_of(self, processes: int) -> Self:
        """Return the settings of one of several processes."""
        parts = {name: -(-getattr(self, name) // processes) for name in self.DIVIDED}
        return self.model_copy(update=parts)


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process can keep busy; 1 where processes cannot share a port."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # No such file or "max": no limit.
        quota, period = map(int, cgroup.read_text().split())
        cores = min(cores, quota // period)
    return max(cores, 1)


def _complaints(error: ValidationError, prefix: str) -> list[str]:
    """List the settings at fault by variable, never with their values: they may be secret."""
    return [
        f"{_variable(complaint['loc'], prefix)}{plain_fault(complaint)}"
        for complaint in error.errors(include_input=False)
    ]


_RULES = {
    "missing": "is required",
    "extra_forbidden": "unknown key",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_type": "must be a text",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or less",
}


def plain_fault(complaint: Mapping[str, Any]) -> str:
    """Return one of Pydantic's complaints in our words."""
    rule = _RULES.get(complaint["type"])
    if rule is None:
        return str(complaint["msg"]).removeprefix("Value error, ")
    return rule.format_map(complaint.get("ctx", {}))


def _variable(location: tuple[int | str, ...], prefix: str) -> str:
    """Return "RSM_BUCKET: ", or "" if the message names several settings that conflict."""
    name = "_".join(map(str, location)).upper()
    return f"{prefix}{name}: " if name else ""
