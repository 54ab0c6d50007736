"""Identify clients by their certificate or by a Kubernetes service-account token."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt

from services.api.errors import UnauthenticatedError
from services.common.reloaded_file import ReloadedFile

ANONYMOUS = "anonymous"
"""The identity of every caller while TLS is off."""

UNAUTHENTICATED = "unauthenticated"
"""The actor in the log of a call that is refused because it has no identity."""

# Bounds of what a caller may have us read. A token of Kubernetes has some 1,200 characters.
MAX_TOKEN_LENGTH = 16 * 1024
MAX_IDENTITY_LENGTH = 2_048

# Asymmetric signatures only. A verifier that also took HS256 would take the public key, which is no
# secret, as the secret.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_CLOCK_TOLERANCE_S = 10

# The three kinds of identity have no text in common, so that no certificate passes for a token's
# identity, whatever names an authority signs.
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]+")
_DNS_NAME = re.compile(r"[A-Za-z0-9_*.-]+")
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:[a-z0-9.-]+:[a-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and how long that is certain.

    Attributes:
        identity: as the policy and the audit trail have it.
        expires_at_s: when the caller's token is no longer accepted, Unix time; infinite for a
            certificate, which TLS checks when a connection opens.
    """

    identity: str
    expires_at_s: float = math.inf


class TokenVerifier:
    """Verifies bearer tokens offline, with the keys of a JWKS file. Thread-safe."""

    def __init__(self, jwks_file: Path, issuer: str, audience: str) -> None:
        """Read the keys for the first time.

        Raises:
            FileError: the file cannot be used.
        """
        self._keys = ReloadedFile("token keys", jwks_file, _keys_of)
        self._issuer = issuer
        self._audience = audience

    def caller_of(self, token: str) -> Caller:
        """Return the caller of a valid token: system:serviceaccount:NAMESPACE:NAME and its end.

        Raises:
            UnauthenticatedError: the token is not valid; the message says why, without the token.
        """
        if len(token) > MAX_TOKEN_LENGTH:
            raise _invalid(f"has more than {MAX_TOKEN_LENGTH:,} characters")
        try:
            key = self._key_of(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                leeway=_CLOCK_TOLERANCE_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            subject, expires_at_s = str(claims["sub"]), float(claims["exp"])
        except Exception as e:  # noqa: BLE001 - a boundary: what breaks the verifier is not valid
            raise _invalid(_reason(e)) from None
        if not _SERVICE_ACCOUNT.fullmatch(subject) or len(subject) > MAX_IDENTITY_LENGTH:
            raise _invalid("is not of a service account")
        return Caller(subject, expires_at_s + _CLOCK_TOLERANCE_S)

    def _key_of(self, token: str) -> jwt.PyJWK:
        """Return the key that the token names; the only one if it names none."""
        header = jwt.get_unverified_header(token)
        keys = self._keys.current()
        name = header.get("kid")
        if name is None and len(keys) == 1:
            (key,) = keys.values()
        elif isinstance(name, str) and name in keys:
            key = keys[name]
        else:
            raise jwt.InvalidKeyError
        if header.get("alg") != key.algorithm_name:
            raise jwt.InvalidAlgorithmError
        return key


def _keys_of(content: bytes) -> Mapping[str, jwt.PyJWK]:
    """Return the signature keys of a JWKS by key id.

    Raises:
        ValueError: the content has no usable key. Unknown types of keys are skipped.
    """
    try:
        found = json.loads(content)["keys"]
        entries = [entry for entry in found if entry.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError('is not a JWKS, a JSON object with a list "keys"') from e
    keys: dict[str, jwt.PyJWK] = {}
    for entry in entries:
        key = _key(entry)
        if key is None:
            continue
        name = str(entry.get("kid", ""))
        if name in keys:
            raise ValueError(f"has two keys with the id {name[:64]!r}")
        keys[name] = key
    if not keys:
        raise ValueError(f"has no key for signatures by one of {', '.join(ALGORITHMS)}")
    return keys


def _key(entry: dict[str, Any]) -> jwt.PyJWK | None:
    try:
        key = jwt.PyJWK(entry)
    except Exception:  # noqa: BLE001 - a boundary: the library raises anything for odd keys
        return None
    return key if key.algorithm_name in ALGORITHMS else None


def caller_of(context: grpc.ServicerContext, tokens: TokenVerifier | None) -> Caller:
    """Return the caller by a call's client certificate, or else by its token.

    Args:
        tokens: verifies tokens; None if this service takes none.

    Raises:
        UnauthenticatedError: the call has neither, or one that does not count.
    """
    # Lists, whatever the stubs say.
    facts: Mapping[str, Any] = context.auth_context()
    if "x509_pem_cert" in facts:
        return Caller(_of_certificate(facts))
    token = _bearer_token(context)
    if token is None or tokens is None:
        raise UnauthenticatedError(
            "the call has no identity: send a client certificate to the listen address, or a "
            "service-account token to the token listen address"
        )
    return tokens.caller_of(token)


def _of_certificate(facts: Mapping[str, Any]) -> str:
    """Return the first SPIFFE id, else the first URI, else the first DNS name.

    Never the common name, nor x509_subject_alternative_name, in which a URI and a DNS name of the
    same text are equal.
    """
    uris, names = facts.get("peer_uri", []), facts.get("peer_dns", [])
    return _identity_of_names(map(_text, uris), map(_text, names))


def identity_of_certificate(certificate: Mapping[str, Any]) -> str:
    """Return the identity of a verified certificate, as ssl.getpeercert has it.

    Raises:
        UnauthenticatedError: it has none.
    """
    named = certificate.get("subjectAltName", ())
    uris, names = ([name for kind, name in named if kind == which] for which in ("URI", "DNS"))
    return _identity_of_names(uris, names)


def _identity_of_names(of_kind_uri: Iterable[str], of_kind_dns: Iterable[str]) -> str:
    uris = [uri for uri in of_kind_uri if _is_a(_URI, uri)]
    spiffe_ids = [uri for uri in uris if uri.startswith("spiffe://")]
    names = [name for name in of_kind_dns if _is_a(_DNS_NAME, name)]
    for identity in (*spiffe_ids, *uris, *map(str.lower, names)):
        return identity
    raise UnauthenticatedError(
        "the client certificate names no identity: issue it with a URI or a DNS name as subject "
        "alternative name; the common name does not count"
    )


def _is_a(pattern: "re.Pattern[str]", name: str) -> bool:
    return len(name) <= MAX_IDENTITY_LENGTH and pattern.fullmatch(name) is not None


def _text(name: bytes) -> str:
    """Return a name of a certificate; an empty text if it is no ASCII."""
    return name.decode("ascii") if name.isascii() else ""


def _bearer_token(context: grpc.ServicerContext) -> str | None:
    """Return the call's bearer token; None if there is none.

    Raises:
        UnauthenticatedError: the call has several.
    """
    found = [value for key, value in context.invocation_metadata() if key == "authorization"]
    if not found:
        return None
    value = found[0]
    if len(found) > 1 or not isinstance(value, str) or not value.startswith("Bearer "):
        raise UnauthenticatedError("authorization: must be one value, Bearer and a token")
    return value.removeprefix("Bearer ").strip()


def _reason(error: Exception) -> str:
    """Return our words for an error of the verifier, whose own may repeat parts of the token."""
    return next(
        (text for kind, text in _REASONS if isinstance(error, kind)), "is not a signed JSON token"
    )


_REASONS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.InvalidKeyError, "is signed by a key that the JWKS file does not have"),
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.InvalidIssuerError, "is of another issuer"),
    (jwt.MissingRequiredClaimError, "lacks exp, iss, aud or sub"),
    (jwt.InvalidAlgorithmError, "is not signed by the algorithm of its key"),
    (jwt.InvalidSignatureError, "has a wrong signature"),
)


def _invalid(reason: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"the token {reason}; get a new one for this service's audience")
