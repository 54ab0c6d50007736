"""Test the three services as processes with TLS: who is refused, and rotation under load."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

import grpc
import pytest

from hatch_build import ROOT
from services.api.errors import RetriableRemoteStorageError
from services.api.segment_objects import ObjectQuery
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.certificates import Certificate, CertificateAuthority
from services.local.stack import EmbeddedStack
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.certificates import OPERATOR, BadCertificates, Parties, bad_certificates
from tests.harness.eventually import eventually

MIB = 1024 * 1024
LOG = ROOT / "tests/data/kafka-log"
SERVICES = ("rsm", "rlmm", "rlm")
RLM = "spiffe://sediment.test/rlm"
ROTATIONS = 3
UNARY_CLIENTS = 4
STREAM_CLIENTS = 2
POLICY = f"""\
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin"]
topics = ["*"]

[[grant]]
identities = ["{RLM}"]
roles = ["shipper", "reader", "deleter"]
topics = ["*"]
"""


@dataclass(frozen=True)
class SecuredStack:
    """The stack with certificates of an authority that the test has."""

    stack: EmbeddedStack
    authority: CertificateAuthority
    bad: BadCertificates
    servers: dict[str, Certificate]
    operator: Certificate
    directory: Path

    def address(self, service: str) -> str:
        return str(getattr(self.stack.endpoints, service))

    @property
    def rlm_log(self) -> str:
        return self.stack.services["rlm"].process.log_path.read_text()

    @property
    def security(self) -> ClientSecurity:
        ca = self.authority.certificate
        return ClientSecurity(ca, self.operator.certificate, self.operator.key)

    @property
    def parties(self) -> Parties:
        return Parties(
            self.authority.certificate,
            {self.address(name): made for name, made in self.servers.items()},
            [self.operator],
            {"operator": OPERATOR, "rlm": RLM},
        )


@pytest.fixture(scope="module")
def secured(server_directory: Path) -> Iterator[SecuredStack]:
    directory = server_directory / "tls"
    authority = CertificateAuthority(directory)
    policy = directory / "policy.toml"
    policy.write_text(POLICY)
    uris = {"rlm": [RLM]}
    servers = {name: authority.issue(name, uris=uris.get(name, [])) for name in SERVICES}
    settings: dict[str, str] = {}
    for name, made in servers.items():
        prefix = name.upper()
        settings |= {
            f"{prefix}_TLS_CERTIFICATE_FILE": str(made.certificate),
            f"{prefix}_TLS_KEY_FILE": str(made.key),
            f"{prefix}_TLS_CLIENT_CA_FILE": str(authority.certificate),
            f"{prefix}_POLICY_FILE": str(policy),
        }
    operator = authority.issue("operator", hosts=(), uris=[OPERATOR])
    bad = bad_certificates(authority, directory)
    with EmbeddedStack(
        server_directory / "secured", log_dirs=[LOG], settings=settings, task_interval_ms=200
    ) as stack:
        yield SecuredStack(stack, authority, bad, servers, operator, directory)


def call(service: str, channel: grpc.Channel, address: str) -> None:
    """Make a cheap call of a service."""
    match service:
        case "rsm":
            SegmentObjectsClient(channel, address).list_segment_objects(ObjectQuery(), page_size=1)
        case "rlmm":
            RemoteLogMetadataManagerClient(channel, address).list_partitions(page_size=1)
        case _:
            RemoteLogManagerClient(channel, address).describe_partitions()


def credentials(secured: SecuredStack, shown: Certificate | None) -> grpc.ChannelCredentials:
    """Return the credentials of a client that does not check its own certificate."""
    ca = secured.authority.certificate.read_bytes()
    if shown is None:
        return grpc.ssl_channel_credentials(ca)
    return grpc.ssl_channel_credentials(ca, shown.key.read_bytes(), shown.certificate.read_bytes())


@pytest.mark.parametrize("which", ["expired", "not_yet_valid", "self_signed", "wrong_ca", "none"])
@pytest.mark.parametrize("service", SERVICES)
def test_every_service_refuses_bad_certificates(
    secured: SecuredStack, service: str, which: str
) -> None:
    address, shown = secured.address(service), getattr(secured.bad, which, None)
    with (
        grpc.secure_channel(address, credentials(secured, shown)) as channel,
        pytest.raises(RetriableRemoteStorageError, match="the server closed the connection"),
    ):
        call(service, channel, address)


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_refuses_plaintext(secured: SecuredStack, service: str) -> None:
    address = secured.address(service)
    with (
        open_channel(address, PLAINTEXT) as channel,
        pytest.raises(RetriableRemoteStorageError, match="this client speaks plaintext"),
    ):
        call(service, channel, address)


ReadAll = Callable[[RemoteStorageManagerClient], None]


@dataclass
class Load:
    """Counts the calls of threads that call until they are stopped; any error ends the test."""

    stopping: Event = field(default_factory=Event)
    calls: int = 0
    streams: int = 0
    _lock: Lock = field(default_factory=Lock)

    def call(self, secured: SecuredStack) -> None:
        with ExitStack() as channels:
            opened = {
                name: channels.enter_context(open_channel(secured.address(name), secured.security))
                for name in SERVICES
            }
            while not self.stopping.wait(0.005):
                for name in SERVICES:
                    call(name, opened[name], secured.address(name))
                    with self._lock:
                        self.calls += 1

    def fetch(
        self, secured: SecuredStack, read: Callable[[RemoteStorageManagerClient], None]
    ) -> None:
        address = secured.address("rsm")
        with open_channel(address, secured.security) as channel:
            while not self.stopping.is_set():
                read(RemoteStorageManagerClient(channel, address))
                with self._lock:
                    self.streams += 1


def test_rotation_under_load_fails_no_call(
    secured: SecuredStack, record_property: Callable[[str, object], None]
) -> None:
    files = Files(some_bytes(16 * MIB))
    with open_channel(secured.address("rsm"), secured.security) as channel:
        metadata = copied(RemoteStorageManagerClient(channel, secured.address("rsm")), files)

    def read(rsm: RemoteStorageManagerClient) -> None:
        size = 0
        for chunk in rsm.fetch_log_segment(metadata, 0):
            size += len(chunk)
            load.stopping.wait(0.02)  # a reader that outlasts a rotation
        assert size == len(files.log)

    load = Load()
    with ThreadPoolExecutor(UNARY_CLIENTS + STREAM_CLIENTS) as pool:
        running = [pool.submit(load.call, secured) for _ in range(UNARY_CLIENTS)]
        running += [pool.submit(load.fetch, secured, read) for _ in range(STREAM_CLIENTS)]
        try:
            for number in range(ROTATIONS):
                name = f"successor-{number}"
                secured.parties.rotate(secured.directory / name, name)
            # However slow the machine is, or until one of them failed.
            eventually(
                lambda: load.calls > 100 or any(thread.done() for thread in running),
                deadline_ms=120_000,
            )
        finally:
            load.stopping.set()
        for thread in running:
            thread.result()

    assert load.calls > 100
    assert load.streams > ROTATIONS
    record_property("rotations", ROTATIONS)
    record_property("calls", load.calls)
    # RLM is a client too.
    assert "UNAVAILABLE" not in secured.rlm_log
