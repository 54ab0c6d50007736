"""Test what `sediment doctor` and `sediment status` say of a server that hangs."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from services.local.seaweedfs import SeaweedFS
from services.local.stack import rlmm_settings, rsm_settings
from tests.harness import own_servers
from tests.harness.eventually import eventually_holds
from tests.harness.local_servers import DatabaseServer
from tests.harness.sediment_command import sediment_process
from tests.harness.world import World

own_postgres = own_servers.own_postgres
own_s3 = own_servers.own_s3
own_world = own_servers.own_world

_MOST_S = 60.0
"""For a check of 10 s, on a machine that is busy with other tests."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process and its children, which a database has for its sessions."""
    parent = psutil.Process(pid)
    parent.suspend()
    children = parent.children(recursive=True)
    for each in children:
        each.suspend()
    try:
        yield
    finally:
        for each in (*children, parent):
            each.resume()


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

    with stopped(own_s3.pid):
        found = doctor(own_world, **settings)
        assert found["bucket"] == [("FAIL", "no answer within 10 s")]
        assert {level for level, _ in found["rlmm"]} == {"OK"}
        assert {level for level, _ in found["settings"]} == {"OK"}
        eventually_holds(is_unready)


def test_a_database_and_a_service_that_hang_are_named_in_time(
    own_world: World, own_postgres: DatabaseServer
) -> None:
    with stopped(own_postgres.pid):
        found = doctor(own_world, **rlmm_settings(own_world.database_url))
    [(level, text)] = found["database"]
    assert (level, "connection timeout expired" in text) == ("FAIL", True)
    [(level, text)] = found["upkeep"]
    assert (level, text.startswith("because of database: ")) == ("SKIP", True)
    with stopped(own_world.rsm.process.pid):
        found = doctor(own_world)
        addresses = ("--rsm", own_world.rsm.address, *rlmm_of(own_world))
        shown = sediment_process("top", "--count", "1", *addresses)
        selftest = sediment_process("selftest", *addresses)
    [(level, text)] = found["rsm"]
    assert (level, text.endswith(": no answer within 2 s")) == ("FAIL", True)
    assert "rsm critical: " in shown.stdout
    assert f"waiting for rsm at {own_world.rsm.address}" in selftest.stderr


def rlmm_of(world: World) -> tuple[str, str]:
    return "--rlmm", world.rlmm.address


def waited(stderr: str, world: World) -> str:
    """Return the error of a command that said once that it waits for RLMM."""
    waiting, *_, error = stderr.splitlines()
    assert waiting == f"waiting for rlmm at {world.rlmm.address}"
    assert stderr.count("waiting for") == 1
    return error


def test_a_command_says_for_which_service_it_waits_and_when_it_has_no_answer(
    own_world: World, own_postgres: DatabaseServer
) -> None:
    with stopped(own_postgres.pid):
        done = sediment_process("topics", "list", *rlmm_of(own_world))
    # RLMM waits for its database about as long as the command waits for RLMM.
    own_end = f"rlmm at {own_world.rlmm.address}: no answer within 30 s"
    found = re.search(f"{own_end}|database .*does not answer", waited(done.stderr, own_world))
    assert found is not None
    assert done.returncode == 3
    with stopped(own_world.rlmm.process.pid):
        done = sediment_process("topics", "list", *rlmm_of(own_world))
    error = waited(done.stderr, own_world)
    assert "accepts connections, and does not answer" in error
    assert error.endswith("; `sediment doctor` shows which services answer")
    assert done.returncode == 3
