"""Test which credentials reach a cloud's store, by a server that is identity service and store."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from services.api.errors import RetriableRemoteStorageError, StoreAccessDeniedError
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings

TOKEN = "canary-token"
FEDERATED = "canary-federated"
BYTES = b"bytes"
# The variables by which libraries of the clouds find an identity.
_OF_A_CLOUD = ("AZURE_", "GOOGLE_", "GCE_", "IDENTITY_", "MSI_")
# What Google's library for Python calls it, too.
METADATA_HOST = "GCE_METADATA_HOST"


@dataclass
class Cloud:
    """Gives a token to whoever asks for one; as a store it has every object."""

    address: str = ""
    token_status: int = 200
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    authorized_by: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = request.rfile.read(int(request.headers.get("content-length", 0))).decode()
        target = urlsplit(request.path)
        if "token" not in target.path:
            self.authorized_by.append(request.headers.get("authorization", ""))
            return 200, BYTES
        arguments = {n: v[0] for n, v in parse_qs(f"{target.query}&{body}").items()}
        self.asked.append((target.path, arguments))
        # Azure's managed identities say it by the second, the others in seconds from now.
        given = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3_600}
        return self.token_status, json.dumps({**given, "expires_on": "4102444800"}).encode()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name in [name for name in os.environ if name.startswith(_OF_A_CLOUD)]:
        monkeypatch.delenv(name)
    made = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = made.answer(self)
            self.send_response(status)
            for name, value in (
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT"),
                ("ETag", '"etag"'),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.address = f"127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def opened(cloud: Cloud, directory: Path, kind: str, **options: str) -> StorageBackend:
    """Open a location of this kind whose entry has these options, and no others."""
    place = {"backend": kind, "endpoint": cloud.address, "bucket": "segments", "prefix": ""}
    lines = ["[[location]]", "id = 1", "secure = false"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in place.items()]
    lines += ["[location.options]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    registry = directory / "locations.toml"
    registry.write_text("\n".join(lines) + "\n")
    fixed = {"secure": False, "retries": 0, "locations_file": registry}
    return build_backend(RsmSettings.model_validate({**place, **fixed}))


def service_account(directory: Path) -> tuple[Path, rsa.RSAPublicKey]:
    """Write the JSON key of a service account; return its file, and its public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoded = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = directory / "account.json"
    content = {
        "type": "service_account",
        "client_email": "rsm@project.iam.gserviceaccount.com",
        "private_key": encoded.decode(),
        "private_key_id": "key-id",
    }
    file.write_text(json.dumps(content))
    return file, key.public_key()


@pytest.mark.parametrize("of", ["the location", "the environment"])
def test_a_service_account_signs_its_own_token(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    file, public = service_account(tmp_path)
    options = {"service_account_file": str(file)} if of == "the location" else {}
    if not options:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))

    assert opened(cloud, tmp_path, "gcs", **options).get("key") == BYTES

    (header,) = cloud.authorized_by
    content, _, signature = header.removeprefix("Bearer ").rpartition(".")
    public.verify(decoded(signature), content.encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(decoded(content.partition(".")[2]))
    assert claims["iss"] == "rsm@project.iam.gserviceaccount.com"
    assert cloud.asked == []


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_workload_identity_of_google_is_the_metadata_server(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METADATA_HOST, cloud.address)
    backend = opened(cloud, tmp_path, "gcs")
    for _ in range(2):
        assert backend.get("key") == BYTES
    assert cloud.authorized_by == [f"Bearer {TOKEN}"] * 2
    ((path, _),) = cloud.asked
    assert path == "/computeMetadata/v1/instance/service-accounts/default/token"


@pytest.mark.parametrize("of", ["the location", "the environment"])
def test_workload_identity_of_azure_is_a_federated_token(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    token = tmp_path / "federated"
    token.write_text(FEDERATED)
    named = {"federated_token_file": str(token), "client_id": "client", "tenant_id": "tenant"}
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", cloud.url)
    if of == "the environment":
        for name, value in named.items():
            monkeypatch.setenv(f"AZURE_{name.upper()}", value)
        named = {}

    assert opened(cloud, tmp_path, "azure", account="ours", **named).get("key") == BYTES

    assert cloud.authorized_by == [f"Bearer {TOKEN}"]
    ((path, arguments),) = cloud.asked
    assert path == "/tenant/oauth2/v2.0/token"
    assert arguments["client_assertion"] == FEDERATED
    assert arguments["client_id"] == "client"


@pytest.mark.parametrize("client_id", ["", "client"])
def test_a_managed_identity_is_that_of_the_machine_or_named(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client_id: str
) -> None:
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{cloud.url}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "secret")
    options = {"client_id": client_id} if client_id else {}

    assert opened(cloud, tmp_path, "azure", account="ours", **options).get("key") == BYTES

    assert cloud.authorized_by == [f"Bearer {TOKEN}"]
    ((_, arguments),) = cloud.asked
    assert arguments["resource"] == "https://storage.azure.com"
    assert arguments.get("client_id", "") == client_id


@pytest.mark.parametrize(
    ("status", "expected"), [(403, StoreAccessDeniedError), (503, RetriableRemoteStorageError)]
)
def test_an_identity_service_that_gives_no_token_is_named(
    cloud: Cloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    expected: type[Exception],
) -> None:
    cloud.token_status = status
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{cloud.url}/token")
    backend = opened(cloud, tmp_path, "azure", account="ours")
    with pytest.raises(expected, match=f"{status}") as caught:
        backend.get("key")
    assert TOKEN not in str(caught.value)


def test_credentials_of_a_kind_that_is_not_supported_are_refused_at_the_start(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "external.json"
    file.write_text(json.dumps({"type": "external_account", "audience": TOKEN}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(SystemExit, match="location 1") as caught:
        opened(cloud, tmp_path, "gcs")
    assert TOKEN not in str(caught.value)
