"""Count the lines that a service logs while somebody opens bad connections to its TLS ports."""

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from services.api.roles import Role
from services.api.segment_objects import ObjectQuery
from services.local.certificates import Certificate
from services.local.stack import ServiceProcess
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import SegmentObjectsClient
from tests.harness.certificates import BadCertificates, bad_certificates
from tests.harness.secured import Deployment, spiffe

CONNECTIONS = 30
HALF_A_HELLO = bytes.fromhex("16030100050100000100")
TIMEOUT_S = 30
READINESS = re.compile(r'"message": "(not )?ready')


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "tls")
    made.grant(spiffe("sweeper"), Role.SWEEPER)
    return made


@pytest.fixture
def bad(deployment: Deployment) -> BadCertificates:
    return bad_certificates(deployment.authority, deployment.directory)


@contextmanager
def running_rsm(
    deployment: Deployment, directory: Path, more: Mapping[str, str]
) -> Iterator[ServiceProcess]:
    """Run an RSM as `sediment up` does."""
    objects = directory / "objects"
    objects.mkdir()
    store = {"RSM_BACKEND": "filesystem", "RSM_DIRECTORY": str(objects)}
    settings = {**deployment.environment("RSM"), **store, **more}
    service = ServiceProcess("rsm", settings, directory / "rsm")
    service.start()
    try:
        yield service
    finally:
        service.kill()


def send(address: str, data: bytes) -> None:
    """Send bytes that are no handshake, and wait until the server hangs up."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def shake_hands(address: str, shown: Certificate | None) -> None:
    """Try to connect with this certificate, or with none, and wait until the server hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as connection,
        suppress(OSError),
        context.wrap_socket(connection) as secured,
    ):
        while secured.recv(4096):
            pass


def flood(service: ServiceProcess, bad: BadCertificates) -> list[str]:
    """Open bad connections of each kind; return the lines that the service logs meanwhile."""
    main, tokens = service.address, service.announcement.tokens
    metrics = service.announcement.metrics
    kinds: list[Callable[[], None]] = [
        lambda: shake_hands(main, None),
        lambda: shake_hands(main, bad.self_signed),
        lambda: shake_hands(main, bad.expired),
        *(
            lambda address=address, data=data: send(address, data)
            for address in (main, tokens, metrics)
            for data in (b"GET / HTTP/1.1\r\n\r\n", HALF_A_HELLO)
        ),
    ]
    before = len(lines_of(service))
    for kind in kinds:
        for _ in range(CONNECTIONS):
            kind()
    return lines_of(service)[before:]


def lines_of(service: ServiceProcess) -> list[str]:
    """Return what it has logged, without its readiness, which changes when a machine is busy."""
    lines = service.process.log_path.read_text().splitlines()
    return [line for line in lines if READINESS.search(line) is None]


def test_a_flood_of_bad_handshakes_logs_nothing(
    deployment: Deployment, bad: BadCertificates, tmp_path: Path
) -> None:
    with running_rsm(deployment, tmp_path, {}) as rsm:
        assert flood(rsm, bad) == []
        # It still serves those who may call.
        with open_channel(rsm.address, deployment.client("sweeper")) as channel:
            SegmentObjectsClient(channel, rsm.address).list_segment_objects(ObjectQuery())


@pytest.mark.deep
def test_without_the_variable_each_bad_handshake_is_a_line(
    deployment: Deployment, bad: BadCertificates, tmp_path: Path
) -> None:
    """What operators get who ask for it; and the count can fail."""
    with running_rsm(deployment, tmp_path, {"GRPC_VERBOSITY": "INFO"}) as rsm:
        assert len(flood(rsm, bad)) >= CONNECTIONS
