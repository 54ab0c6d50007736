"""Define the console's settings, which are environment variables."""

from ipaddress import ip_address
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from services.common.settings import (
    Address,
    OptionalAddresses,
    OptionalPath,
    OptionalTarget,
    Target,
    VariableSettings,
    split_address,
)


class ConsoleSettings(VariableSettings):
    """Settings of the console; each is an environment variable with the prefix CONSOLE_.

    The certificate with which it calls the services is that of other clients, SEDIMENT_TLS_*.
    """

    model_config = SettingsConfigDict(env_prefix="CONSOLE_")

    listen_address: Address = Field(
        default="127.0.0.1:0",
        description="Address to serve HTTP on, HOST:PORT; port 0 picks a free port. Without TLS "
        "HOST must be 127.0.0.1, ::1 or localhost: every user of this machine sees what the "
        "console may read.",
    )
    rlmm_address: Target = Field(
        description="Target of RLMM: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT."
    )
    rlm_addresses: OptionalAddresses = Field(
        default=None,
        description="Addresses of the RLMs, HOST:PORT with commas between them: one for each "
        "broker whose local log is to be shown. Default: none.",
    )
    rsm_address: OptionalTarget = Field(
        default=None,
        description="Target of RSM, as of RLMM; only its health is shown. Default: none.",
    )
    tls_certificate_file: OptionalPath = Field(
        default=None,
        description="PEM file with the console's certificate and its intermediate ones. This and "
        "the three files below turn TLS on; they are read again when they change.",
    )
    tls_key_file: OptionalPath = Field(
        default=None, description="PEM file with the private key of that certificate."
    )
    tls_client_ca_file: OptionalPath = Field(
        default=None,
        description="PEM file with the authorities that sign the certificates of browsers. Every "
        "browser must have one.",
    )
    policy_file: OptionalPath = Field(
        default=None,
        description="TOML file that grants roles to identities (docs/run/security.md), the same as "
        "that of the services; read again when it changes.",
    )

    @property
    def has_tls(self) -> bool:
        return self.tls_certificate_file is not None

    @model_validator(mode="after")
    def _agree_about_transport(self) -> Self:
        names = ("tls_certificate_file", "tls_key_file", "tls_client_ca_file", "policy_file")
        files = self._named(*names)
        given = [name for name, value in files.items() if value is not None]
        missing = [name for name, value in files.items() if value is None]
        if given and missing:
            raise ValueError(f"{given[0]} is set without {' and '.join(missing)}")
        if not given and not is_loopback(self.listen_address):
            raise ValueError(
                f"CONSOLE_LISTEN_ADDRESS is {self.listen_address}, which other machines may reach: "
                "without TLS the console serves this machine only; use 127.0.0.1, or set "
                f"{', '.join(missing)}"
            )
        return self


def is_loopback(address: str) -> bool:
    """Return whether HOST of an Address is this machine's own."""
    host, _ = split_address(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
