"""Serve gRPC in this process with TLS, tokens and a policy, and dial it as any identity."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from services.api.roles import Role
from services.common.client_security import ClientSecurity
from services.common.settings import ServiceSettings
from services.local.certificates import Certificate, CertificateAuthority
from services.rpc.server.server import Ports, Service, start_grpc
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.harness.certificates import AUDIENCE, ISSUER, OPERATOR, TokenIssuer

DOMAIN = "spiffe://sediment.test"


def spiffe(name: str) -> str:
    return f"{DOMAIN}/{name}"


class Deployment:
    """The files of one deployment: an authority, an issuer of tokens, and a policy.

    Attributes:
        authority: signs the certificates of servers and clients.
        server: the certificate of all servers.
        issuer: signs tokens.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = CertificateAuthority(directory)
        self.issuer = TokenIssuer()
        self.policy = directory / "policy.toml"
        self.server = self.authority.issue("server")
        self._jwks = self.issuer.write_jwks(directory / "jwks.json")
        self._grants: dict[str, str] = {}

    def grant(self, identity: str, *roles: Role, topics: Sequence[str] = ("*",)) -> None:
        """Grant roles to an identity instead of what it had; no roles take everything away."""
        names = [role.value for role in roles]
        self._grants[identity] = (
            ""
            if not roles
            else (
                f"[[grant]]\nidentities = {json.dumps([identity])}\nroles = {json.dumps(names)}\n"
                f"topics = {json.dumps(list(topics))}\n"
            )
        )
        making = self.policy.with_suffix(".new")
        making.write_text("\n".join(self._grants.values()))
        making.replace(self.policy)

    def settings(self, **more: Any) -> ServiceSettings:
        """Return the settings of a service with TLS."""
        return ServiceSettings(**{**self._settings(), "drain_timeout_ms": 1_000, **more})

    def environment(self, prefix: str) -> dict[str, str]:
        """Return the variables of a process with TLS; `prefix` as in "RSM"."""
        return {f"{prefix}_{name}".upper(): str(v) for name, v in self._settings().items()}

    def _settings(self) -> dict[str, Any]:
        return {
            "tls_certificate_file": self.server.certificate,
            "tls_key_file": self.server.key,
            "tls_client_ca_file": self.authority.certificate,
            "policy_file": self.policy,
            "token_listen_address": "127.0.0.1:0",
            "token_jwks_file": self._jwks,
            "token_issuer": ISSUER,
            "token_audience": AUDIENCE,
        }

    def client(self, name: str) -> ClientSecurity:
        """Return the files of a client with a certificate for `spiffe(name)`."""
        made = self.authority.issue(name, hosts=(), uris=[spiffe(name)])
        return self.with_certificate(made)

    def with_certificate(self, made: Certificate) -> ClientSecurity:
        return ClientSecurity(self.authority.certificate, made.certificate, made.key)

    def with_token(self, token: str) -> ClientSecurity:
        """Return the files of a client that has only a token."""
        file = self.directory / f"token-{abs(hash(token))}"
        file.write_text(token)
        return ClientSecurity(self.authority.certificate, token=file)

    @contextmanager
    def served(
        self,
        add_to: Callable[[grpc.Server], None],
        full_name: str = "test.Test",
        client_stream_threads: int = 8,
        **settings: Any,
    ) -> Iterator[Ports]:
        """Serve with TLS on free ports."""
        service = Service(
            "test", full_name, add_to, lambda: None, lambda: None, client_stream_threads
        )
        with ExitStack() as cleanup:
            yield start_grpc(service, self.settings(**settings), cleanup)


def raw_channel(ports: Ports, security: ClientSecurity) -> grpc.Channel:
    """Open a channel without the checks of our own clients, to the port for this kind of client."""
    assert security.ca is not None
    root = security.ca.read_bytes()
    if security.key is not None and security.certificate is not None:
        key, chain = security.key.read_bytes(), security.certificate.read_bytes()
        return grpc.secure_channel(ports.address, grpc.ssl_channel_credentials(root, key, chain))
    tls = grpc.ssl_channel_credentials(root)
    if security.token is not None:
        token = grpc.access_token_call_credentials(security.token.read_text())
        tls = grpc.composite_channel_credentials(tls, token)
    return grpc.secure_channel(ports.tokens, tls)


_POLICY = f"""\
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin",
         "overrider"]
topics = ["*"]
"""


@dataclass(frozen=True)
class Secrets:
    """An authority, certificates of it, and a policy that lets the operator do everything."""

    authority: CertificateAuthority
    server: Certificate
    operator: Certificate
    policy: Path

    def settings(self, server: Certificate | None = None, **changes: object) -> ServiceSettings:
        shown = server or self.server
        return ServiceSettings.model_validate(
            {
                "tls_certificate_file": shown.certificate,
                "tls_key_file": shown.key,
                "tls_client_ca_file": self.authority.certificate,
                "policy_file": self.policy,
                "drain_timeout_ms": 1000,
                **changes,
            }
        )

    def security(self, shown: Certificate | None = None) -> ClientSecurity:
        own = shown or self.operator
        return ClientSecurity(self.authority.certificate, own.certificate, own.key)


def make_secrets(directory: Path) -> Secrets:
    authority = CertificateAuthority(directory)
    policy = directory / "policy.toml"
    policy.write_text(_POLICY)
    return Secrets(
        authority,
        authority.issue("server"),
        authority.issue("operator", hosts=(), uris=[OPERATOR]),
        policy,
    )


@contextmanager
def serving_rsm(settings: ServiceSettings, objects: Path, **more: Any) -> Iterator[Ports]:
    """Serve an RSM that keeps its objects in a directory; `more` is of start_grpc."""
    objects.mkdir()
    with closing(build_manager(RsmSettings(backend="filesystem", directory=objects))) as manager:

        def add(server: grpc.Server) -> None:
            add_to_server(manager, server)

        name = "tieredstorage.v1.RemoteStorageManager"
        service = Service("rsm", name, add, check=lambda: None, close=lambda: None)
        with ExitStack() as cleanup:
            yield start_grpc(service, settings, cleanup, **more)
