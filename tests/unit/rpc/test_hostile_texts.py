"""Property tests: whatever a policy file, a JWKS or a token holds, it is accepted or refused."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import UnauthenticatedError
from services.api.roles import Role
from services.common.reloaded_file import FileError
from services.rpc.server.identity import TokenVerifier
from services.rpc.server.policy import Policy, parse_policy
from tests.harness.certificates import AUDIENCE, ISSUER, TokenIssuer, account

pytestmark = pytest.mark.property
CLUSTER = TokenIssuer()
TOKEN = CLUSTER.token(account("jobs", "sweeper"))
GRANT = b'[[grant]]\nidentities = ["a-*"]\nroles = ["reader"]\ntopics = ["orders-*"]\n'
NAMES = st.text("ab-*/:.", min_size=1, max_size=12)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> TokenVerifier:
    jwks = CLUSTER.write_jwks(tmp_path_factory.mktemp("keys") / "jwks.json")
    return TokenVerifier(jwks, ISSUER, AUDIENCE)


def changed(content: bytes) -> "st.SearchStrategy[bytes]":
    """Draw a content with a few bytes replaced."""
    return st.tuples(st.integers(0, len(content)), st.integers(0, 8), st.binary(max_size=8)).map(
        lambda cut: content[: cut[0]] + cut[2] + content[cut[0] + cut[1] :]
    )


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), changed(GRANT)))
def test_a_policy_is_a_policy_or_a_value_error(content: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_policy(content), Policy)


@given(st.one_of(st.text(max_size=300), changed(TOKEN.encode()).map(lambda t: t.decode("latin-1"))))
def test_a_token_that_was_changed_is_not_valid(verifier: TokenVerifier, token: str) -> None:
    if token != TOKEN:
        with suppress(UnauthenticatedError):
            # Only a signature has bits that do not count, in its last character.
            assert verifier.caller_of(token).identity == account("jobs", "sweeper")
            assert token.rpartition(".")[0] == TOKEN.rpartition(".")[0]


@given(st.one_of(st.binary(max_size=100), changed(b'{"keys": [{"kty": "EC", "x": "AA"}]}')))
def test_keys_are_keys_or_a_file_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_bytes(content)
    with suppress(FileError):
        TokenVerifier(path, ISSUER, AUDIENCE)


@given(NAMES, NAMES)
def test_pattern_matches_like_a_simple_matcher(pattern: str, name: str) -> None:
    if not pattern.strip("*"):
        return
    text = f'[[grant]]\nidentities = ["{pattern}"]\nroles = ["reader"]\ntopics = ["*"]\n'
    allowed = parse_policy(text.encode()).allows(name, frozenset([Role.READER]))
    assert allowed is matches(pattern, name)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches, by trying every length of every star."""
    if not pattern:
        return not name
    if pattern[0] != "*":
        return name[:1] == pattern[0] and matches(pattern[1:], name[1:])
    for length in range(len(name) + 1):
        if length and name[length - 1] in "/:":
            return False
        if matches(pattern[1:], name[length:]):
            return True
    return False
