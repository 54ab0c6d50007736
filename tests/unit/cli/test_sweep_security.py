"""Test how Spark jobs take the options of TLS, from a command line and from the environment."""

import argparse
from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError
from services.common.client_security import PLAINTEXT, ClientSecurity
from spark_jobs.options import SweepOptions, add_options, options_of

CA, CERTIFICATE, KEY = map(Path, ("/tls/ca.crt", "/tls/tls.crt", "/tls/tls.key"))
TLS = ("--tls-ca", str(CA), "--tls-certificate", str(CERTIFICATE), "--tls-key", str(KEY))


def options(*arguments: str) -> SweepOptions:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return options_of(parser.parse_args(["--rsm", "rsm:1", "--rlmm", "rlmm:1", *arguments]))


def test_files_are_options() -> None:
    security = options(*TLS).services.security
    assert security.security_for("rlmm:1") == ClientSecurity(CA, CERTIFICATE, KEY)


def test_files_are_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEDIMENT_TLS_CA_FILE", str(CA))
    monkeypatch.setenv("SEDIMENT_TOKEN_FILE", "/token")
    security = options().services.security
    assert security.security_for("rlmm:1") == ClientSecurity(CA, token=Path("/token"))


def test_another_machine_is_called_in_plaintext_by_choice_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidRequestError, match="rlmm:1 is another machine"):
        options().services.security.security_for("rlmm:1")
    assert options("--plaintext").services.security.security_for("rlmm:1") == PLAINTEXT
    monkeypatch.setenv("SEDIMENT_PLAINTEXT", "true")
    assert options().services.security.security_for("rlmm:1") == PLAINTEXT
