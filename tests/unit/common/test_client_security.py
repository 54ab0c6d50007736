"""Test how clients choose TLS or plaintext."""

from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError
from services.common.client_security import (
    NOT_CHOSEN,
    PLAINTEXT,
    ClientSecurity,
    SecurityOptions,
)

CA, CERTIFICATE, KEY, TOKEN = map(Path, ("ca.crt", "tls.crt", "tls.key", "token"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_this_machine_is_called_in_plaintext_by_default(address: str) -> None:
    assert NOT_CHOSEN.security_for(address) == PLAINTEXT


@pytest.mark.parametrize(
    "address", ["rlmm:1", "10.0.0.1:1", "[2001:db8::1]:1", "localhost.example:1", "0.0.0.0:1"]
)
def test_another_machine_is_called_in_plaintext_by_choice_only(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="is another machine, and there are no TLS files"):
        NOT_CHOSEN.security_for(address)
    assert SecurityOptions(plaintext=True).security_for(address) == PLAINTEXT
    files = ClientSecurity(CA, CERTIFICATE, KEY)
    assert SecurityOptions(files).security_for(address) == files


def test_variables_are_read_and_written_back() -> None:
    for options in (
        NOT_CHOSEN,
        SecurityOptions(plaintext=True),
        SecurityOptions(ClientSecurity(CA, CERTIFICATE, KEY)),
        SecurityOptions(ClientSecurity(CA, token=TOKEN)),
    ):
        assert SecurityOptions.from_environment(options.to_environment()) == options
    assert SecurityOptions.from_environment({"SEDIMENT_TLS_CA_FILE": ""}) == NOT_CHOSEN


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((CA, CERTIFICATE, None, None), "a TLS certificate without its key"),
        ((CA, None, KEY, None), "a TLS key without its certificate"),
        ((None, CERTIFICATE, KEY, None), "a client certificate is sent over TLS only"),
        ((None, None, None, TOKEN), r"a token \(<not shown.*>\) is sent over TLS only"),
    ],
)
def test_incomplete_files_are_refused(
    given: tuple[Path | None, Path | None, Path | None, Path | None], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ClientSecurity(*given)


def test_plaintext_contradicts_files() -> None:
    with pytest.raises(InvalidRequestError, match=r"contradicts the TLS files: CA ca\.crt"):
        SecurityOptions(ClientSecurity(CA), plaintext=True)
