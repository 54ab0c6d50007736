"""Test which settings of TLS go together."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.rlmm.settings import RlmmSettings

FILES = {
    "tls_certificate_file": "/tls/tls.crt",
    "tls_key_file": "/tls/tls.key",
    "tls_client_ca_file": "/tls/ca.crt",
    "policy_file": "/policy.toml",
}
TOKENS = {
    "token_listen_address": "0.0.0.0:1",
    "token_jwks_file": "/jwks.json",
    "token_issuer": "https://issuer",
    "token_audience": "sediment",
}


def settings(**given: str) -> RlmmSettings:
    return RlmmSettings.model_validate({"database_url": "postgresql://db", **given})


def test_files_and_a_policy_turn_tls_on() -> None:
    made = settings(**FILES)
    assert made.has_tls
    assert made.policy_file == Path("/policy.toml")
    made.require_transport()


def test_plaintext_is_served_by_choice_only() -> None:
    settings(plaintext="true").require_transport()
    with pytest.raises(
        SystemExit,
        match="no TLS: set RLMM_TLS_CERTIFICATE_FILE, RLMM_TLS_KEY_FILE, RLMM_TLS_CLIENT_CA_FILE "
        "and RLMM_POLICY_FILE, or RLMM_PLAINTEXT=true",
    ):
        settings().require_transport()


def test_empty_variables_are_like_missing_ones() -> None:
    assert not settings(**dict.fromkeys({**FILES, **TOKENS}, "")).has_tls


@pytest.mark.parametrize("missing", ["tls_certificate_file", "tls_key_file", "tls_client_ca_file"])
def test_the_three_files_go_together(missing: str) -> None:
    given = {name: value for name, value in FILES.items() if name != missing}
    with pytest.raises(ValidationError, match=f"is set without RLMM_{missing.upper()}"):
        settings(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**FILES, "plaintext": "true"}, "RLMM_PLAINTEXT=true contradicts RLMM_TLS_CERT"),
        ({**FILES, "policy_file": ""}, "RLMM_POLICY_FILE is required with TLS"),
        ({"plaintext": "true", "policy_file": "/p"}, "RLMM_POLICY_FILE needs TLS"),
        ({"plaintext": "true", **TOKENS}, "RLMM_TOKEN_LISTEN_ADDRESS needs TLS"),
        ({"metrics_plaintext": "true"}, "RLMM_METRICS_PLAINTEXT needs TLS"),
        ({"metrics_client_ca_file": "/ca"}, "RLMM_METRICS_CLIENT_CA_FILE needs TLS"),
        ({**FILES, **TOKENS, "token_issuer": ""}, "ADDRESS needs RLMM_TOKEN_ISSUER"),
        ({**FILES, **TOKENS, "token_audience": ""}, "ADDRESS needs RLMM_TOKEN_AUDIENCE"),
        ({**FILES, **TOKENS, "token_jwks_file": ""}, "ADDRESS needs RLMM_TOKEN_JWKS_FILE"),
        ({**FILES, "token_issuer": "x"}, "RLMM_TOKEN_ISSUER is set without RLMM_TOKEN_LISTEN"),
        (
            {**FILES, "metrics_plaintext": "true", "metrics_client_ca_file": "/ca"},
            "RLMM_METRICS_PLAINTEXT=true contradicts RLMM_METRICS_CLIENT_CA_FILE",
        ),
    ],
)
def test_contradictions_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**given)
