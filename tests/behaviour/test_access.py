"""Test identities and the policy with real servers over TLS: streams, reloads, logs and shares."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import REGISTRY

from services.api.errors import (
    PermissionDeniedError,
    RetriableRemoteStorageError,
    UnauthenticatedError,
)
from services.api.roles import Role
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import ClientSecurity
from services.common.log import LINES_PER_WINDOW
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.server.server import Ports
from services.rsm.servicer import RemoteStorageManagerServicer
from tests.behaviour.test_server_pools import NAME, Holding
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.harness.certificates import account
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, spiffe
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

FETCH = f"/{NAME}/FetchLogSegment"
DELETE = f"/{NAME}/DeleteLogSegmentData"
TOO_MANY = (
    "too many concurrent unary calls of spiffe://sediment.test/broker (limit 4) and the queue"
)


class Endless(Holding):
    """Streams until the client leaves, slowly, so that a test needs little CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = Event()

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        try:
            while not self.release.wait(0.002):
                yield bytes(1024)
        finally:
            self.ended.set()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    made.grant(spiffe("broker"), Role.READER, Role.SHIPPER, Role.DELETER)
    made.grant(spiffe("other"), Role.READER, Role.DELETER)
    made.grant(account("jobs", "reader"), Role.READER)
    return made


@pytest.fixture
def manager() -> Iterator[Endless]:
    made = Endless()
    yield made
    made.release.set()


@pytest.fixture
def ports(deployment: Deployment, manager: Endless) -> Iterator[Ports]:
    def add_to(server: grpc.Server) -> None:
        servicer = RemoteStorageManagerServicer(manager)
        pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

    with (
        deployment.served(add_to, NAME, unary_threads=4, stream_threads=4) as ports,
        ExitStack() as released,
    ):
        released.callback(manager.release.set)
        yield ports


@pytest.fixture
def clients(deployment: Deployment, ports: Ports) -> Iterator["Clients"]:
    with ExitStack() as cleanup:
        yield Clients(deployment, ports, cleanup)


class Clients:
    def __init__(self, deployment: Deployment, ports: Ports, cleanup: ExitStack) -> None:
        self._deployment = deployment
        self._ports = ports
        self._cleanup = cleanup

    def channel(self, security: ClientSecurity) -> grpc.Channel:
        address = self._ports.tokens if security.token else self._ports.address
        return self._cleanup.enter_context(open_channel(address, security))

    def of(self, name: str) -> RemoteStorageManagerClient:
        security = self._deployment.client(name)
        return RemoteStorageManagerClient(self.channel(security), self._ports.address)

    def with_token(self, token: str) -> RemoteStorageManagerClient:
        security = self._deployment.with_token(token)
        return RemoteStorageManagerClient(self.channel(security), self._ports.tokens)


def denied(method: str, reason: str) -> float:
    labels = {"method": method, "reason": reason}
    return REGISTRY.get_sample_value("sediment_denied_calls_total", labels) or 0


def test_the_actor_is_the_certificate_or_the_token(
    deployment: Deployment, clients: Clients, manager: Endless
) -> None:
    sweeper = account("jobs", "sweeper")
    deployment.grant(sweeper, Role.DELETER)
    clients.of("broker").delete_log_segment_data(a_segment())
    by_token = clients.with_token(deployment.issuer.token(sweeper))
    eventually(lambda: _is_served(by_token))
    assert [call.actor for call in manager.calls] == [spiffe("broker"), sweeper]


def _is_served(client: RemoteStorageManagerClient) -> bool:
    try:
        client.delete_log_segment_data(a_segment())
    except PermissionDeniedError:
        return False
    return True


def test_stream_ends_when_the_policy_no_longer_allows_it_and_others_continue(
    deployment: Deployment, clients: Clients, manager: Endless
) -> None:
    revoked, other = clients.of("broker"), clients.of("other")
    streams = [client.fetch_log_segment(a_segment(), 0) for client in (revoked, other)]
    for stream in streams:
        next(stream)
    before = denied(FETCH, "policy_change")
    deployment.grant(spiffe("broker"), Role.SHIPPER)
    with pytest.raises(RetriableRemoteStorageError):
        for _ in streams[0]:
            pass
    eventually(lambda: denied(FETCH, "policy_change") == before + 1)
    # The client retries such an error, and then gets to know.
    with pytest.raises(PermissionDeniedError, match="FetchLogSegment: needs one of"):
        fetched(revoked, a_segment())
    for _ in range(100):
        next(streams[1])
    assert denied(FETCH, "policy_change") == before + 1


@pytest.mark.deep
def test_a_stream_ends_when_its_token_has_expired_and_resumes_with_a_new_one(
    deployment: Deployment, clients: Clients
) -> None:
    reader = account("jobs", "reader")
    # Clocks may differ by 10 s, so this one is accepted for 5 s more.
    token = deployment.issuer.token(reader, exp=int(time.time()) - 5)
    old = clients.with_token(token)
    before = denied(FETCH, "token_expired")
    stream = old.fetch_log_segment(a_segment(), 0)
    by_certificate = clients.of("other").fetch_log_segment(a_segment(), 0)
    next(stream)
    next(by_certificate)
    # Unread streams stand still, which costs no CPU.
    eventually(lambda: denied(FETCH, "token_expired") == before + 1)
    with pytest.raises(RetriableRemoteStorageError):
        for _ in stream:
            pass
    with pytest.raises(UnauthenticatedError, match="the token has expired"):
        fetched(old, a_segment())
    renewed = clients.with_token(deployment.issuer.token(reader))
    next(renewed.fetch_log_segment(a_segment(), 0))
    for _ in range(100):
        next(by_certificate)


def test_a_policy_with_a_mistake_changes_nothing_until_it_is_mended(
    deployment: Deployment, clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    client = clients.of("broker")
    client.delete_log_segment_data(a_segment())
    good = deployment.policy.read_text()
    deployment.policy.write_text(good.replace("reader", "raeder"))
    eventually(lambda: _is_served(client) and "unknown role 'raeder'" in caplog.text)
    assert "the previous policy stays in force" in caplog.text
    deployment.policy.write_text(good.replace('"deleter"', '"auditor"'))
    eventually(lambda: not _is_served(client))


def test_a_refusal_is_logged_with_its_reason_and_counted(
    deployment: Deployment, clients: Clients, limited_log: pytest.LogCaptureFixture
) -> None:
    deployment.grant(spiffe("auditor"), Role.AUDITOR)
    auditor = clients.of("auditor")
    before = denied(DELETE, "role")
    with limited_log.at_level(logging.INFO, logger="sediment.rpc"):
        for _ in range(50):
            with pytest.raises(PermissionDeniedError):
                auditor.delete_log_segment_data(a_segment())
    lines = [r for r in limited_log.records if r.__dict__.get("actor") == spiffe("auditor")]
    assert len(lines) <= LINES_PER_WINDOW
    text = (
        f"{spiffe('auditor')} may not call RemoteStorageManager/DeleteLogSegmentData: needs one of "
        f"the roles deleter; add a grant to the policy file"
    )
    assert {line.__dict__["why"] for line in lines} == {text}
    assert {line.levelname for line in lines} == {"WARNING"}
    assert denied(DELETE, "role") == before + 50


def test_a_token_is_in_no_log_and_no_message(
    deployment: Deployment, clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        token = deployment.issuer.token(account("jobs", "sweeper"), exp=1)
        with pytest.raises(UnauthenticatedError, match="the token has expired") as caught:
            clients.with_token(token).delete_log_segment_data(a_segment())
    secret = token.rsplit(".", 1)[1]
    assert secret not in str(caught.value)
    assert secret not in caplog.text + json.dumps([repr(r.__dict__) for r in caplog.records])


def test_reflection_is_denied_without_any_role(deployment: Deployment, clients: Clients) -> None:
    def services(name: str) -> list[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(clients.channel(deployment.client(name)))
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=30)
        return [service.name for service in answer.list_services_response.service]

    assert NAME in services("broker")
    with pytest.raises(grpc.RpcError, match="may not call"):
        services("stranger")


# Shares


def deletes(channel: grpc.Channel, count: int, timeout_s: float = 60) -> "list[grpc.Future[Any]]":
    stub = pb_grpc.RemoteStorageManagerStub(channel)
    request = pb.DeleteLogSegmentDataRequest(metadata=metadata_to_proto(a_segment()))
    return [stub.DeleteLogSegmentData.future(request, timeout=timeout_s) for _ in range(count)]


def test_an_identity_has_all_calls_of_the_settings_and_others_have_room_beside_it(
    deployment: Deployment, clients: Clients, manager: Endless
) -> None:
    manager.held_kind = "delete"
    before = denied(DELETE, "share")
    # Four are served, twelve wait.
    greedy = deletes(clients.channel(deployment.client("broker")), 17)
    (refused,) = eventually(lambda: [call for call in greedy if call.done()])
    assert TOO_MANY in str(refused.exception())
    assert denied(DELETE, "share") == before + 1
    # Four are three quarters of what is served, rounded up.
    honest = deletes(clients.channel(deployment.client("other")), 2)
    for _ in range(6):
        assert manager.held.acquire(timeout=30)
    assert not manager.held.acquire(blocking=False)
    # Each kind of call has shares of its own.
    copied(clients.of("broker"), Files(b"log"))
    manager.release.set()
    assert [call.exception() for call in greedy + honest].count(None) == 18


def test_a_call_that_waits_for_its_turn_leaves_with_its_client(
    deployment: Deployment, clients: Clients, manager: Endless
) -> None:
    manager.held_kind = "delete"
    channel = clients.channel(deployment.client("broker"))
    calls = deletes(channel, 17)
    eventually(lambda: any(call.done() for call in calls))
    for call in calls:
        call.cancel()

    def waits() -> bool:
        (call,) = deletes(channel, 1, timeout_s=1)
        return "DEADLINE_EXCEEDED" in str(call.exception())

    # Those that are served hold their threads; the others have made room.
    eventually(waits)


def test_a_service_does_not_start_with_a_bad_policy(deployment: Deployment) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("[[grant]]\nroles = 1", {}, r"^cannot start: policy file .*: grant 1: identities must"),
        ("", {"policy_file": deployment.directory / "none"}, "none: cannot be read: No such file"),
        ("", {"token_jwks_file": deployment.policy}, "^cannot start: token keys file .*not a JWKS"),
    ]
    good = deployment.policy.read_text()
    for text, settings, reason in cases:
        deployment.policy.write_text(text or good)
        with (
            pytest.raises(SystemExit, match=reason),
            deployment.served(lambda server: None, **settings),
        ):
            pass
