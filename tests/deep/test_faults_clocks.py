"""The clock of RLM's host, or of RSM's, is a year wrong, or jumps by a year while they run: nothing
is deleted by it, and everything goes on, or goes on when the clock is right."""

import pytest

from services.api.calls import MutationContext
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_partitions
from services.workflows.deletion import UNKNOWN_BROKER
from tests.harness.clocks import (
    EXPIRATION,
    PARTITIONS,
    SEGMENTS,
    WrongClock,
    now_ms,
    wrong,
)
from tests.harness.eventually import eventually
from tests.harness.processes import run_until_killed
from tests.harness.variants import first_of
from tests.harness.world import FINISHED, World

__all__ = ["wrong"]

YEAR_S = 365 * 24 * 3600
HALF_A_YEAR_MS = YEAR_S * 1000 // 2
RECORDS_AT_MS = 1_760_000_000_000  # of make_log_dir
Jump = tuple[int, int]
JUMPS: list[Jump] = [(0, YEAR_S), (0, -YEAR_S), (YEAR_S, -YEAR_S)]
"""The clock's error at the start, and from a moment on, s."""


def age_ms() -> int:
    """Of the records."""
    return now_ms() - RECORDS_AT_MS


def due_ms() -> str:
    """A retention by which all is due, and by a clock that is a year behind nothing."""
    return str(age_ms() - min(age_ms() // 2, HALF_A_YEAR_MS))


@pytest.mark.parametrize(("at_first", "then"), first_of(pytest.param(*jump) for jump in JUMPS))
def test_a_clock_that_jumps_deletes_nothing_and_holds_nothing_up(
    wrong: WrongClock, at_first: int, then: int
) -> None:
    """By the right clock nothing is due for half a year; by one a year ahead everything is."""
    world = wrong.world
    world.set_retention(
        {
            "retention.ms": str(age_ms() + HALF_A_YEAR_MS),
            "remote.copy.lag.ms": "3600000",
        }
    )
    wrong.is_off_by(at_first)
    wrong.rlm.start()
    eventually(wrong.is_shipped, 60_000)
    wrong.is_off_by(then)
    wrong.roll()
    eventually(wrong.is_shipped, 60_000)
    wrong.keeps_retention(EXPIRATION)
    assert len(world.rows()) == PARTITIONS * (SEGMENTS + 1)
    world.assert_all_shipped()


@pytest.mark.parametrize("off_by", first_of([YEAR_S, -YEAR_S]))
def test_with_a_wrong_clock_at_rsm_the_store_is_as_good_as_away(
    wrong: WrongClock, off_by: int
) -> None:
    """S3 refuses a request that bears another time: RequestTimeTooSkewed."""
    world = wrong.world
    wrong.rlm.start()
    eventually(wrong.is_shipped, 60_000)
    shipped = world.rows()
    wrong.is_off_by(off_by, "rsm")
    with world.storage() as rsm, pytest.raises(RetriableRemoteStorageError, match="the clock"):
        b"".join(rsm.fetch_log_segment(shipped[0], 0))
    wrong.roll()
    wrong.passes("AddRemoteLogSegmentMetadata", 1)
    assert [row for row in world.rows() if row.state is FINISHED] == shipped
    wrong.is_off_by(0, "rsm")
    eventually(wrong.is_shipped, 60_000)
    world.assert_all_shipped()


def test_segments_due_by_the_database_clock_are_deleted_despite_the_host_clock(
    wrong: WrongClock,
) -> None:
    world = wrong.world
    world.ship()
    world.set_retention({"retention.ms": due_ms()})
    wrong.is_off_by(-YEAR_S)
    wrong.rlm.start()
    eventually(lambda: not world.rows() and not world.object_keys(), 60_000)


def test_a_lease_of_a_killed_copy_ends_when_the_database_says_so(wrong: WrongClock) -> None:
    wrong.is_off_by(-YEAR_S)
    run_until_killed(wrong.rlm, "copy.some_bytes_sent", 3)
    assert [row for row in wrong.world.rows() if row.state is not FINISHED]
    wrong.is_off_by(YEAR_S)
    wrong.rlm.start()
    eventually(wrong.is_shipped, 60_000)
    wrong.world.assert_all_shipped()


def test_a_deleted_topic_keeps_its_grace(wrong: WrongClock) -> None:
    world = wrong.world
    world.ship()
    rows = len(world.rows())
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    with world.metadata() as rlmm:
        for name in world.local_segments():
            event = RemotePartitionDeleteMetadata(name, marked, now_ms(), UNKNOWN_BROKER)
            rlmm.put_remote_partition_delete_metadata(event, MutationContext(reason="test"))
    wrong.is_off_by(YEAR_S)
    wrong.rlm.start()
    wrong.passes("ListPartitions")
    assert len(world.rows()) == rows
    assert _delete_states(world) == {marked}


def _delete_states(world: World) -> set[RemotePartitionDeleteState | None]:
    ours: set[TopicIdPartition] = set(world.local_segments())
    with world.metadata() as rlmm:
        return {s.delete_state for s in all_partitions(rlmm) if s.topic_id_partition in ours}
