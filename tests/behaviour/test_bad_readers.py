"""Test wrong questions of readers, and damage of what they read, through both doors of RLM."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, FetchPartition, IsolationLevel
from services.records.index_files import AbortedTxn
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import RlmLimits
from tests.harness.broker_answers import BrokerFetch
from tests.harness.doors import CODES, DOORS, Door, opened
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, Stack, lose_rolled_segments
from tests.harness.troubles import TroubledPartition
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    NAME,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    three_segments,
)

SOUND = NAME
SICK = replace(NAME, partition=1)
UNKNOWN_ID = replace(NAME, topic_id=UUID(int=9), topic="unknown")
COMMITTED = IsolationLevel.READ_COMMITTED
HASTY = RlmLimits(read=ReadLimits(wait_s=0.5))

pytestmark = [pytest.mark.deep, pytest.mark.parametrize("door", DOORS)]


def with_transactions(log_dir: Path, name: TopicIdPartition) -> PartitionFiles:
    """Write two rolled segments; an aborted transaction is in the first one."""
    files = PartitionFiles(log_dir, name)
    files.segment(0, [in_transaction(0, 7, 4), marker(4, 7, ABORT), batch(5, 5)])
    files.file(0, ".txnindex").write_bytes(AbortedTxn(7, 0, 4, 5).to_bytes())
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    files.snapshot(20)
    files.segment(20, [batch(20)])
    return files


def answers_of(
    door: Door, wanted: FetchPartition, isolation: IsolationLevel = COMMITTED
) -> tuple[FetchError, bytes]:
    """Fetch the wanted partition between two sound ones; return its error and records.

    Again while the store is slower than RLM waits.
    """
    sound = FetchPartition(SOUND, 5, EVERYTHING)
    after = FetchPartition(replace(NAME, partition=2), 5, EVERYTHING)

    def in_time() -> list[BrokerFetch]:
        found = door.fetch_all([sound, wanted, after], EVERYTHING, isolation)
        assert [each.error for each in (found[0], found[-1])] == [0, 0]
        is_late = any(not each.error and not each.records for each in found)
        return [] if is_late else found

    _, answer, _ = eventually(in_time)
    names = {code: error for error, code in CODES.items()}
    return names[answer.error], answer.records


@pytest.fixture
def shipped(stack: Stack) -> Stack:
    """Three partitions with two rolled segments each, in the tier only."""
    for number in (0, 2):
        three_segments(stack.log_dir, replace(NAME, partition=number))
    with_transactions(stack.log_dir, SICK)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    return stack


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (FetchPartition(SICK, 22, 1), FetchError.OFFSET_OUT_OF_RANGE),
        (FetchPartition(SICK, 2**63 - 1, 1), FetchError.OFFSET_OUT_OF_RANGE),
        (FetchPartition(SICK, 5, 1, current_leader_epoch=7), FetchError.UNKNOWN_LEADER_EPOCH),
        (FetchPartition(SICK, 5, 1, last_fetched_epoch=7), FetchError.OFFSET_OUT_OF_RANGE),
        (FetchPartition(replace(NAME, partition=99), 5, 1), FetchError.UNKNOWN_TOPIC_ID),
        (FetchPartition(UNKNOWN_ID, 5, 1), FetchError.UNKNOWN_TOPIC_ID),
    ],
    ids=["past the end", "greatest", "future epoch", "future history", "partition", "topic"],
)
def test_a_wrong_question_is_answered_in_its_part_alone(
    shipped: Stack, log_dir: Path, door: str, wanted: FetchPartition, expected: FetchError
) -> None:
    with opened(door, shipped.rlm(log_dir)) as opened_door:
        assert answers_of(opened_door, wanted) == (expected, b"")


def test_an_epoch_that_is_over_is_fenced(stack: Stack, door: str) -> None:
    for number in (0, 1, 2):
        files = three_segments(stack.log_dir, replace(NAME, partition=number))
        files.epochs((0, 0), (4, 10))
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    wanted = FetchPartition(SICK, 5, EVERYTHING, current_leader_epoch=3)
    with opened(door, stack.rlm()) as opened_door:
        assert answers_of(opened_door, wanted) == (FetchError.FENCED_LEADER_EPOCH, b"")


@pytest.mark.parametrize(
    ("first", "second", "offset", "answer"),
    [
        (20, 30, 5, (FetchError.OFFSET_OUT_OF_RANGE, b"")),
        (0, 20, 10, (FetchError.NONE, batch(20, 10))),
        (0, 20, 19, (FetchError.NONE, batch(20, 10))),
    ],
    ids=["below the log start", "a gap begins", "a gap ends"],
)
def test_below_the_log_start_is_out_of_range_and_a_gap_is_passed(
    stack: Stack, door: str, first: int, second: int, offset: int, answer: tuple[FetchError, bytes]
) -> None:
    for number in (0, 2):
        three_segments(stack.log_dir, replace(NAME, partition=number))
    files = PartitionFiles(stack.log_dir, SICK)
    for base in (first, second):
        files.segment(base, [batch(base, 10)])
        files.snapshot(base + 10)
        files.segment(base + 10, [batch(base + 10)])
        stack.ship()
        for file in files.path.glob("0*"):
            file.unlink()
    assert stack.ranges(SICK) == [(first, first + 9), (second, second + 9)]
    with opened(door, stack.tier_reader()) as opened_door:
        wanted = FetchPartition(SICK, offset, EVERYTHING)
        assert answers_of(opened_door, wanted) == answer


def damage_log(stack: Stack) -> None:
    path = stack.object_of(stack.segments(SICK)[0])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_indexes(stack: Stack) -> None:
    log = stack.object_of(stack.segments(SICK)[0])
    (path,) = log.parent.glob(f"{log.stem.partition('.')[0]}*.indexes")
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def lose_log(stack: Stack) -> None:
    stack.object_of(stack.segments(SICK)[0]).unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_log, FetchError.CORRUPT_MESSAGE),
        (lose_log, FetchError.UNKNOWN_SERVER_ERROR),
    ],
)
def test_damage_of_a_partition_is_in_its_part_alone(
    shipped: Stack, log_dir: Path, door: str, damage: Callable[[Stack], None], expected: FetchError
) -> None:
    damage(shipped)
    with opened(door, shipped.rlm(log_dir)) as opened_door:
        for _ in range(2):
            answer = answers_of(opened_door, FetchPartition(SICK, 5, EVERYTHING))
            assert answer == (expected, b"")


def test_damaged_indexes_cost_the_reader_nothing(shipped: Stack, log_dir: Path, door: str) -> None:
    with opened(door, shipped.rlm(log_dir)) as opened_door:
        intact = answers_of(opened_door, FetchPartition(SICK, 5, EVERYTHING))
    damage_indexes(shipped)
    with opened(door, shipped.rlm(log_dir)) as opened_door:
        answer = answers_of(opened_door, FetchPartition(SICK, 5, EVERYTHING))
    assert answer == intact
    assert answer[0] is FetchError.NONE


@pytest.mark.parametrize("method", ["fetch_index", "fetch_log_segment"])
def test_a_store_that_refuses_is_a_storage_error(
    shipped: Stack, log_dir: Path, door: str, method: str
) -> None:
    def refuse() -> None:
        raise RetriableRemoteStorageError("503 SlowDown")

    rsm: Any = TroubledPartition(shipped.rsm, SICK, frozenset({method}), refuse)
    rlm = shipped.rlm(log_dir, rsm=rsm, limits=HASTY)
    with opened(door, rlm) as opened_door:
        answer = answers_of(opened_door, FetchPartition(SICK, 5, EVERYTHING))
    assert answer == (FetchError.TIERED_STORAGE_NOT_AVAILABLE, b"")
