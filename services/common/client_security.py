"""Choose how a client secures its connections, by options and variables that all clients share."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from services.api.errors import InvalidRequestError

CA_VARIABLE = "SEDIMENT_TLS_CA_FILE"
CERTIFICATE_VARIABLE = "SEDIMENT_TLS_CERTIFICATE_FILE"
KEY_VARIABLE = "SEDIMENT_TLS_KEY_FILE"
TOKEN_VARIABLE = "SEDIMENT_TOKEN_FILE"
PLAINTEXT_VARIABLE = "SEDIMENT_PLAINTEXT"

TARGET_SCHEME = re.compile(r"dns:(?://[^/]*/)?|ipv[46]:")
"""How a target of gRPC begins that is more than HOST:PORT."""

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
            what = f"a token ({self.token})" if self.token else "a client certificate"
            raise InvalidRequestError(
                f"{what} is sent over TLS only; give the CA file of the servers as well, --tls-ca "
                f"({CA_VARIABLE})"
            )

    def __str__(self) -> str:
        named = (
            ("CA", self.ca),
            ("certificate", self.certificate),
            ("key", self.key),
            ("token", self.token),
        )
        given = ", ".join(f"{what} {path}" for what, path in named if path is not None)
        return given or "plaintext"


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

        names = (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE)
        return cls(
            ClientSecurity(*map(path, names)),
            environment.get(PLAINTEXT_VARIABLE, "").lower() in ("1", "true", "yes"),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `from_environment` reads this."""
        files = {
            CA_VARIABLE: self.files.ca,
            CERTIFICATE_VARIABLE: self.files.certificate,
            KEY_VARIABLE: self.files.key,
            TOKEN_VARIABLE: self.files.token,
        }
        variables = {name: str(path) for name, path in files.items() if path is not None}
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


def each_address(targets: str) -> list[str]:
    """Return each HOST:PORT of a target of gRPC, or of several servers with commas between them.

    An empty text, of a service whose address is not known, is one empty address.

    Raises:
        InvalidRequestError: an address has no host or no port. (gRPC would take port 443.)
    """
    if not targets or targets.startswith("unix:"):
        return [targets]
    scheme = TARGET_SCHEME.match(targets)
    found = [each.strip() for each in targets[scheme.end() if scheme else 0 :].split(",")]
    for each in found:
        host, _, port = each.rpartition(":")
        is_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not host or is_ipv6 or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidRequestError(
                f"{each!r} is not HOST:PORT; write, for example, localhost:50051 or [::1]:50051"
            )
    return found


def target_of(address: str, *, has_tls: bool) -> str:
    """Check the target of one channel: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT.

    Raises:
        InvalidRequestError: it is none, or it names several servers whose certificates cannot be
            checked.
    """
    found = each_address(address)
    if len(found) > 1 and TARGET_SCHEME.match(address) is None:
        raise InvalidRequestError(
            f"{address!r} names several servers; write ipv4:{','.join(found)} if they are IP "
            "addresses, or a host name that resolves to all of them"
        )
    if len(found) > 1 and has_tls:
        raise InvalidRequestError(
            f"{address!r}: TLS checks one name for all servers of a target; write a host name that "
            "resolves to all of them, and that their certificates have"
        )
    return address.strip()


def other_machine(targets: str) -> str | None:
    """Return the first HOST:PORT of `targets` that is not this machine; None if all are.

    Raises:
        InvalidRequestError: an address has no host or no port.
    """
    others = (each for each in each_address(targets) if not _is_loopback(each))
    return next(others, None)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
