"""Test what `sediment doctor` and `sediment status` say of a server that hangs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import SeaweedFS
from services.local.stack import rlmm_settings, rsm_settings
from tests.harness import own_servers
from tests.harness.eventually import eventually_holds
from tests.harness.sediment_command import sediment_process
from tests.harness.world import World

own_postgres = own_servers.own_postgres
own_s3 = own_servers.own_s3
own_world = own_servers.own_world

_MOST_S = 60.0
"""For a check of 10 s, on a machine that is busy with other tests."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def doctor(world: World, **environment: str) -> dict[str, list[tuple[str, str]]]:
    """Return level and text of the findings, by check."""
    addresses = ("--rsm", world.rsm.address, "--rlmm", world.rlmm.address)
    began_s = time.monotonic()
    done = sediment_process("doctor", *addresses, "-o", "json", environment=environment)
    assert time.monotonic() - began_s < _MOST_S
    assert done.returncode == 2, done.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["check"], []).append((each["level"], each["text"]))
    return found


def rsm_line(world: World) -> str:
    addresses = ("--rsm", world.rsm.address, "--rlmm", world.rlmm.address)
    done = sediment_process("status", *addresses, "-o", "json")
    lines = json.loads(done.stdout)["lines"]
    return str(next(each["text"] for each in lines if each["what"] == "rsm"))


def test_a_store_that_hangs_is_named_in_time_beside_the_rest(
    own_world: World, own_s3: SeaweedFS
) -> None:
    settings = rsm_settings(own_world.s3, own_world.bucket, "")

    def is_unready() -> None:
        said = "not ready: a readiness check has not finished within 5 s: no answer from the object"
        line = rsm_line(own_world)
        assert said in line
        assert line.endswith("next: `sediment doctor`")

    with stopped(own_s3.pid):
        found = doctor(own_world, **settings)
        assert found["bucket"] == [("FAIL", "no answer within 10 s")]
        assert {level for level, _ in found["rlmm"]} == {"OK"}
        assert {level for level, _ in found["settings"]} == {"OK"}
        eventually_holds(is_unready)


def test_a_database_and_a_service_that_hang_are_named_in_time(
    own_world: World, own_postgres: EmbeddedPostgres
) -> None:
    with stopped(own_postgres.pid):
        found = doctor(own_world, **rlmm_settings(own_world.database_url))
    [(level, text)] = found["database"]
    assert (level, "connection timeout expired" in text) == ("FAIL", True)
    with stopped(own_world.rsm.process.pid):
        found = doctor(own_world)
    [(level, text)] = found["rsm"]
    assert (level, "DEADLINE_EXCEEDED" in text) == ("FAIL", True)
