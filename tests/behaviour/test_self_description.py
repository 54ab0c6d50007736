"""Test that a service says by reflection of which release it is, and whether it is ready."""

from contextlib import ExitStack
from threading import Event

import pytest

from services.common.client_security import PLAINTEXT
from services.common.release import release
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.probe import ServiceState, probe
from services.rpc.server.server import Service, start_grpc

NAME = "tieredstorage.v1.RemoteStorageManager"


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_service_says_its_release_and_its_readiness(is_ready: bool) -> None:
    ready = Event()
    if is_ready:
        ready.set()
    service = Service("test", NAME, lambda _: None, check=lambda: None, close=lambda: None)
    settings = ServiceSettings(plaintext=True, drain_timeout_ms=1000)
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup, is_ready=ready.is_set).address
        channel = cleanup.enter_context(open_channel(address, PLAINTEXT))
        assert probe(channel) == ServiceState(release(), is_ready)


def test_an_address_where_nobody_listens_is_a_problem() -> None:
    with open_channel("127.0.0.1:9", PLAINTEXT) as channel:
        found = probe(channel)
    assert (found.is_ready, found.problem.startswith("UNAVAILABLE: ")) == (False, True)
