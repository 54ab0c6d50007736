"""Test `sediment drain`: RLM finishes what it copies and deletes, and starts nothing more."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.api.errors import RemoteStorageError
from services.views.endpoints import Severity
from services.views.tier import lag_line
from tests.harness.callback_rlm import LEADER, HeldCopies, callback_rlm, send_role, turn
from tests.harness.retained_log import hourly_log, keep_hours
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_rlm
from tests.harness.ship_stack import Stack, read
from tests.unit.rlm.kafka_bytes import NAME

EPOCH = 2
ALL = [(base, base + 9) for base in range(0, 60, 10)]


class Drainable:
    """An RLM with a log to copy, served over gRPC."""

    def __init__(self, stack: Stack, rlm: Any, copies: HeldCopies, address: str) -> None:
        self.stack = stack
        self.rlm = rlm
        self.copies = copies
        self.address = address

    def drain(self, *options: str) -> Completed:
        return sediment("drain", "--rlm", self.address, *options, "-o", "json")

    def active(self, *options: str) -> tuple[int, int]:
        done = self.drain(*options)
        (rlm,) = json.loads(done.stdout)["rlms"]
        assert rlm["address"] == self.address
        active = rlm["active_copies"], rlm["active_deletions"]
        expected = 1 if any(active) and "--cancel" not in options else 0
        assert done.returncode == expected, done.stderr
        return active


@pytest.fixture
def drainable(stack: Stack) -> Iterator[Drainable]:
    hourly_log(stack.log_dir)
    copies = HeldCopies(stack)
    rlm = callback_rlm(stack, rsm=copies.rsm)
    assert send_role(rlm, LEADER, EPOCH) is None
    with served_rlm(rlm) as (_, address):
        yield Drainable(stack, rlm, copies, address)


def test_a_copy_is_finished_and_no_other_begun_until_the_drain_is_cancelled(
    drainable: Drainable,
) -> None:
    rlm, stack = drainable.rlm, drainable.stack
    with drainable.copies.held(rlm, 10):
        assert drainable.active("--timeout", "0") == (1, 0)
    assert stack.ranges() == ALL[:2]
    assert drainable.active() == (0, 0)
    turn(rlm.lanes.copies)
    assert stack.ranges() == ALL[:2]
    assert not isinstance(read(rlm, 0), RemoteStorageError)
    lag = rlm.copy_lag()
    assert lag.drained
    assert (lag_line(lag, 0).severity, "drained, until" in lag_line(lag, 0).text) == (
        Severity.WARNING,
        True,
    )
    drainable.active("--cancel")
    assert not rlm.copy_lag().drained
    turn(rlm.lanes.copies)
    assert stack.ranges() == ALL


def test_a_drained_rlm_deletes_nothing(drainable: Drainable) -> None:
    rlm, stack = drainable.rlm, drainable.stack
    turn(rlm.lanes.copies)
    drainable.active()
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    turn(rlm.lanes.expiration)
    assert stack.ranges() == ALL
    drainable.active("--cancel")
    turn(rlm.lanes.expiration)
    assert stack.ranges() == ALL[4:]


def test_every_rlm_is_called_though_one_is_away(drainable: Drainable) -> None:
    both = f"localhost:1,{drainable.address}"
    for options, drained in (((), True), (("--cancel",), False)):
        done = sediment("drain", "--rlm", both, *options, "-o", "json")
        assert (done.returncode, done.stdout) == (3, "")
        assert drainable.rlm.copy_lag().drained is drained
