"""Test the metrics port of a service."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.common.settings import ServiceSettings
from services.local.certificates import Certificate, CertificateAuthority
from services.local.data_directory import write_secret
from services.rpc.server.metrics_server import MAX_CONNECTIONS, start_metrics
from services.rpc.server.transport import PLAINTEXT, open_transport
from tests.harness.eventually import eventually
from tests.harness.secured import Secrets, make_secrets

pytestmark = pytest.mark.deep


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as cleanup:
        yield cleanup


@pytest.mark.deep
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_metrics_are_served_beside_connections_that_do_nothing(
    cleanup: ExitStack, host: str
) -> None:
    address = start_metrics(f"{host}:0", cleanup)
    port = int(address.rpartition(":")[2])
    for _ in range(20):
        idle = cleanup.enter_context(socket.create_connection((host.strip("[]"), port), 60))
        idle.sendall(b"GET /metr")
    with urlopen(f"http://{address}/metrics", timeout=60) as answer:
        assert "sediment_plaintext" in str(answer.read(), "utf-8")


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_metrics_show_whether_grpc_is_plaintext(
    cleanup: ExitStack, secrets: Secrets, has_tls: bool
) -> None:
    # The gauge belongs to the process, and an earlier test may have left the right value.
    PLAINTEXT.set(-1)
    settings = secrets.settings() if has_tls else ServiceSettings(plaintext=True)
    address = start_metrics("127.0.0.1:0", cleanup, open_transport(settings))
    context = trusting(secrets) if has_tls else None
    url = f"http{'s' if has_tls else ''}://{address}/metrics"
    with urlopen(url, timeout=60, context=context) as answer:
        lines = str(answer.read(), "utf-8").splitlines()
    assert f"sediment_plaintext {0.0 if has_tls else 1.0}" in lines


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_on_this_machine_another_sites_name_is_refused(cleanup: ExitStack, host: str) -> None:
    address = start_metrics(f"{host}:0", cleanup)

    def code(name: str) -> int:
        connection = HTTPConnection(address, timeout=60)
        with closing(connection):
            connection.request("GET", "/metrics", headers={"Host": name})
            return connection.getresponse().status

    port = address.rpartition(":")[2]
    names = ["localhost", f"localhost:{port}", address, "site.example", f"site.example:{port}", ""]
    assert [code(name) for name in names] == [200, 200, 200, 421, 421, 421]


@pytest.mark.parametrize("has_tls", [False, True])
def test_of_many_idle_connections_the_oldest_are_closed(
    cleanup: ExitStack, secrets: Secrets, has_tls: bool
) -> None:
    transport = open_transport(secrets.settings()) if has_tls else None
    address = start_metrics("127.0.0.1:0", cleanup, transport)
    port = int(address.rpartition(":")[2])
    threads_before = threading.active_count()
    many = 3 * MAX_CONNECTIONS
    idle = [
        cleanup.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        for _ in range(many)
    ]
    context = trusting(secrets) if has_tls else None
    with urlopen(f"http{'s' if has_tls else ''}://{address}/metrics", timeout=60, context=context):
        pass
    # The scrape took a place too.
    for closed in idle[: many - MAX_CONNECTIONS + 1]:
        assert closed.recv(1) == b""
    eventually(lambda: threading.active_count() - threads_before <= MAX_CONNECTIONS)
    idle[-1].settimeout(0)
    with pytest.raises(BlockingIOError):
        idle[-1].recv(1)


def test_the_server_ends_without_waiting_for_idle_connections() -> None:
    with ExitStack() as idle, ExitStack() as cleanup:
        port = int(start_metrics("127.0.0.1:0", cleanup).rpartition(":")[2])
        idle.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        cleanup.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 60)


def test_a_port_that_is_taken_is_named(cleanup: ExitStack) -> None:
    address = start_metrics("127.0.0.1:0", cleanup)
    with pytest.raises(SystemExit, match=f"cannot listen on {address}: Address already in use"):
        start_metrics(address, cleanup)


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return make_secrets(tmp_path / "tls")


def trusting(secrets: Secrets, shown: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=secrets.authority.certificate)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def read_metrics(address: str, context: ssl.SSLContext) -> str:
    with urlopen(f"https://{address}/metrics", timeout=60, context=context) as answer:
        return str(answer.read(), "utf-8")


def test_with_tls_metrics_have_it_too(cleanup: ExitStack, secrets: Secrets) -> None:
    transport = open_transport(secrets.settings())
    address = start_metrics("127.0.0.1:0", cleanup, transport)
    text = read_metrics(address, trusting(secrets))
    assert "sediment_plaintext 0.0" in text
    assert "sediment_tls_certificate_expiry_timestamp_seconds 1" in text
    with pytest.raises((OSError, HTTPException)):
        urlopen(f"http://{address}/metrics", timeout=60)


def test_clients_without_a_handshake_do_not_block_others(
    cleanup: ExitStack, secrets: Secrets
) -> None:
    address = start_metrics("127.0.0.1:0", cleanup, open_transport(secrets.settings()))
    port = int(address.rpartition(":")[2])
    for _ in range(20):
        cleanup.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    assert "sediment_plaintext" in read_metrics(address, trusting(secrets))


def test_metrics_are_plaintext_beside_tls_by_choice_only(
    cleanup: ExitStack, secrets: Secrets
) -> None:
    transport = open_transport(secrets.settings(metrics_plaintext=True))
    address = start_metrics("127.0.0.1:0", cleanup, transport)
    with urlopen(f"http://{address}/metrics", timeout=60) as answer:
        assert "sediment_plaintext 0.0" in str(answer.read(), "utf-8")


def test_metrics_may_require_a_certificate(
    cleanup: ExitStack, secrets: Secrets, tmp_path: Path
) -> None:
    scrapers = CertificateAuthority(tmp_path / "scrapers")
    transport = open_transport(secrets.settings(metrics_client_ca_file=str(scrapers.certificate)))
    address = start_metrics("127.0.0.1:0", cleanup, transport)
    assert "sediment_plaintext" in read_metrics(address, trusting(secrets, scrapers.issue("own")))
    for refused in (None, secrets.operator):
        with pytest.raises(OSError, match=r"ssl|SSL|reset"):
            read_metrics(address, trusting(secrets, refused))


def test_metrics_follow_new_files(cleanup: ExitStack, secrets: Secrets, tmp_path: Path) -> None:
    scrapers = CertificateAuthority(tmp_path / "scrapers")
    successor = CertificateAuthority(tmp_path / "successor")
    ca = scrapers.certificate
    transport = open_transport(secrets.settings(metrics_client_ca_file=str(ca)))
    address = start_metrics("127.0.0.1:0", cleanup, transport)
    first, second = scrapers.issue("first"), successor.issue("second")
    read_metrics(address, trusting(secrets, first))

    secrets.authority.issue("server")
    write_secret(ca, successor.certificate.read_text())

    def is_served(shown: Certificate) -> bool:
        try:
            read_metrics(address, trusting(secrets, shown))
        except OSError:
            return False
        return True

    eventually(lambda: is_served(second), poll_ms=200)
    assert not is_served(first)
