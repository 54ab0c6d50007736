"""Test what a replica on another broker gets: the leader's log, and the state to begin with."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.api.errors import (
    CorruptSegmentError,
    FencedLeaderEpochError,
    InvalidRangeError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.lineage import Lineage
from services.api.offset_queries import RecordsToDelete
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest, FetchRole
from services.api.replicas import AuxStateQuery, ReplicaService
from services.api.segments import RemoteLogSegmentState, segment_leader_epochs
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.callback_rlm import FOLLOWER, LEADER, callback_rlm, send_role
from tests.harness.ship_stack import EVERYTHING, Stack, lose_rolled_segments, read
from tests.harness.tier import SmallTier
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    producer_snapshot,
    three_segments,
    write_log_dir,
)

MOVED = FetchError.OFFSET_MOVED_TO_TIERED_STORAGE


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    """A log of offsets 0 to 24, in epoch 0, from 8 on 2 and from 20 on 5."""
    files = three_segments(log_dir)
    files.epochs((0, 0), (2, 8), (5, 20))
    return files


@pytest.fixture
def leader(stack: Stack, files: PartitionFiles) -> BrokerRemoteLogManager:
    """The leader's RLM; its own log begins at 20."""
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    return stack.rlm()


def follow(rlm: ReplicaService, offset: int) -> bytes | FetchError:
    wanted = FetchPartition(NAME, offset, EVERYTHING)
    parts = list(rlm.fetch(FetchRequest((wanted,), EVERYTHING, role=FetchRole.FOLLOWER)))
    if parts[0].error is not FetchError.NONE:
        return parts[0].error
    return b"".join(part.record_batches for part in parts)


def lineage(*entries: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(entries))


@pytest.mark.parametrize(
    ("offset", "answer"),
    [
        (0, MOVED),
        (19, MOVED),
        (20, batch(20, 5, leader_epoch=5)),
        (25, b""),
        (26, FetchError.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_follower_gets_the_leaders_own_log_only(
    leader: ReplicaService, offset: int, answer: bytes | FetchError
) -> None:
    assert follow(leader, offset) == answer


def test_below_the_tiers_log_start_a_follower_is_out_of_range(leader: ReplicaService) -> None:
    leader.delete_records((RecordsToDelete(NAME, 7),))
    assert [follow(leader, 6), follow(leader, 7)] == [FetchError.OFFSET_OUT_OF_RANGE, MOVED]


def test_a_follower_is_sent_to_the_tier_whatever_the_tier_has(
    leader: ReplicaService, stack: Stack
) -> None:
    _, newer = stack.segments()
    SmallTier(stack.rsm, stack.rlmm).move(newer, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    # No log start was raised and no gap is recorded: nothing says yet where a reader goes on.
    assert read(leader, 12) is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    assert follow(leader, 12) is MOVED


@pytest.mark.usefixtures("files")
def test_a_follower_gets_what_not_all_replicas_have_yet(stack: Stack) -> None:
    high_watermarks(stack.log_dir, {(NAME.topic, NAME.partition): 20})
    assert follow(stack.rlm(), 20) == batch(20, 5, leader_epoch=5)


@pytest.mark.usefixtures("files")
def test_only_the_leader_serves_followers(stack: Stack) -> None:
    rlm = callback_rlm(stack)
    send_role(rlm, FOLLOWER, 5)
    assert follow(rlm, 20) is FetchError.NOT_LEADER_OR_FOLLOWER
    stack.ship()
    assert follow(stack.tier_reader(), 0) is FetchError.NOT_LEADER_OR_FOLLOWER
    send_role(rlm, LEADER, 6)
    assert follow(rlm, 20) == batch(20, 5, leader_epoch=5)


@pytest.mark.parametrize(
    ("offset", "next_offset", "epochs"),
    [(20, 20, ((0, 0), (2, 8))), (11, 20, ((0, 0), (2, 8))), (10, 10, ((0, 0), (2, 8)))],
)
def test_a_replica_begins_after_the_segment_before_the_offset(
    leader: ReplicaService, offset: int, next_offset: int, epochs: tuple[tuple[int, int], ...]
) -> None:
    state = leader.build_remote_log_aux_state(AuxStateQuery(NAME, offset))
    assert (state.next_offset, state.lineage) == (next_offset, lineage(*epochs))
    assert state.producer_snapshot == producer_snapshot()


def test_leader_epochs_are_cut_at_the_log_start(
    leader: ReplicaService, files: PartitionFiles
) -> None:
    leader.delete_records((RecordsToDelete(NAME, 9),))
    state = leader.build_remote_log_aux_state(AuxStateQuery(NAME, 20))
    assert (state.log_start_offset, state.lineage) == (9, lineage((2, 9)))
    files.epochs((5, 20))
    state = leader.build_remote_log_aux_state(AuxStateQuery(NAME, 10))
    assert (state.next_offset, state.lineage) == (10, lineage((2, 9)))
    with pytest.raises(InvalidRangeError, match="offset: 8 is below the tier's log start 9"):
        leader.build_remote_log_aux_state(AuxStateQuery(NAME, 8))


def test_an_rlm_without_the_log_takes_the_epoch_from_the_query(
    leader: ReplicaService, stack: Stack
) -> None:
    other = stack.tier_reader()
    state = other.build_remote_log_aux_state(AuxStateQuery(NAME, 20, leader_epoch=2))
    assert state == leader.build_remote_log_aux_state(AuxStateQuery(NAME, 20))
    with pytest.raises(RetriableRemoteStorageError, match="offset 19 of leader epoch 0 is not in"):
        other.build_remote_log_aux_state(AuxStateQuery(NAME, 20, leader_epoch=0))


def test_a_replica_waits_until_the_copy_has_finished(stack: Stack, files: PartitionFiles) -> None:
    rlm = stack.rlm()
    with pytest.raises(RetriableRemoteStorageError, match="is not in the tier yet; retry"):
        rlm.build_remote_log_aux_state(AuxStateQuery(NAME, 20))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            rlm.build_remote_log_aux_state, AuxStateQuery(NAME, 20, max_wait_ms=30_000)
        )
        stack.ship()
        assert waiting.result().next_offset == 20


def test_the_copy_of_a_deposed_leader_is_no_state_of_the_present_one(
    stack: Stack, tmp_path: Path
) -> None:
    deposed = three_segments(stack.log_dir)
    deposed.epochs((0, 0))
    stack.ship()
    logs = write_log_dir(tmp_path / "present", broker_id=8)
    three_segments(logs).epochs((0, 0), (1, 15))
    with pytest.raises(RetriableRemoteStorageError, match="offset 14 of leader epoch 0 is not in"):
        stack.rlm(logs).build_remote_log_aux_state(AuxStateQuery(NAME, 15))


def test_leader_epochs_that_are_over_or_not_known_yet(leader: ReplicaService) -> None:
    def error(epoch: int) -> type[RemoteStorageError] | None:
        try:
            leader.build_remote_log_aux_state(AuxStateQuery(NAME, 20, current_leader_epoch=epoch))
        except RemoteStorageError as e:
            return type(e)
        return None

    expected = [FencedLeaderEpochError, None, RetriableRemoteStorageError]
    assert [error(epoch) for epoch in (4, 5, 6)] == expected


def test_a_damaged_snapshot_is_not_handed_out(stack: Stack, leader: ReplicaService) -> None:
    for indexes in stack.objects.rglob("*.indexes"):
        indexes.write_bytes(bytes(indexes.stat().st_size))
    with pytest.raises(CorruptSegmentError):
        leader.build_remote_log_aux_state(AuxStateQuery(NAME, 20))


def test_states_are_counted(leader: BrokerRemoteLogManager) -> None:
    leader.build_remote_log_aux_state(AuxStateQuery(NAME, 20))
    with pytest.raises(RetriableRemoteStorageError):
        leader.build_remote_log_aux_state(AuxStateQuery(NAME, 99))
    counts = {
        family.name.removeprefix("sediment_rlm_build_remote_log_aux_state_"): sum(
            sample.value for sample in family.samples
        )
        for family in leader.topic_counts.collect()
    }
    assert (counts["requests"], counts["errors"]) == (2, 1)
