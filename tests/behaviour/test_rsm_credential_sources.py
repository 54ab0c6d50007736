"""Test where RSM gets its S3 keys, with a real store; only the STS is a stand-in."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

from services.api.errors import RetriableRemoteStorageError, StoreAccessDeniedError
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.rsm_over_s3 import settings_for
from tests.harness.stores import keys_in

TOKEN = "canary-token"


@dataclass
class Sts:
    """An STS, and the endpoint of a container's role, that give out a store's keys."""

    s3: S3Endpoint
    status: int = 200
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    def serve(self, request: BaseHTTPRequestHandler, arguments: str) -> None:
        """Answer a POST to an STS, or a GET of a container's role."""
        self.asked.append({k: v[0] for k, v in parse_qs(arguments).items()})
        expires = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        action = self.asked[-1].get("Action", "")
        body = self._xml(action, expires) if action else self._json(expires)
        request.send_response(self.status)
        request.end_headers()
        request.wfile.write(body.encode())

    def _xml(self, action: str, expires: str) -> str:
        return (
            f"<{action}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
            f"<{action}Result><Credentials><AccessKeyId>{self.s3.access_key}</AccessKeyId>"
            f"<SecretAccessKey>{self.s3.secret_key}</SecretAccessKey><SessionToken/>"
            f"<Expiration>{expires}</Expiration></Credentials></{action}Result>"
            f"</{action}Response>"
        )

    def _json(self, expires: str) -> str:
        return json.dumps(
            {
                "AccessKeyId": self.s3.access_key,
                "SecretAccessKey": self.s3.secret_key,
                "Token": "",
                "Expiration": expires,
            }
        )


@pytest.fixture
def sts(s3: S3Endpoint) -> Iterator[Sts]:
    made = Sts(s3)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            made.serve(self, urlsplit(self.path).query or body)

        def do_GET(self) -> None:
            made.serve(self, "")

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_aws_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the machine's own AWS settings out."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_ACCESS_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SECRET_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def settings_of(s3: S3Endpoint, source: str, **changes: Any) -> RsmSettings:
    without_keys = {"access_key": SecretStr(""), "secret_key": SecretStr("")}
    return settings_for(s3, {**without_keys, "credentials": source, **changes})


def written(path: Path, text: str) -> Path:
    path.write_text(f"{text}\n")
    return path


def put_and_get(settings: RsmSettings) -> None:
    """Use our own requests and those of the SDK."""
    backend = build_backend(settings)
    backend.put(f"{settings.prefix}key", b"bytes")
    assert backend.get(f"{settings.prefix}key") == b"bytes"
    assert list(keys_in(backend, settings.prefix)) == [f"{settings.prefix}key"]


def test_keys_come_from_files(s3: S3Endpoint, tmp_path: Path) -> None:
    access = written(tmp_path / "access", s3.access_key)
    secret = written(tmp_path / "secret", s3.secret_key)
    put_and_get(settings_of(s3, "files", access_key_file=access, secret_key_file=secret))


def test_wrong_keys_in_files_are_refused_until_they_are_replaced(
    s3: S3Endpoint, tmp_path: Path
) -> None:
    access = written(tmp_path / "access", s3.access_key)
    secret = written(tmp_path / "secret", "canary-wrong")
    settings = settings_of(s3, "files", access_key_file=access, secret_key_file=secret)
    backend = build_backend(settings)
    calls: list[Callable[[], object]] = [
        lambda: backend.check_and_get("key"),
        lambda: backend.put("key", b""),
        lambda: backend.describe("key"),
    ]
    for call in calls:
        with pytest.raises(StoreAccessDeniedError, match="RSM_CREDENTIALS") as caught:
            call()
        assert "canary" not in str(caught.value)
    written(secret, s3.secret_key)
    assert list(keys_in(backend, settings.prefix)) == []


@pytest.mark.parametrize("role", ["", "arn:aws:iam::1:role/tier"])
def test_keys_come_from_an_sts_for_a_token(sts: Sts, tmp_path: Path, role: str) -> None:
    token = written(tmp_path / "token", TOKEN)
    put_and_get(
        settings_of(
            sts.s3,
            "web-identity",
            sts_endpoint=sts.url,
            web_identity_token_file=token,
            role_arn=role,
        )
    )
    (asked,) = sts.asked
    assert asked["WebIdentityToken"] == TOKEN
    assert asked.get("RoleArn", "") == role


def test_keys_come_from_an_sts_for_other_keys(sts: Sts, tmp_path: Path) -> None:
    access, secret = written(tmp_path / "access", "a"), written(tmp_path / "secret", "s")
    put_and_get(
        settings_of(
            sts.s3,
            "assume-role",
            sts_endpoint=sts.url,
            access_key_file=access,
            secret_key_file=secret,
            role_arn="arn:aws:iam::1:role/tier",
        )
    )
    assert [asked["Action"] for asked in sts.asked] == ["AssumeRole"]


def test_an_sts_that_refuses_is_an_error_without_the_token(
    sts: Sts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sts.status = 403
    token = written(tmp_path / "token", TOKEN)
    settings = settings_of(
        sts.s3, "web-identity", sts_endpoint=sts.url, web_identity_token_file=token
    )
    backend = build_backend(settings)
    for call in (lambda: backend.get("key"), lambda: backend.put("key", b"")):
        with pytest.raises(RetriableRemoteStorageError, match=r"status 403.*RSM_CRED") as caught:
            call()
        assert TOKEN not in str(caught.value) + caplog.text


def test_aws_keys_come_from_the_environment(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    put_and_get(settings_of(s3, "aws"))


def test_aws_keys_come_from_the_credentials_file(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"aws_access_key_id={s3.access_key}\naws_secret_access_key={s3.secret_key}"
    file = written(tmp_path / "credentials", f"[default]\n{text}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    put_and_get(settings_of(s3, "aws"))


def test_aws_keys_come_from_the_role_of_the_container(
    sts: Sts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{sts.url}/role")
    put_and_get(settings_of(sts.s3, "aws"))
    assert len(sts.asked) == 1
