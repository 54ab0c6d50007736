"""Test which tokens count, and that a refusal says why without showing the token."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.errors import UnauthenticatedError
from services.common.reloaded_file import FileError
from services.rpc.server.identity import MAX_TOKEN_LENGTH, TokenVerifier
from tests.harness.certificates import (
    AUDIENCE,
    ISSUER,
    REMOVED,
    TokenIssuer,
    account,
    symmetric_token,
    unsigned_token,
)

SWEEPER = account("jobs", "sweeper")
CLUSTER = TokenIssuer()
STRANGER = TokenIssuer()  # with the same key id
NOW = int(time.time())


def verifier(directory: Path, *issuers: TokenIssuer) -> TokenVerifier:
    first, *others = issuers or (CLUSTER,)
    return TokenVerifier(first.write_jwks(directory / "jwks.json", *others), ISSUER, AUDIENCE)


def test_a_valid_token_is_its_service_account(tmp_path: Path) -> None:
    assert verifier(tmp_path).caller_of(CLUSTER.token(SWEEPER)).identity == SWEEPER


def test_a_caller_by_token_ends_with_the_token(tmp_path: Path) -> None:
    ends_at_s = int(time.time()) + 3600
    found = verifier(tmp_path).caller_of(CLUSTER.token(SWEEPER, exp=ends_at_s))
    # The clocks of issuer and service may differ.
    assert ends_at_s <= found.expires_at_s <= ends_at_s + 15


def test_rsa_keys_as_kubernetes_makes_them_count(tmp_path: Path) -> None:
    rsa = TokenIssuer("rsa", "RS256")
    tokens = verifier(tmp_path, CLUSTER, rsa)
    assert tokens.caller_of(rsa.token(SWEEPER)).identity == SWEEPER
    assert tokens.caller_of(CLUSTER.token(SWEEPER)).identity == SWEEPER


BAD: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: CLUSTER.token(SWEEPER, exp=NOW - 60), "has expired"),
    "not yet valid": (lambda: CLUSTER.token(SWEEPER, nbf=NOW + 86_400), "not valid yet"),
    "for another audience": (lambda: CLUSTER.token(SWEEPER, aud=["vault"]), "another audience"),
    "of another issuer": (lambda: CLUSTER.token(SWEEPER, iss="https://evil"), "another issuer"),
    "unsigned": (lambda: unsigned_token(SWEEPER), "not signed by the algorithm"),
    "symmetric": (lambda: symmetric_token(CLUSTER, SWEEPER), "not signed by the algorithm"),
    "by an unknown key": (lambda: STRANGER.token(SWEEPER), "wrong signature"),
    "by an unknown key id": (
        lambda: CLUSTER.token(SWEEPER, header={"kid": "another"}),
        "a key that the JWKS file does not have",
    ),
    "without an end": (lambda: CLUSTER.token(SWEEPER, exp=None), "lacks exp"),
    "without an audience": (lambda: CLUSTER.token(SWEEPER, aud=None), "lacks exp"),
    "without a subject": (lambda: CLUSTER.token(SWEEPER, sub=None), "lacks exp"),
    "of a node": (lambda: CLUSTER.token("system:node:node-1"), "not of a service account"),
    "of a URI": (lambda: CLUSTER.token("spiffe://a/b"), "not of a service account"),
    "cut off": (lambda: CLUSTER.token(SWEEPER)[:-20], "(wrong signature|not a signed)"),
    "garbage": (lambda: "garbage", "not a signed JSON token"),
    "empty": (lambda: "", "not a signed JSON token"),
    "deeply nested": (lambda: "eyJhIjp7" * 200 + ".e30.e30", "not a signed JSON token"),
    "huge": (lambda: "a" * (MAX_TOKEN_LENGTH + 1), "more than 16,384 characters"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_refused_with_its_reason(tmp_path: Path, kind: str) -> None:
    made, reason = BAD[kind]
    token = made()
    with pytest.raises(UnauthenticatedError, match=f"^the token .*{reason}") as caught:
        verifier(tmp_path).caller_of(token)
    assert len(token) < 8 or token not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_with_a_changed_subject_is_refused(tmp_path: Path) -> None:
    head, _, signature = CLUSTER.token(SWEEPER).split(".")
    _, other, _ = STRANGER.token(account("kafka", "admin")).split(".")
    with pytest.raises(UnauthenticatedError, match="wrong signature"):
        verifier(tmp_path).caller_of(f"{head}.{other}.{signature}")


def test_the_only_key_needs_no_id(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    key = {name: value for name, value in CLUSTER.jwk().items() if name != "kid"}
    path.write_text(json.dumps({"keys": [key]}))
    token = CLUSTER.token(SWEEPER, header={"kid": REMOVED})
    assert TokenVerifier(path, ISSUER, AUDIENCE).caller_of(token).identity == SWEEPER


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is not a JWKS"),
        ("[]", "is not a JWKS"),
        ('{"keys": {}}', "has no key"),
        ('{"keys": [1]}', "is not a JWKS"),
        ('{"keys": []}', "has no key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}', "has no key"),
        ('{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "has no key"),
        (json.dumps({"keys": [{**CLUSTER.jwk(), "alg": "none"}]}), "has no key"),
        (json.dumps({"keys": [{**CLUSTER.jwk(), "alg": 1}]}), "has no key"),
        (json.dumps({"keys": [CLUSTER.jwk(), STRANGER.jwk()]}), "has two keys with the id 'key-1'"),
        ("[" * 100_000, "is not a JWKS"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(FileError, match=rf"^token keys file {path}: {reason}"):
        TokenVerifier(path, ISSUER, AUDIENCE)
