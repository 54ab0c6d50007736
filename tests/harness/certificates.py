"""Make certificates and tokens, sound, refused and rotated ones."""

import base64
import hmac
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from services.local.certificates import Certificate, CertificateAuthority
from services.local.data_directory import write_secret
from services.rpc.tls import POLL_INTERVAL_S
from tests.harness.eventually import eventually

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
        self_signed=_self_signed(authority.issue("self-signed", uris=uris)),
        wrong_ca=elsewhere.issue("wrong-ca", uris=uris),
        wrong_name=authority.issue(
            "wrong-name", hosts=["elsewhere.test"], uris=["spiffe://elsewhere.test/nobody"]
        ),
        no_name=authority.issue("no-name", hosts=(), uris=()),
    )


def _self_signed(issued: Certificate) -> Certificate:
    """Sign a certificate again, with its own key, and replace its file."""
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    old = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.subject)
        .public_key(key.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
    )
    for each in old.extensions:
        if not isinstance(each.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(each.value, each.critical)
    signed = builder.sign(key, hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM).decode()
    return Certificate(issued.key, write_secret(issued.certificate, pem))


ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = "sediment"
REMOVED = object()
"""The value of a field of the header that a token shall not have."""


def account(namespace: str, name: str) -> str:
    """Return the identity of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


class TokenIssuer:
    """Signs tokens with one key."""

    def __init__(self, key_id: str = "key-1", algorithm: str = "ES256") -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self.key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        if algorithm.startswith("ES"):
            self.key = ec.generate_private_key(ec.SECP256R1())
        else:
            self.key = rsa.generate_private_key(65_537, 2048)

    def jwk(self) -> dict[str, Any]:
        """Return the public key."""
        if isinstance(self.key, rsa.RSAPrivateKey):
            found = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        else:
            found = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**found, "kid": self.key_id, "use": "sig", "alg": self.algorithm}

    def write_jwks(self, path: Path, *others: "TokenIssuer") -> Path:
        """Write the public keys of this issuer and others."""
        path.write_text(json.dumps({"keys": [each.jwk() for each in (self, *others)]}))
        return path

    def token(self, subject: str, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Sign a token for ten minutes; `claims` replace the usual ones, and None removes one."""
        now = int(time.time())
        usual = {"iss": ISSUER, "aud": [AUDIENCE], "sub": subject, "iat": now, "exp": now + 600}
        kept = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        headers = {"kid": self.key_id, **(header or {})}
        headers = {name: value for name, value in headers.items() if value is not REMOVED}
        return jwt.encode(kept, self.key, self.algorithm, headers=headers)


def unsigned_token(subject: str) -> str:
    """Return a token with `alg: none`."""
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": [AUDIENCE], "sub": subject, "iat": now, "exp": now + 600}
    return jwt.encode(claims, "", "none", headers={"kid": "key-1"})


def symmetric_token(issuer: TokenIssuer, subject: str) -> str:
    """Return a token that is signed by HS256 with the issuer's public key as the secret.

    By hand: the library refuses to sign so.
    """
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": [AUDIENCE], "sub": subject, "iat": now, "exp": now + 600}
    header = {"alg": "HS256", "typ": "JWT", "kid": issuer.key_id}
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    pem = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hmac.digest(pem, signed, "sha256")
    return b".".join((signed, _encoded(digest))).decode()


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


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
    """Wait until clients, too, have read the files, which no figure shows."""
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
