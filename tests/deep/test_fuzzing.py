"""Whatever a service is asked, by whomever: it refuses in our words, by the field, and keeps
nothing of what it refused.

Every RPC of every service is asked, found by its descriptor: a new one is covered without a change
here. Each run asks the same; `python -m tests.deep.fuzzing` asks other things, and at length.
"""

import sys
import threading
from collections.abc import Iterator

import grpc
import psutil
import pytest

from tests.deep.fuzzing.calling import METHODS, call_with_bytes
from tests.deep.fuzzing.campaign import Target, fuzz
from tests.deep.fuzzing.rules import reason_of
from tests.deep.fuzzing.storage_targets import running_rlm, running_rsm
from tests.deep.fuzzing.targets import running_rlmm_target
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

SEED = 405
EXAMPLES = 25
"""Of each RPC: half a minute for all of them, and much longer on a busy machine."""
LEAST_BEYOND_VALIDATION = {"rlmm": 0.2, "rsm": 0.05, "rlm": 0.05}
"""Of the calls of each RPC; of all of RLMM's it is more than half. A request of RSM or RLM has few
fields, so that a fault rarely hits one that does not matter."""
POOLS_MAY_GROW_BY = 16
"""Of threads and files: a hundred calls that each left one would be far above."""


@pytest.fixture(scope="module")
def rlmm(rlmm_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_rlmm_target(rlmm_database_url, tmp_path_factory.mktemp("rlmm")) as target:
        yield target


@pytest.fixture(scope="module")
def rsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_rsm(tmp_path_factory.mktemp("rsm")) as target:
        yield target


@pytest.fixture(scope="module")
def rlm(
    postgres: DatabaseServer, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    name = "rlm_fuzzing"
    url = postgres.create_database(name, template=migrated_database)
    with running_rlm(url, tmp_path_factory.mktemp("rlm")) as target:
        yield target
    postgres.drop_database(name)


@pytest.mark.parametrize(
    ("service", "rpc"),
    [(service, method.name) for service, methods in METHODS.items() for method in methods],
)
def test_invalid_requests_are_refused_by_field_and_change_nothing(
    request: pytest.FixtureRequest, service: str, rpc: str
) -> None:
    target: Target = request.getfixturevalue(service)
    (method,) = (each for each in METHODS[service] if each.name == rpc)
    again = f"--service {service} --rpc {rpc} --seed {SEED} --examples {EXAMPLES}"
    sys.stdout.write(f"python -m tests.deep.fuzzing {again}\n")
    tally = fuzz(target, method, SEED, EXAMPLES)
    sys.stdout.write(f"{tally}\n")
    assert not tally.is_served or tally.share_beyond_validation >= LEAST_BEYOND_VALIDATION[service]
    assert target.is_ready()


@pytest.mark.parametrize("service", METHODS)
def test_bytes_that_are_no_message_are_refused_in_our_words(
    request: pytest.FixtureRequest, service: str
) -> None:
    target: Target = request.getfixturevalue(service)
    for method in METHODS[service]:
        for content in (b"\xff\xff", b"\x0a\x7f"):
            answer = call_with_bytes(target.channel, method, content)
            assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, method.name
            assert answer.status is not None, method.name
            assert reason_of(answer.status) == "INVALID_REQUEST"


def test_refused_copies_leave_no_thread_and_no_open_file(rsm: Target) -> None:
    copies = METHODS["rsm"][0]
    assert copies.name == "CopyLogSegmentData"
    fuzz(rsm, copies, SEED, 20)  # the pools have their threads and the client its connection
    threads, files = threading.active_count(), psutil.Process().num_fds()
    fuzz(rsm, copies, SEED + 1, 100)
    eventually(lambda: threading.active_count() <= threads + POOLS_MAY_GROW_BY)
    eventually(lambda: psutil.Process().num_fds() <= files + POOLS_MAY_GROW_BY)
