"""Play KIP-405's follower-fetch scenarios with real log directories, RSM and RLMM.

Each test is one scenario, step by step; the KIP's tables are its comments. Replicas are built from
the tier and end byte for byte as their leader. `follow` and `ship` check the KIP's invariants.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.remote_log_manager import FetchError
from tests.harness.replicas import Replica
from tests.harness.ship_stack import Stack

pytestmark = pytest.mark.deep

MakeReplica = Callable[..., Replica]


@pytest.fixture
def replica(stack: Stack, tmp_path: Path) -> MakeReplica:
    """Make an empty replica of a broker id, whose segments begin at `rolls`."""
    return lambda broker_id, *rolls: Replica(stack, tmp_path / f"b{broker_id}", broker_id, rolls)


def ranges(stack: Stack) -> list[tuple[int, int]]:
    return sorted(stack.ranges())


def read_from(local_start: int, end: int) -> list[str]:
    """Return what a consumer reads of messages that are their offsets."""
    return [f"{n} from {'the tier' if n < local_start else 'the disk'}" for n in range(end)]


def test_scenario_1_a_new_empty_follower(stack: Stack, replica: MakeReplica) -> None:
    a = replica(1, 3, 6)
    a.lead(0)
    a.append("0", "1", "2")
    a.lead(1)
    a.append("3", "4")
    a.lead(2)
    a.append("5", "6")
    a.lead(3)
    a.append("7")
    a.ship()
    assert ranges(stack) == [(0, 2), (3, 5)]
    a.expire_below(3)
    b = replica(2)
    assert b.follow(a) == [
        "0 is in the tier: begin at 3 with epochs [(0, 0)]",
        "fetch 3 to 7",
    ]
    assert b.messages == {3: "3", 4: "4", 5: "5", 6: "6", 7: "7"}
    assert b.epochs == [(0, 0), (1, 3), (2, 5), (3, 7)]
    assert b.files.file(3, ".snapshot").read_bytes() == a.files.file(3, ".snapshot").read_bytes()
    # All of the leader's log but the active segment may be in the tier only.
    a.expire_below(6)
    c = replica(3)
    assert c.follow(a) == [
        "0 is in the tier: begin at 6 with epochs [(0, 0), (1, 3), (2, 5)]",
        "fetch 6 to 7",
    ]
    # Consumers read on from the tier, whoever leads.
    b.lead(4)
    for leader, start in ((a, 6), (b, 3)):
        assert [leader.consume(offset) for offset in range(8)] == read_from(start, 8)


def test_scenario_2_an_out_of_sync_follower_catches_up(stack: Stack, replica: MakeReplica) -> None:
    a, b = replica(1, 3, 6, 9), replica(2)
    a.lead(0)
    a.append("0", "1", "2")
    a.lead(1)
    a.append("3")
    b.follow(a)
    a.append("4")
    a.lead(2)
    a.append("5", "6")
    a.lead(3)
    a.append("7", "8")
    a.ship()
    # 2.1: the leader still has the follower's next offset, so nothing changes.
    c = replica(3)
    assert c.follow(a) == ["fetch 0 to 8"]
    # 2.2: it has not. Epoch 1 ends at 5, beyond the follower's end, so its log is not cut.
    a.append("9", "10", "11")
    a.ship()
    assert ranges(stack) == [(0, 2), (3, 5), (6, 8)]
    a.expire_below(9)
    assert b.follow(a) == [
        "4 is in the tier: begin at 9 with epochs [(0, 0), (1, 3), (2, 5), (3, 7)]",
        "fetch 9 to 11",
    ]
    assert b.messages == {9: "9", 10: "10", 11: "11"}
    assert c.follow(a) == ["fetch 9 to 11"]
    assert [a.consume(offset) for offset in range(12)] == read_from(9, 12)


def test_scenario_3_several_hard_failures(stack: Stack, replica: MakeReplica) -> None:
    a, b = replica(1, 2), replica(2, 1, 2)
    a.lead(0)
    a.append("0", "1", "2")
    a.ship()
    b.follow(a)
    # Both crash. B had not yet written 1 and 2 to its disk, and becomes the leader.
    b.lose_from(1)
    b.lead(1)
    b.append("3")
    assert a.follow(b) == ["cut at 1", "fetch 1 to 1"]
    assert a.messages == {0: "0", 1: "3"}
    b.append("4")
    b.ship()
    assert ranges(stack) == [(0, 1), (1, 1)]
    assert a.follow(b) == ["fetch 2 to 2"]
    a.expire_below(2)
    b.expire_below(2)
    for broker in (a, b):
        assert broker.consume(0, epoch=0) == "0 from the tier"
        assert broker.consume(1) == "3 from the tier"
        assert broker.consume(1, epoch=1) == "3 from the tier"
        assert broker.consume(2, epoch=0) == "fenced: epoch 0 ends at 1"
        assert broker.fetch_once(2, 0).error is FetchError.FENCED_LEADER_EPOCH


def test_scenario_4_unclean_leader_election_with_truncation(
    stack: Stack, replica: MakeReplica
) -> None:
    a, b = replica(1, 3), replica(2, 2)
    a.lead(0)
    a.append("0")
    b.follow(a)
    a.append("1", "2", "3")
    a.ship()
    # A stops; the out-of-sync B becomes the leader.
    b.lead(1)
    b.append("4", "5")
    b.ship()
    assert ranges(stack) == [(0, 1), (0, 2)]
    b.expire_below(2)
    assert b.consume(0, epoch=0) == "0 from the tier"
    assert b.consume(1) == "4 from the tier"
    assert b.consume(1, epoch=1) == "4 from the tier"
    assert b.consume(2, epoch=0) == "fenced: epoch 0 ends at 1"
    # A returns: its records 1 to 3 were never the present leader's.
    assert a.follow(b) == [
        "cut at 1",
        "1 is in the tier: begin at 2 with epochs [(0, 0), (1, 1)]",
        "fetch 2 to 2",
    ]
    assert a.consume(1) == "4 from the tier"


def test_scenario_5_the_tier_diverges(stack: Stack, replica: MakeReplica, tmp_path: Path) -> None:
    a, b = replica(1, 4, 6), replica(2, 4)
    a.lead(0)
    a.append("0", "1")
    b.follow(a)
    a.append("2", "3", "4")
    a.ship()
    # A is down; the out-of-sync B leads, and copies its own records 2 and 3.
    b.lead(1)
    b.append("4'", "5'", "6'")
    b.ship()
    assert ranges(stack) == [(0, 3), (0, 3)]
    # B is down; A leads again, without knowing epoch 1.
    a.lead(2)
    a.append("7", "8")
    a.ship()
    assert ranges(stack) == [(0, 3), (0, 3), (4, 5)]
    a.expire_below(6)
    # B comes back with an empty disk.
    b = Replica(stack, tmp_path / "reimaged", 2)
    assert b.follow(a) == [
        "0 is in the tier: begin at 6 with epochs [(0, 0), (2, 5)]",
        "fetch 6 to 6",
    ]
    assert b.consume(3, epoch=1) == "fenced: epoch 0 ends at 5"
    assert b.fetch_once(3, 1).error is FetchError.FENCED_LEADER_EPOCH
    assert [b.consume(offset) for offset in (2, 3, 5)] == [
        "2 from the tier",
        "3 from the tier",
        "7 from the tier",
    ]


def test_a_follower_becomes_the_leader(stack: Stack, replica: MakeReplica) -> None:
    a, b = replica(1, 3, 5), replica(2, 4, 7)
    a.lead(0)
    a.append("0", "1", "2")
    a.lead(1)
    a.append("3", "4", "5")
    a.lead(2)
    a.append("6")
    a.ship()
    assert ranges(stack) == [(0, 2), (3, 4)]
    b.follow(a)
    a.append("7", "8")
    # A stops. B finds offset 4 of epoch 1 in the tier, and copies from the segment that has 5.
    b.lead(3)
    b.append("8'")
    b.ship()
    assert ranges(stack) == [(0, 2), (3, 4), (4, 6)]
    # A comes back, and drops what only it had.
    assert a.follow(b) == ["cut at 7", "fetch 7 to 7"]
    assert a.epochs == [(0, 0), (1, 3), (2, 6), (3, 7)]
    b.expire_below(7)
    c = replica(3)
    assert c.follow(b) == [
        "0 is in the tier: begin at 7 with epochs [(0, 0), (1, 3), (2, 6)]",
        "fetch 7 to 7",
    ]
    assert [c.consume(offset, epoch) for offset, epoch in ((2, 0), (5, 1), (6, 2))] == [
        "2 from the tier",
        "5 from the tier",
        "6 from the tier",
    ]
    assert c.consume(7, epoch=2) == "fenced: epoch 2 ends at 7"
