"""Bind the ports of a service: with TLS whose files may change, or in plaintext by choice."""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
from prometheus_client import Gauge

from services.common.settings import ServiceSettings, TlsSettings
from services.rpc.tls import ReloadedTls, TlsFileError, TlsFiles, TlsMaterial

PLAINTEXT = Gauge("sediment_plaintext", "1 if gRPC is served without TLS, else 0.")
CERTIFICATE_EXPIRY = Gauge(
    "sediment_tls_certificate_expiry_timestamp_seconds",
    "When the certificate that is served expires; 0 without TLS.",
)
_log = logging.getLogger("sediment.tls")


@dataclass(frozen=True, slots=True)
class Transport:
    """How a service's ports are secured; plaintext if `tls` is None.

    Attributes:
        tls: certificate, key and the authorities of clients.
        metrics_tls: the same for those who read metrics; None if metrics are plaintext.
    """

    tls: ReloadedTls | None
    metrics_tls: ReloadedTls | None

    def bind(self, server: grpc.Server, address: str) -> str:
        """Bind the port for clients with certificates; return its HOST:PORT."""
        if self.tls is None:
            return bind(server, address)
        return bind(server, address, _credentials(self.tls, requires_certificates=True))

    def bind_tokens(self, server: grpc.Server, address: str | None) -> str:
        """Bind the port for clients with tokens; return its HOST:PORT, "" if there is none."""
        if self.tls is None or address is None:
            return ""
        return bind(server, address, _credentials(self.tls, requires_certificates=False))


def open_transport(settings: ServiceSettings) -> Transport:
    """Read the TLS files of the settings, or warn that there are none.

    Raises:
        SystemExit: a file cannot be used, names it; or neither TLS nor plaintext was chosen.
    """
    settings.require_transport()
    PLAINTEXT.set(0 if settings.has_tls else 1)
    if not settings.has_tls:
        _log.warning(
            "serving without TLS: anyone who can reach this port may read and delete everything; "
            "set up certificates (docs/run/security.md)"
        )
        return Transport(None, None)
    tls = open_tls(settings, settings.tls_client_ca_file)
    CERTIFICATE_EXPIRY.set_function(lambda: tls.material().expires_at)
    if settings.metrics_plaintext:
        return Transport(tls, None)
    return Transport(tls, open_tls(settings, settings.metrics_client_ca_file))


class ServerContexts:
    """Makes the TLS context of each connection to a server that is not gRPC's. Thread-safe.

    Clients need a certificate if the files have authorities that sign them.
    """

    def __init__(self, tls: ReloadedTls) -> None:
        self._tls = tls
        self._made = tls.material(), _server_context(tls.files)

    def newest(self) -> ssl.SSLContext:
        """Return a context of the newest files that can be used."""
        material = self._tls.material()
        if material is not self._made[0]:
            try:
                self._made = material, _server_context(self._tls.files)
            except OSError as e:
                # The files changed again in this moment: the next connection reads them again.
                _log.info("TLS files changed while they were read: %s", e)
        return self._made[1]


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert files.certificate is not None
    context.load_cert_chain(files.certificate, files.key)
    if files.ca is not None:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would be checked against the authorities of its first connection.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def open_tls(settings: TlsSettings, client_ca: Path | None) -> ReloadedTls:
    """Read the certificate and key of a process that has TLS, and the authorities of its clients.

    Raises:
        SystemExit: a file cannot be used; names it.
    """
    try:
        return ReloadedTls(
            TlsFiles(settings.tls_certificate_file, settings.tls_key_file, client_ca)
        )
    except TlsFileError as e:
        raise SystemExit(str(e)) from e


def bind(
    server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Bind a port, in plaintext without credentials; return HOST:PORT with the actual port.

    Raises:
        SystemExit: the port is in use, or the address does not belong to this machine.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as e:
        raise SystemExit(
            f"cannot listen on {address}: the port is taken, or it is not an address of this "
            f"machine; set another listen or health address"
        ) from e
    return f"{address.rpartition(':')[0]}:{port}"


def _credentials(tls: ReloadedTls, *, requires_certificates: bool) -> grpc.ServerCredentials:
    """Return credentials that follow the files: gRPC asks before each handshake."""
    served = tls.material()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        material = tls.material()
        if material is served:
            return None
        served = material
        return _configuration(material, requires_certificates)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served, requires_certificates),
        # The stubs lack None, which means "no change".
        cast(Callable[[], grpc.ServerCertificateConfiguration], changed),
        require_client_authentication=requires_certificates,
    )


def _configuration(
    material: TlsMaterial, requires_certificates: bool
) -> grpc.ServerCertificateConfiguration:
    assert material.key is not None
    assert material.certificate is not None
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)],
        root_certificates=material.ca if requires_certificates else None,
    )
