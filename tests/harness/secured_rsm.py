"""Serve an RSM with TLS in this process, and make clients of it."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.common.client_security import ClientSecurity
from services.common.settings import ServiceSettings
from services.local.certificates import Certificate, CertificateAuthority
from services.rpc.server.server import Ports, Service, start_grpc
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.harness.certificates import OPERATOR

_POLICY = f"""\
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin"]
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
def serving_rsm(settings: ServiceSettings, objects: Path) -> Iterator[Ports]:
    """Serve an RSM that keeps its objects in a directory."""
    objects.mkdir()
    with closing(build_manager(RsmSettings(backend="filesystem", directory=objects))) as manager:

        def add(server: grpc.Server) -> None:
            add_to_server(manager, server)

        name = "tieredstorage.v1.RemoteStorageManager"
        service = Service("rsm", name, add, check=lambda: None, close=lambda: None)
        with ExitStack() as cleanup:
            yield start_grpc(service, settings, cleanup)
