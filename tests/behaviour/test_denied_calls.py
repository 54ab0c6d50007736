"""Call every RPC as every bad identity: all are denied, and no service ever sees the call.

The requests are made from the contracts, so that an RPC that is new is asked too.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from services.api.roles import RULES, Role, Topics
from services.common.client_security import ClientSecurity
from services.rlm.servicer import RemoteLogManagerServicer
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.channel import open_channel
from services.rpc.server.server import Ports
from services.rsm.servicer import add_to_server
from tests.harness.certificates import (
    BadCertificates,
    TokenIssuer,
    account,
    bad_certificates,
    symmetric_token,
    unsigned_token,
)
from tests.harness.eventually import eventually
from tests.harness.every_rpc import RPCS, Rpc
from tests.harness.secured import Deployment, raw_channel, spiffe
from tieredstorage.v1 import remote_log_manager_pb2_grpc as log_grpc
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as metadata_grpc

TOPIC = "payroll"
SWEEPER = account("jobs", "sweeper")
UNAVAILABLE, UNAUTHENTICATED, DENIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


def values_of(rpc: Rpc) -> list[tuple[str, frozenset[Role]]]:
    """Return the values by which the roles differ, and the roles of each."""
    rule = RULES[rpc.rule]
    return [("", rule.roles)] if rule.by_value is None else list(rule.by_value.roles.items())


def without(roles: frozenset[Role]) -> str:
    """Return the name of the client that has every role but these."""
    return "-".join(["without", *sorted(roles)])


# Every role may call the others.
DENIED_BY_ROLE = len(RPCS) - 5
# The others name no topic, at RSM above all.
DENIED_BY_TOPIC = len(RPCS) - 13
ROLE_SETS = {roles for rpc in RPCS for _, roles in values_of(rpc)} - {frozenset(Role)}


class Reached:
    """A manager of any service that records which of its methods a call has reached.

    It reads the requests that a call streams.
    """

    def __init__(self) -> None:
        self.methods: list[str] = []

    @property
    def objects(self) -> "Reached":
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*arguments: object, **options: object) -> None:
            for argument in arguments:
                if isinstance(argument, Iterator):
                    list(argument)
            self.methods.append(name)

        return method


class World:
    """The three services with TLS, each on its own ports."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        self.deployment = Deployment(directory)
        self.reached = manager = Reached()
        everything = list(Role)
        for good in ("operator", "removed"):
            self.deployment.grant(spiffe(good), *everything)
        self.deployment.grant(SWEEPER, *everything)
        self.deployment.grant(spiffe("narrow"), *everything, topics=["orders-*"])
        for role in Role:
            self.deployment.grant(spiffe(f"only-{role}"), role)
        for roles in ROLE_SETS:
            self.deployment.grant(spiffe(without(roles)), *(set(Role) - roles))
        self.bad: BadCertificates = bad_certificates(
            self.deployment.authority, directory, spiffe("operator")
        )
        services: dict[str, Callable[[grpc.Server], None]] = {
            "RemoteStorageManager": lambda server: add_to_server(cast(Any, manager), server),
            "RemoteLogMetadataManager": lambda server: (
                metadata_grpc.add_RemoteLogMetadataManagerServicer_to_server(
                    RemoteLogMetadataManagerServicer(cast(Any, manager)), server
                )
            ),
            "RemoteLogManager": lambda server: log_grpc.add_RemoteLogManagerServicer_to_server(
                RemoteLogManagerServicer(cast(Any, manager)), server
            ),
        }
        self.ports: dict[str, Ports] = {
            name: cleanup.enter_context(self.deployment.served(add_to))
            for name, add_to in services.items()
        }
        self._channels: dict[tuple[str, ClientSecurity], grpc.Channel] = {}
        self._cleanup = cleanup

    def channel(self, service: str, security: ClientSecurity) -> grpc.Channel:
        known = self._channels.get((service, security))
        if known is None:
            opened = raw_channel(self.ports[service], security)
            known = self._cleanup.enter_context(opened)
            self._channels[service, security] = known
        return known

    def token(self, token: str) -> ClientSecurity:
        return self.deployment.with_token(token)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as cleanup:
        yield World(tmp_path_factory.mktemp("secured"), cleanup)


def status_of(world: World, rpc: Rpc, security: ClientSecurity, value: str = "") -> tuple[Any, str]:
    """Call as this client; return the status and its text."""
    channel = world.channel(rpc.service, security)
    try:
        rpc.call(channel, rpc.message(TOPIC, value))
    except grpc.RpcError as e:
        return e.code(), str(e.details())
    return grpc.StatusCode.OK, ""


# Bad identities that are the same for every RPC, and the status of their calls. A handshake that
# fails is UNAVAILABLE to the client, and no call to the server.
Make = Callable[[World], ClientSecurity]
STRANGER = TokenIssuer()
NOW = int(time.time())


def issued(**claims: Any) -> Make:
    return lambda world: world.token(world.deployment.issuer.token(SWEEPER, **claims))


def with_certificate(name: str) -> Make:
    return lambda world: world.deployment.with_certificate(getattr(world.bad, name))


def issued_for(name: str, hosts: Sequence[str] = (), uris: Sequence[str] = ()) -> Make:
    def make(world: World) -> ClientSecurity:
        made = world.deployment.authority.issue(name, hosts=hosts, uris=uris)
        return world.deployment.with_certificate(made)

    return make


BAD: dict[str, tuple[Make, grpc.StatusCode]] = {
    "expired certificate": (with_certificate("expired"), UNAVAILABLE),
    "not yet valid certificate": (with_certificate("not_yet_valid"), UNAVAILABLE),
    "self-signed certificate": (with_certificate("self_signed"), UNAVAILABLE),
    "certificate of another CA": (with_certificate("wrong_ca"), UNAVAILABLE),
    "certificate without a name": (with_certificate("no_name"), UNAUTHENTICATED),
    "certificate with only an IP address": (issued_for("address", ["127.0.0.1"]), UNAUTHENTICATED),
    "certificate with a URI without an authority": (
        issued_for("no-authority", uris=[SWEEPER, "urn:operator"]),
        UNAUTHENTICATED,
    ),
    "certificate of somebody else": (with_certificate("wrong_name"), DENIED),
    "certificate whose DNS name looks like the URI": (
        issued_for("host", ["operator.sediment.test"]),
        DENIED,
    ),
    "identity with a longer path": (issued_for("longer", uris=[spiffe("operator/x")]), DENIED),
    "no token": (
        lambda world: ClientSecurity(world.deployment.authority.certificate),
        UNAUTHENTICATED,
    ),
    "token expired": (issued(exp=NOW - 60), UNAUTHENTICATED),
    "token not yet valid": (issued(nbf=NOW + 3600), UNAUTHENTICATED),
    "token for another audience": (issued(aud=["vault"]), UNAUTHENTICATED),
    "token of another issuer": (issued(iss="https://elsewhere"), UNAUTHENTICATED),
    "token by an unknown key id": (issued(header={"kid": "other"}), UNAUTHENTICATED),
    "token by an unknown key": (
        lambda world: world.token(STRANGER.token(SWEEPER)),
        UNAUTHENTICATED,
    ),
    "token unsigned": (lambda world: world.token(unsigned_token(SWEEPER)), UNAUTHENTICATED),
    "token signed by the public key": (
        lambda world: world.token(symmetric_token(world.deployment.issuer, SWEEPER)),
        UNAUTHENTICATED,
    ),
    "token that is garbage": (lambda world: world.token("garbage"), UNAUTHENTICATED),
    "token of nobody in the policy": (
        lambda world: world.token(world.deployment.issuer.token(account("jobs", "other"))),
        DENIED,
    ),
    "token that names a certificate's identity": (
        lambda world: world.token(world.deployment.issuer.token(spiffe("operator"))),
        UNAUTHENTICATED,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_identity_may_call_nothing(world: World, name: str) -> None:
    make, expected = BAD[name]
    security = make(world)
    found = {rpc.rule: status_of(world, rpc, security)[0] for rpc in RPCS}
    assert {rule: code for rule, code in found.items() if code is not expected} == {}
    assert world.reached.methods == []


def test_no_certificate_may_call_nothing_at_the_port_for_certificates(world: World) -> None:
    nobody = ClientSecurity(world.deployment.authority.certificate)
    for service, ports in world.ports.items():
        with open_channel(ports.address, nobody) as channel:
            for rpc in RPCS:
                if rpc.service == service:
                    with pytest.raises(grpc.RpcError) as caught:
                        rpc.call(channel, rpc.message(TOPIC))
                    assert caught.value.code() is UNAVAILABLE
    assert world.reached.methods == []


def test_plaintext_may_call_nothing(world: World) -> None:
    for service, ports in world.ports.items():
        for address in (ports.address, ports.tokens):
            with grpc.insecure_channel(address) as channel:
                for rpc in RPCS:
                    if rpc.service == service:
                        with pytest.raises(grpc.RpcError) as caught:
                            rpc.call(channel, rpc.message(TOPIC))
                        assert caught.value.code() is UNAVAILABLE
    assert world.reached.methods == []


@pytest.mark.parametrize("role", Role)
def test_role_may_make_only_its_own_calls(world: World, role: Role) -> None:
    only = world.deployment.client(f"only-{role}")
    for rpc in RPCS:
        for value, roles in values_of(rpc):
            code, text = status_of(world, rpc, only, value)
            assert (code is DENIED) is (role not in roles), (rpc.rule, value, code, text)
            assert code is not UNAUTHENTICATED
            if code is DENIED:
                named = ", ".join(sorted(roles))
                assert f"{spiffe(f'only-{role}')} may not call {rpc.rule}" in text
                assert "add a grant to the policy file" in text
                assert f"one of the roles {named};" in text or value
    world.reached.methods.clear()


def test_all_roles_but_those_of_an_rpc_are_not_enough(world: World) -> None:
    clients = {roles: world.deployment.client(without(roles)) for roles in ROLE_SETS}
    checked, denied = 0, set()
    for rpc in RPCS:
        for value, roles in values_of(rpc):
            if roles in clients:
                assert status_of(world, rpc, clients[roles], value)[0] is DENIED, (rpc.rule, value)
                checked += 1
                denied.add(rpc.rule)
    assert checked > len(RPCS)
    assert len(denied) == DENIED_BY_ROLE
    assert world.reached.methods == []


def test_the_wrong_topic_is_denied_and_named(world: World) -> None:
    narrow = world.deployment.client("narrow")
    denied = set()
    for rpc in RPCS:
        code, text = status_of(world, rpc, narrow)
        topics = RULES[rpc.rule].topics
        if topics in (Topics.NAMED, Topics.FILTER):
            assert rpc.has_topic
            assert code is DENIED, rpc.rule
            assert f"may not call {rpc.rule} on topic '{TOPIC}': needs" in text
        if topics is Topics.ALL:
            assert code is DENIED, rpc.rule
            assert f"may not call {rpc.rule} on all topics: needs" in text
        if code is DENIED:
            denied.add(rpc.rule)
    assert len(denied) == DENIED_BY_TOPIC
    world.reached.methods.clear()


def test_a_list_without_a_filter_needs_all_topics(world: World) -> None:
    narrow = world.deployment.client("narrow")
    for rpc in RPCS:
        if RULES[rpc.rule].topics is Topics.FILTER:
            channel = world.channel(rpc.service, narrow)
            for empty in (rpc.message(""), type(rpc.message(""))()):
                with pytest.raises(grpc.RpcError) as caught:
                    rpc.call(channel, empty)
                assert caught.value.code() is DENIED
                assert "on all topics" in str(caught.value.details())
    assert world.reached.methods == []


@pytest.mark.deep
def test_a_good_identity_reaches_every_service(world: World) -> None:
    """The other tests could fail: what they deny is served to others."""
    for security in (
        world.deployment.client("operator"),
        world.token(world.deployment.issuer.token(SWEEPER)),
    ):
        for rpc in RPCS:
            assert status_of(world, rpc, security)[0] not in (UNAUTHENTICATED, DENIED, UNAVAILABLE)
    assert len(set(world.reached.methods)) > 10
    world.reached.methods.clear()


@pytest.mark.deep
def test_an_identity_that_the_policy_no_longer_names_may_call_nothing(world: World) -> None:
    removed = world.deployment.client("removed")
    for rpc in RPCS:
        assert status_of(world, rpc, removed)[0] is not DENIED
    world.reached.methods.clear()
    world.deployment.grant(spiffe("removed"))
    for service in world.ports:
        first = next(rpc for rpc in RPCS if rpc.service == service)
        eventually(lambda: status_of(world, first, removed)[0] is DENIED)  # noqa: B023 - called here
    world.reached.methods.clear()
    assert {status_of(world, rpc, removed)[0] for rpc in RPCS} == {DENIED}
    assert world.reached.methods == []


def test_the_table_is_large_enough() -> None:
    """Each figure is what a test above finds denied."""
    everywhere = len(BAD) + len(("no certificate", "plaintext", "removed from the policy"))
    denied = len(RPCS) * everywhere + DENIED_BY_ROLE + DENIED_BY_TOPIC
    sys.stdout.write(
        f"{len(RPCS)} RPCs x {everywhere} bad identities, a wrong role at {DENIED_BY_ROLE} RPCs "
        f"and a wrong topic at {DENIED_BY_TOPIC}: {denied} denied\n"
    )
    assert everywhere >= 12
    assert len(RPCS) == len(RULES) >= 46
