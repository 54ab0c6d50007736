"""Choose how a client secures its connections, by options and variables that all clients share."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

from services.api.errors import InvalidRequestError
from services.common.addresses import other_machine
from services.common.bounded_file import shown

CA_VARIABLE = "SEDIMENT_TLS_CA_FILE"
CERTIFICATE_VARIABLE = "SEDIMENT_TLS_CERTIFICATE_FILE"
KEY_VARIABLE = "SEDIMENT_TLS_KEY_FILE"
TOKEN_VARIABLE = "SEDIMENT_TOKEN_FILE"
PLAINTEXT_VARIABLE = "SEDIMENT_PLAINTEXT"
_FILE_VARIABLES = (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE)

NO_PROXY: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.address_http_proxy_enabled_addresses", ""),
)
"""Options of every gRPC channel. By default http_proxy and its like redirect it, loopback too, and
the proxy sees each record of a plaintext channel.
"""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client secures its channels; without `ca` they are plaintext.

    Attributes:
        ca: PEM file with the authorities that sign the certificates of servers.
        certificate, key: PEM files of the client's own, for ports that require certificates.
        token: file with a service-account token, for ports that take tokens.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise InvalidRequestError(
                f"a TLS {given} without its {missing}; give both files, --tls-certificate "
                f"({CERTIFICATE_VARIABLE}) and --tls-key ({KEY_VARIABLE})"
            )
        if self.ca is None and (self.certificate or self.token):
            what = f"a token ({shown(self.token)})" if self.token else "a client certificate"
            raise InvalidRequestError(
                f"{what} is sent over TLS only; give the CA file of the servers as well, --tls-ca "
                f"({CA_VARIABLE})"
            )

    def __str__(self) -> str:
        files = zip(("CA", "certificate", "key", "token"), astuple(self), strict=True)
        return ", ".join(f"{what} {shown(path)}" for what, path in files if path) or "plaintext"


PLAINTEXT = ClientSecurity()


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What the user of a command or job has chosen.

    Attributes:
        files: the files for TLS; none for plaintext.
        plaintext: also other machines may be connected to without TLS.
    """

    files: ClientSecurity = PLAINTEXT
    plaintext: bool = False

    def __post_init__(self) -> None:
        if self.plaintext and self.files != PLAINTEXT:
            raise InvalidRequestError(
                f"--plaintext ({PLAINTEXT_VARIABLE}) contradicts the TLS files: {self.files}; "
                "remove one of them"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the variables; an empty one is like a missing one."""

        def path(name: str) -> Path | None:
            return Path(environment[name]) if environment.get(name) else None

        return cls(
            ClientSecurity(*map(path, _FILE_VARIABLES)),
            environment.get(PLAINTEXT_VARIABLE, "").lower() in ("1", "true", "yes"),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `from_environment` reads this."""
        files = zip(_FILE_VARIABLES, astuple(self.files), strict=True)
        variables = {name: str(path) for name, path in files if path}
        return {**variables, PLAINTEXT_VARIABLE: "true"} if self.plaintext else variables

    @property
    def is_chosen(self) -> bool:
        return self.plaintext or self.files != PLAINTEXT

    def security_for(self, address: str) -> ClientSecurity:
        """Return the security of channels to a target, or several with commas between them.

        Raises:
            InvalidRequestError: neither TLS nor plaintext was chosen, and a host is not this
                machine.
        """
        other = other_machine(address)
        if other is not None and not self.is_chosen:
            raise InvalidRequestError(
                f"{other} is another machine, and there are no TLS files; give --tls-ca "
                f"({CA_VARIABLE}) with --tls-certificate and --tls-key or with --token-file, or "
                f"--plaintext ({PLAINTEXT_VARIABLE}=true) if the services serve plaintext"
            )
        return self.files


NOT_CHOSEN = SecurityOptions()
