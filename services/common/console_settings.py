"""Define the console's settings, which are environment variables."""

from typing import Self

from pydantic import model_validator
from pydantic_settings import SettingsConfigDict

from services.common.addresses import is_loopback
from services.common.settings import Address, Addresses, Target, TlsSettings


class ConsoleSettings(TlsSettings):
    """Settings of the console; each is an environment variable with the prefix CONSOLE_.

    The certificate with which it calls the services is that of other clients, SEDIMENT_TLS_*.
    """

    model_config = SettingsConfigDict(env_prefix="CONSOLE_")

    listen_address: Address = "127.0.0.1:0"
    """Address to serve HTTP on, HOST:PORT; port 0 picks a free port. Without TLS HOST must be
    127.0.0.1, ::1 or localhost: every user of this machine sees what the console may read."""
    rlmm_address: Target
    """Target of RLMM: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT."""
    rlm_addresses: Addresses | None = None
    """Addresses of the RLMs, HOST:PORT with commas between them: one for each broker whose local
    log is to be shown. Default: none."""
    rsm_address: Target | None = None
    """Target of RSM, as of RLMM; only its health is shown. Default: none."""

    @model_validator(mode="after")
    def _is_local_without_tls(self) -> Self:
        if not self.has_tls and not is_loopback(self.listen_address):
            raise ValueError(
                f"CONSOLE_LISTEN_ADDRESS is {self.listen_address}, which other machines may reach: "
                "without TLS the console serves this machine only; use 127.0.0.1, or set "
                f"{', '.join(self._tls_variables(given=False))} and CONSOLE_POLICY_FILE"
            )
        return self
