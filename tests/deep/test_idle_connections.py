"""Idle connections, of clients without an identity, must not shut a port for others."""

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess
from services.rpc.client.channel import open_channel
from services.rpc.client.probe import probe
from services.rpc.server.server import HEALTH_IDLE_TIMEOUT_MS
from tests.harness.eventually import eventually

MANY = 1_500
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def started_rsm(directory: Path, limits: str, cleanup: ExitStack) -> ServiceProcess:
    objects = directory / "objects"
    objects.mkdir()
    settings = {"RSM_BACKEND": "filesystem", "RSM_DIRECTORY": str(objects)}
    command = ["sh", "-c", f"ulimit {limits}; exec {sys.executable} -m services.rsm"]
    service = ServiceProcess("rsm", settings, directory / "rsm", command)
    service.start()
    cleanup.callback(service.kill)
    return service


def connect_idly(address: str, cleanup: ExitStack, sent: bytes = b"") -> None:
    host, _, port = address.rpartition(":")
    for _ in range(MANY):
        idle = cleanup.enter_context(socket.create_connection((host, int(port)), 60))
        idle.sendall(sent)


def is_healthy(service: ServiceProcess) -> bool:
    with grpc.insecure_channel(service.announcement.health) as channel:
        try:
            HealthStub(channel).Check(HealthCheckRequest(), timeout=2)
        except grpc.RpcError:
            return False
        return True


def is_serving(service: ServiceProcess) -> bool:
    with open_channel(service.address, PLAINTEXT) as channel:
        return not probe(channel).problem


@pytest.mark.parametrize("sent", [b"", PREFACE], ids=["silent", "http2"])
@pytest.mark.parametrize("port", ["health", "address"])
def test_idle_connections_beyond_the_usual_limit_of_descriptors_shut_nothing(
    port: str, sent: bytes, tmp_path: Path
) -> None:
    with ExitStack() as cleanup:
        service = started_rsm(tmp_path, "-Sn 1024", cleanup)
        connect_idly(getattr(service.announcement, port), cleanup, sent)
        assert is_healthy(service)
        assert is_serving(service)


def test_idle_connections_to_health_leave_descriptors_to_the_other_ports(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        service = started_rsm(tmp_path, "-n 600", cleanup)
        connect_idly(service.announcement.health, cleanup, PREFACE)
        assert is_serving(service)
        with urlopen(f"http://{service.announcement.metrics}/metrics", timeout=60) as answer:
            assert answer.status == 200
        # Those that are idle for long end.
        eventually(lambda: is_healthy(service), 3 * HEALTH_IDLE_TIMEOUT_MS)
