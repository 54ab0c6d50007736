"""Rotate the authority and all certificates of running services and clients."""

import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from cryptography import x509

from services.local.certificates import Certificate, CertificateAuthority
from services.local.data_directory import write_secret
from services.rpc.tls import POLL_INTERVAL_S
from tests.harness.eventually import eventually


def shown_by(address: str, ca: Path, own: Certificate) -> bytes:
    """Return the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(own.certificate, own.key)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def _settle() -> None:
    """Wait for what nobody can see: that clients, too, have read the files."""
    Event().wait(1.5 * POLL_INTERVAL_S)


@dataclass(frozen=True)
class Parties:
    """The files that are rotated, and those who use them.

    Attributes:
        ca: the file that every party trusts.
        servers: certificates by the addresses of the servers that show them.
        clients: the other certificates, the first being our own.
        uris: the identities of certificates by their file names.
    """

    ca: Path
    servers: Mapping[str, Certificate]
    clients: Sequence[Certificate]
    uris: Mapping[str, str]

    def rotate(self, directory: Path, name: str) -> None:
        """Do as an operator does: trust a new authority as well, renew, trust it alone.

        After each step it waits until every party has read the files.
        """
        successor = CertificateAuthority(directory, name)
        new = successor.certificate.read_text()
        write_secret(self.ca, self.ca.read_text() + new)
        _settle()
        for certificate in (*self.servers.values(), *self.clients):
            self._renew(successor, certificate)
        for address in self.servers:
            self._wait_for(name, address)
        _settle()
        write_secret(self.ca, new)
        _settle()

    def _wait_for(self, issuer: str, address: str) -> None:
        eventually(lambda: self._issuer(address) == issuer, poll_ms=200)

    def _renew(self, successor: CertificateAuthority, old: Certificate) -> None:
        name = old.certificate.stem
        uris = [self.uris[name]] if name in self.uris else []
        renewed = successor.issue(name, uris=uris)
        renewed.certificate.replace(old.certificate)
        renewed.key.replace(old.key)

    def _issuer(self, address: str) -> str:
        shown = x509.load_der_x509_certificate(shown_by(address, self.ca, self.clients[0]))
        return str(shown.issuer.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
