"""Sign service-account tokens as a cluster of Kubernetes does, and write its public keys."""

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

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
