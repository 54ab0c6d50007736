"""Test that a service says by reflection of which release it is, and whether it is ready."""

from contextlib import ExitStack

import pytest

from services.common.client_security import PLAINTEXT
from services.common.release import release
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.probe import Note, ServiceState, probe
from services.rpc.server.server import Service, start_grpc

NAME = "tieredstorage.v1.RemoteStorageManager"


@pytest.mark.parametrize("why", ["", "the bucket is gone: Größe"])
def test_a_service_says_its_release_its_notes_and_why_it_is_not_ready(why: str) -> None:
    notes = [Note("WARNING", "versioning is on"), Note("UNKNOWN", "x" * 10_000)]
    service = Service(
        "test",
        NAME,
        lambda _: None,
        check=lambda: None,
        close=lambda: None,
        notes=lambda: notes * 10,
    )
    settings = ServiceSettings(plaintext=True, drain_timeout_ms=1000)
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup, unready=lambda: why).address
        channel = cleanup.enter_context(open_channel(address, PLAINTEXT))
        found = probe(channel)
    assert found == ServiceState(release(), not why, unready=why, notes=found.notes)
    assert found.notes[0] == notes[0]
    assert set("".join(note.text for note in found.notes if note.level == "UNKNOWN")) == {"x"}


def test_an_address_where_nobody_listens_is_a_problem() -> None:
    with open_channel("127.0.0.1:9", PLAINTEXT) as channel:
        found = probe(channel)
    assert (found.is_ready, found.problem.startswith("UNAVAILABLE: ")) == (False, True)
