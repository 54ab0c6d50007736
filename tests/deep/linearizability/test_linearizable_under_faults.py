"""Concurrent clients of two RLMMs, while everything dies and every connection breaks.

`python -m tests.deep.linearizability --seconds 3600` is the same for an hour.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deep.linearizability.campaign import Totals, run_round
from tests.deep.linearizability.deployment import Deployment, running_deployment
from tests.deep.linearizability.faults import COMMITS_CUT_AT_ONCE, FAULTS

# Half a minute, and many times that on a busy machine.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

ROUNDS = (
    ("cut_after_commit", "kill_postgres", "cut_client_connections"),
    ("kill_one_rlmm", "cut_before_commit", "cut_database_connections"),
    ("die_after_commit", "cut_after_commit", "kill_postgres"),
)
OPERATIONS_BETWEEN_FAULTS = 100
COMMITS_CUT = 3 * COMMITS_CUT_AT_ONCE + len(ROUNDS)
"""By three of the faults, and one at the end of each round."""


@pytest.fixture(scope="module")
def deployment(server_directory: Path) -> Iterator[Deployment]:
    """Its own PostgreSQL, for it dies here."""
    directory = server_directory / "histories"
    directory.mkdir(mode=0o711)
    directory.chmod(0o711)
    with running_deployment(directory) as running:
        yield running


def test_every_history_has_an_order_and_the_audit_trail_has_it(deployment: Deployment) -> None:
    totals, first_seed = Totals(), int(time.time())
    for n, faults in enumerate(ROUNDS):
        run_round(deployment, first_seed + n, faults, OPERATIONS_BETWEEN_FAULTS, totals)
    # A test that does nothing must not pass.
    assert totals["histories"] == 3 * len(ROUNDS), totals
    assert totals["answered"] >= len(ROUNDS) * 4 * OPERATIONS_BETWEEN_FAULTS, totals
    assert totals["changes"] >= 150, totals
    assert totals["repeats"] >= 50, totals
    assert totals["refusals"] >= 100, totals
    assert totals["lost"] >= COMMITS_CUT, totals
    assert totals["lost changes"] >= len(ROUNDS), totals
    assert deployment.postgres_proxy.cuts == COMMITS_CUT
    assert sum(name.startswith("operation ") for name in totals) == 15, totals
    happened = {name.removeprefix("fault ") for name in totals if name.startswith("fault ")}
    assert happened == {fault for faults in ROUNDS for fault in faults}, totals


def test_every_fault_has_a_round_or_is_for_the_long_run() -> None:
    used = {fault for faults in ROUNDS for fault in faults}
    assert set(FAULTS) - used == {"kill_other_rlmm", "die_before_commit"}
