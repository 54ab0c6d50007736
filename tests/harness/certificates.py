"""Certificates that a server or client must refuse, and the forms that Kafka reads."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from services.local.certificates import Certificate, CertificateAuthority, issue_self_signed

OPERATOR = "spiffe://sediment.test/operator"
_DAY = timedelta(days=1)


def keystore(made: Certificate) -> Path:
    """Return one file of key and certificate."""
    return key_and_certificate(made.key, made.certificate, made.key.with_suffix(".keystore.pem"))


def key_and_certificate(key: Path, certificate: Path, path: Path) -> Path:
    """Write both into one file; return it."""
    path.write_text(key.read_text() + certificate.read_text())
    return path


def encrypted_key(key: Path, password: str) -> Path:
    """Return the same key, encrypted with a password."""
    path = key.with_suffix(".encrypted.key")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    return path


@dataclass(frozen=True)
class BadCertificates:
    """Certificates for the same identity, each wrong in one way.

    Attributes:
        expired: ended yesterday.
        not_yet_valid: starts tomorrow.
        self_signed: no authority signed it.
        wrong_ca: of an authority that the other side does not trust.
        wrong_name: of the right authority, for another host and another identity.
        no_name: of the right authority, without any name but the subject.
    """

    expired: Certificate
    not_yet_valid: Certificate
    self_signed: Certificate
    wrong_ca: Certificate
    wrong_name: Certificate
    no_name: Certificate


def bad_certificates(
    authority: CertificateAuthority, directory: Path, uri: str = OPERATOR
) -> BadCertificates:
    """Make bad certificates for loopback servers and for clients with `uri`."""
    now, uris = datetime.now(UTC), [uri]
    before, after = now - 2 * _DAY, now - _DAY
    elsewhere = CertificateAuthority(directory, "elsewhere-ca")
    return BadCertificates(
        expired=authority.issue("expired", uris=uris, valid_from=before, valid_until=after),
        not_yet_valid=authority.issue("not-yet-valid", uris=uris, valid_from=now + _DAY),
        self_signed=issue_self_signed(directory, "self-signed", uris=uris),
        wrong_ca=elsewhere.issue("wrong-ca", uris=uris),
        wrong_name=authority.issue(
            "wrong-name", hosts=["elsewhere.test"], uris=["spiffe://elsewhere.test/nobody"]
        ),
        no_name=authority.issue("no-name", hosts=(), uris=()),
    )
