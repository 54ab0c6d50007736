"""Read fuzzed identities and rules: policy, keys of tokens, tokens, certificates."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from services.api.errors import UnauthenticatedError
from services.api.roles import Role
from services.common.reloaded_file import FileError
from services.local.certificates import CertificateAuthority
from services.rpc.server.identity import TokenVerifier, caller_of
from services.rpc.server.policy import ALL_TOPICS, parse_policy
from services.rpc.tls import TlsFileError, TlsFiles, read_tls
from tests.harness.certificates import AUDIENCE, ISSUER, TokenIssuer, account
from tests.harness.parsers.target import Target, written

_POLICY = b"""
[[grant]]
identities = ["spiffe://example.org/ns/kafka/sa/broker-*", "system:serviceaccount:a:b"]
roles = ["shipper", "reader"]
topics = ["orders-*"]

[[grant]]
identities = ["*.example.org"]
roles = ["admin"]
topics = ["*"]
"""


def _read_policy(data: bytes) -> None:
    """Read a policy; ask it for an identity that makes patterns backtrack."""
    policy = parse_policy(data)
    assert policy.grants
    for identity in ("", "nobody", "a" * 2_000, "spiffe://example.org/ns/kafka/sa/broker-1/x"):
        for topic in (None, ALL_TOPICS, "orders-1", "a" * 249):
            policy.allows(identity, frozenset(Role), topic)


@cache
def _issuer() -> TokenIssuer:
    return TokenIssuer()


@cache
def _verifier() -> TokenVerifier:
    with TemporaryDirectory() as directory:
        return TokenVerifier(_issuer().write_jwks(Path(directory) / "jwks"), ISSUER, AUDIENCE)


def _keys() -> Sequence[bytes]:
    with TemporaryDirectory() as directory:
        others = TokenIssuer("key-2")
        return [_issuer().write_jwks(Path(directory) / "jwks", others).read_bytes()]


def _read_keys(data: bytes) -> None:
    verifier = TokenVerifier(written(data, "jwks"), ISSUER, AUDIENCE)
    for token in (_token(), "", "a.b.c"):
        try:
            verifier.caller_of(token)
        except UnauthenticatedError:
            continue


@cache
def _token() -> str:
    return _issuer().token(account("a", "b"))


def _read_token(data: bytes) -> None:
    found = _verifier().caller_of(data.decode("utf-8", "replace")).identity
    # Base64 has spare bits: other texts may be the same token, but none is of another identity.
    assert found == account("a", "b")


class _Call:
    """The context of a call with a client certificate of these names."""

    def __init__(self, uris: list[bytes], names: list[bytes]) -> None:
        self._facts = {"x509_pem_cert": [b"-"], "peer_uri": uris, "peer_dns": names}

    def auth_context(self) -> Any:
        return self._facts


def _read_names(data: bytes) -> None:
    """Take the first line as URI, the second as DNS name, and so on."""
    lines = data.split(b"\n")
    call: Any = _Call(lines[::2], lines[1::2])
    found = caller_of(call, None).identity
    assert found.isascii()
    assert found.isprintable()
    assert " " not in found
    assert not found.startswith("system:serviceaccount:")


@cache
def _pem() -> tuple[bytes, bytes, bytes]:
    with TemporaryDirectory() as directory:
        authority = CertificateAuthority(Path(directory))
        issued = authority.issue("rsm")
        key, certificate = issued.key.read_bytes(), issued.certificate.read_bytes()
        return certificate, key, authority.certificate.read_bytes()


def _read_certificates(data: bytes) -> None:
    """Put the bytes in the place of the certificate, the key or the authority."""
    place, content = (data[0] % 3, data[1:]) if data else (0, b"")
    files = [content if place == number else pem for number, pem in enumerate(_pem())]
    names = ("tls.crt", "tls.key", "ca.crt")
    paths = [written(each, name) for each, name in zip(files, names, strict=True)]
    read_tls(TlsFiles(paths[0], paths[1], paths[2]))


TARGETS = (
    Target("policy", _read_policy, (ValueError,), lambda: [_POLICY]),
    Target("token_keys", _read_keys, (FileError,), _keys),
    Target("token", _read_token, (UnauthenticatedError,), lambda: [_token().encode()]),
    Target(
        "certificate_names",
        _read_names,
        (UnauthenticatedError,),
        lambda: [b"spiffe://example.org/a", b"\nrsm.example.org\nhttps://example.org/b"],
    ),
    Target(
        "tls_files",
        _read_certificates,
        (TlsFileError,),
        lambda: [bytes([number]) + pem for number, pem in enumerate(_pem())],
    ),
)
