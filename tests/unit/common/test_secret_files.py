"""Test that no message has a secret that is malformed, or typed where a file's name belongs."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from services.common.bounded_file import shown
from services.common.client_security import ClientSecurity
from services.local.certificates import CertificateAuthority
from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.channel import open_channel
from services.rpc.tls import TlsFiles, read_tls
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings

CANARY = "canary/of+a=secret"

URL = "postgresql://rlmm@127.0.0.1:1/sediment"
S3 = {"RSM_BACKEND": "s3", "RSM_ENDPOINT": "127.0.0.1:1", "RSM_REGION": "x", "RSM_BUCKET": "bucket"}


def use_s3_key(path: Path) -> None:
    files = {"RSM_ACCESS_KEY_FILE": str(path), "RSM_SECRET_KEY_FILE": str(path)}
    build_backend(RsmSettings.from_environment({**S3, "RSM_CREDENTIALS": "files", **files}))


def use_kafka_password(path: Path) -> None:
    sasl = SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.PLAIN
    KafkaSecurity(*sasl, username="rlm", password_file=path).connection_options()


READERS: dict[str, Callable[[Path], object]] = {
    "database password": lambda path: create_database_engine(URL, password_file=path),
    "password of the broker's listener": use_kafka_password,
    "key of the store": use_s3_key,
}


def refusal(call: Callable[[], object]) -> str:
    """Return all that the error of a call could print, also in a traceback."""
    with pytest.raises((Exception, SystemExit)) as refused:
        call()
    return "".join(traceback.format_exception(refused.value, chain=True))


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return CertificateAuthority(tmp_path).certificate


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("text", [f"{CANARY}\nmore", f"{CANARY}\r\nmore\r\n", f"a\0{CANARY}"])
def test_a_line_break_inside_a_secret_is_refused_when_it_is_read(
    kind: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text.encode())
    message = refusal(lambda: READERS[kind](path))
    assert "line break or control character" in message
    assert str(path) in message
    assert CANARY not in message


@pytest.mark.parametrize("text", [CANARY, f"/{CANARY}", CANARY * 100, "-----BEGIN KEY-----\nMII"])
@pytest.mark.parametrize("kind", [*READERS, "token", "TLS key"])
def test_a_secret_in_place_of_a_files_name_is_not_shown(kind: str, text: str, ca: Path) -> None:
    readers: dict[str, Callable[[Path], object]] = {
        **READERS,
        "token": lambda path: open_channel("127.0.0.1:1", ClientSecurity(ca, token=path)),
        "TLS key": lambda path: read_tls(TlsFiles(ca, path, None)),
    }
    message = refusal(lambda: readers[kind](Path(text)))
    assert "may be the secret itself" in message
    assert text not in message


def test_the_name_of_a_missing_file_is_shown(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert shown(missing) == str(missing)
    assert str(missing) in refusal(lambda: use_s3_key(missing))


def test_files_are_described_without_secrets() -> None:
    texts = (
        refusal(lambda: ClientSecurity(token=Path(CANARY))),
        str(ClientSecurity(Path("ca.crt"), token=Path(CANARY))),
    )
    for text in texts:
        assert "may be the secret itself" in text
        assert CANARY not in text


@pytest.mark.parametrize("name", ["RSM_ACCESS_KEY", "RSM_SECRET_KEY"])
def test_a_line_break_inside_a_key_of_the_environment_is_refused(name: str) -> None:
    keys = {"RSM_ACCESS_KEY": "access", "RSM_SECRET_KEY": "secret", name: f"{CANARY}\nmore"}
    message = refusal(lambda: RsmSettings.from_environment({**S3, **keys}))
    assert name in message
    assert CANARY not in message
