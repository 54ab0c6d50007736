"""Make a throw-away certificate authority, and certificates of it for servers and clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.local.data_directory import write_secret
from services.local.process import LOOPBACK

LOCAL_HOSTS = (LOOPBACK, "localhost")

# Clocks of containers differ by seconds; certificates are valid from a little earlier.
_CLOCK_TOLERANCE = timedelta(minutes=5)
_VALIDITY = timedelta(days=365)


@dataclass(frozen=True)
class Certificate:
    """A private key (PKCS #8) and a certificate for it, each a file of PEM."""

    key: Path
    certificate: Path


class CertificateAuthority:
    """Issues certificates; its own key is only in memory, so that it cannot be stolen from disk.

    Attributes:
        certificate: the file with the authority's certificate, for those who trust it.
    """

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """Make an authority that nothing else trusts, and write NAME.crt."""
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.certificate = directory / f"{name}.crt"
        certificate = (
            _unsigned(self._name, self._name, self._key, self._key, _since(), _until())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        write_secret(self.certificate, _pem(certificate))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = LOCAL_HOSTS,
        uris: Sequence[str] = (),
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
    ) -> Certificate:
        """Make a certificate for servers and clients, and write NAME.key and NAME.crt.

        Existing files of the name are replaced, each atomically: the certificate is rotated.

        Args:
            hosts: DNS names and IP addresses; empty for a client that has only URIs.
            uris: the identities of a client, for example SPIFFE ids.
            valid_from: default: some minutes ago.
            valid_until: default: in a year.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _unsigned(
            _named(name),
            self._name,
            key,
            self._key,
            valid_from or _since(),
            valid_until or _until(),
        )
        certificate = _for_an_end(builder, hosts, uris).sign(self._key, hashes.SHA256())
        return _written(self._directory, name, key, certificate)


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid_from: datetime,
    valid_until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )


def _for_an_end(
    builder: x509.CertificateBuilder, hosts: Sequence[str], uris: Sequence[str]
) -> x509.CertificateBuilder:
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
    )
    names = [*map(_host_name, hosts), *map(x509.UniformResourceIdentifier, uris)]
    if not names:
        return builder
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _written(
    directory: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> Certificate:
    made = Certificate(directory / f"{name}.key", directory / f"{name}.crt")
    unencrypted = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, pkcs8, unencrypted)
    write_secret(made.key, pem.decode())
    write_secret(made.certificate, _pem(certificate))
    return made


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _since() -> datetime:
    return datetime.now(UTC) - _CLOCK_TOLERANCE


def _until() -> datetime:
    return datetime.now(UTC) + _VALIDITY
