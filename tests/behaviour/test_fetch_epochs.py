"""Test what Fetch answers to a reader's leader epochs (KIP-320)."""

import shutil

import pytest

from services.api.lineage import EpochEnd
from services.api.offset_queries import EpochQuery
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    PartitionRole,
    RemoteLogManager,
)
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.callback_rlm import FOLLOWER, LEADER, callback_rlm, send_role
from tests.harness.ship_stack import EVERYTHING, Stack, lose_rolled_segments
from tests.harness.troubles import FailingRlmm
from tests.unit.rlm.kafka_bytes import NAME, three_segments

FENCED, UNKNOWN = FetchError.FENCED_LEADER_EPOCH, FetchError.UNKNOWN_LEADER_EPOCH
NONE, OUT_OF_RANGE = FetchError.NONE, FetchError.OFFSET_OUT_OF_RANGE


@pytest.fixture
def stack(stack: Stack) -> Stack:
    """A log of offsets 0 to 24, in epoch 0, from 8 on 2 and from 20 on 5."""
    stack.files = three_segments(stack.log_dir)
    stack.files.epochs((0, 0), (2, 8), (5, 20))
    return stack


def answer(
    rlm: RemoteLogManager, offset: int, *, current: int | None = None, last: int | None = None
) -> FetchPart:
    wanted = FetchPartition(NAME, offset, EVERYTHING, current, last)
    return next(iter(rlm.fetch(FetchRequest((wanted,), EVERYTHING))))


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, FENCED), (5, NONE), (6, UNKNOWN), (2**31 - 1, UNKNOWN), (0, FENCED)]
)
def test_a_leader_by_its_log_knows_the_epoch_of_its_log(
    stack: Stack, epoch: int, error: FetchError
) -> None:
    assert answer(stack.rlm(), 22, current=epoch).error is error


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
@pytest.mark.parametrize(("epoch", "error"), [(6, FENCED), (7, NONE), (8, UNKNOWN)])
def test_a_role_has_the_epoch_that_came_with_it(
    stack: Stack, role: PartitionRole, epoch: int, error: FetchError
) -> None:
    rlm = callback_rlm(stack)
    assert send_role(rlm, role, 7) is None
    part = answer(rlm, 22, current=epoch)
    assert part.error is error
    assert (part.error_message == "") == (error is NONE)


@pytest.mark.parametrize(("epoch", "error"), [(1, FENCED), (2, NONE), (99, NONE)])
def test_the_tier_alone_knows_only_which_epochs_are_over(
    stack: Stack, epoch: int, error: FetchError
) -> None:
    stack.ship()
    assert answer(stack.tier_reader(), 3, current=epoch).error is error


@pytest.mark.parametrize(
    ("offset", "last", "expected"),
    [
        (5, 0, None),
        (8, 0, None),
        (9, 0, EpochEnd(0, 8)),
        (20, 2, None),
        (21, 2, EpochEnd(2, 20)),
        (12, 1, EpochEnd(0, 8)),
        (8, 1, EpochEnd(0, 8)),
        (22, 4, EpochEnd(2, 20)),
        (25, 5, None),
        (26, 5, EpochEnd(5, 25)),
    ],
)
def test_a_reader_whose_log_differs_gets_the_end_of_what_is_common(
    stack: Stack, offset: int, last: int, expected: EpochEnd | None
) -> None:
    part = answer(stack.rlm(), offset, last=last)
    assert (part.error, part.diverging_epoch) == (NONE, expected)
    assert not (expected and part.record_batches)


def test_a_later_epoch_than_all_of_the_log_is_out_of_range(stack: Stack) -> None:
    part = answer(stack.rlm(), 22, last=6)
    assert part.error is OUT_OF_RANGE
    assert "leader epoch 6" in part.error_message


@pytest.mark.parametrize(("offset", "last"), [(26, None), (26, 5), (22, 6), (30, 6)])
def test_the_end_of_a_followers_log_is_no_end_of_the_partition(
    stack: Stack, offset: int, last: int | None
) -> None:
    """It follows the leader, perhaps on a disk that was replaced: a reader may be ahead of it."""
    rlm = callback_rlm(stack)
    assert send_role(rlm, FOLLOWER, 7) is None
    part = answer(rlm, offset, last=last)
    assert (part.error, part.diverging_epoch) == (FetchError.NOT_LEADER_OR_FOLLOWER, None)
    assert "call the leader's RLM" in part.error_message


@pytest.mark.parametrize(
    ("role", "expected"),
    [(LEADER, (NONE, EpochEnd(2, 20))), (FOLLOWER, (FetchError.NOT_LEADER_OR_FOLLOWER, None))],
)
def test_only_a_leader_tells_where_epochs_end(
    stack: Stack, role: PartitionRole, expected: tuple[FetchError, EpochEnd | None]
) -> None:
    """Source: ReplicaManager.lastOffsetForLeaderEpoch (fetchOnlyFromLeader)."""
    rlm = callback_rlm(stack)
    assert send_role(rlm, role, 7) is None
    (answer,) = rlm.offsets_for_leader_epochs((EpochQuery(NAME, 4),))
    assert (answer.error, answer.end) == expected


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
@pytest.mark.parametrize("last", [None, 5])
def test_the_end_of_the_tier_is_no_end_of_a_partition_whose_disk_is_replaced(
    stack: Stack, role: PartitionRole, last: int | None
) -> None:
    stack.ship()
    rlm = callback_rlm(stack)
    assert send_role(rlm, role, 7) is None
    assert answer(rlm, 22, last=last).error is NONE
    shutil.rmtree(stack.files.path)
    part = answer(rlm, 22, last=last)
    assert (part.error, part.diverging_epoch) == (FetchError.NOT_LEADER_OR_FOLLOWER, None)


@pytest.mark.parametrize(("offset", "last"), [(21, None), (20, 6), (21, 2)])
def test_the_end_of_the_tier_is_no_end_of_a_partition_that_moved_away(
    stack: Stack, offset: int, last: int | None
) -> None:
    """Another broker may have more, unless this RLM serves what no broker has any more."""
    stack.ship()
    shutil.rmtree(stack.files.path)
    rlm = callback_rlm(stack)
    part = answer(rlm, offset, last=last)
    assert (part.error, part.diverging_epoch) == (FetchError.NOT_LEADER_OR_FOLLOWER, None)
    assert "call the leader's RLM" in part.error_message
    assert answer(rlm, 9, last=2).error is NONE
    # A later epoch of the tier says where an earlier one ends, whoever has the log.
    assert answer(rlm, 9, last=0).diverging_epoch == EpochEnd(0, 8)
    assert answer(stack.tier_reader(), 21).error is OUT_OF_RANGE


def test_an_overtaken_leader_does_not_know_the_end_of_the_partition(stack: Stack) -> None:
    rlm = callback_rlm(stack)
    assert send_role(rlm, LEADER, 4) is None
    assert answer(rlm, 26, last=5).error is FetchError.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("offset", "last", "expected"),
    [(25, 5, None), (9, 0, EpochEnd(0, 8)), (22, 4, EpochEnd(2, 20))],
)
def test_a_follower_knows_where_its_earlier_epochs_end(
    stack: Stack, offset: int, last: int, expected: EpochEnd | None
) -> None:
    rlm = callback_rlm(stack)
    assert send_role(rlm, FOLLOWER, 7) is None
    part = answer(rlm, offset, last=last)
    assert (part.error, part.diverging_epoch) == (NONE, expected)


def test_a_log_whose_topic_id_is_not_written_yet_is_read_later(stack: Stack) -> None:
    rlm = stack.rlm()
    assert answer(rlm, 3).error is NONE
    (stack.files.path / "partition.metadata").unlink()
    stack.files.file(20, ".log").touch()
    assert answer(rlm, 3).error is FetchError.NOT_LEADER_OR_FOLLOWER


def test_epochs_that_the_broker_forgot_come_from_the_tier(stack: Stack) -> None:
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    stack.files.epochs((5, 20))
    rlm = stack.rlm()
    assert answer(rlm, 9, last=0).diverging_epoch == EpochEnd(0, 8)
    assert answer(stack.tier_reader(), 9, last=0).diverging_epoch == EpochEnd(0, 8)


def test_epochs_of_the_log_need_no_database(stack: Stack) -> None:
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    part = answer(rlm, 9, current=5, last=0)
    assert (part.error, part.diverging_epoch) == (NONE, EpochEnd(0, 8))
