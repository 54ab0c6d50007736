"""Define the tests of leadership calls that every RemoteLogManager must pass."""

from dataclasses import replace

import pytest

from services.api.errors import (
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery, RemotePartitionDeleteState
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionRole,
    PartitionStops,
    RemoteLogManager,
    StopPartition,
    StopReason,
    all_descriptions,
)
from services.api.remote_log_metadata_manager import all_events, all_partitions
from services.api.segments import RemoteLogSegmentState
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, three_segments

LEADER, FOLLOWER = PartitionRole.LEADER, PartitionRole.FOLLOWER
OTHERS = [replace(NAME, partition=number) for number in (1, 2)]


def change(name: TopicIdPartition, epoch: int, role: PartitionRole = LEADER) -> LeadershipChange:
    return LeadershipChange(name, epoch, role)


def reported(rlm: RemoteLogManager, *changes: LeadershipChange) -> list[LifecycleOutcome]:
    return rlm.on_leadership_change(LeadershipDelta(changes))


def stopped(
    rlm: RemoteLogManager, reason: StopReason, *names: TopicIdPartition, epoch: int | None = None
) -> list[LifecycleOutcome]:
    stops = tuple(StopPartition(name, epoch, reason) for name in names)
    return rlm.stop_partitions(PartitionStops(stops))


def roles(rlm: RemoteLogManager) -> dict[TopicIdPartition, PartitionRole | None]:
    return {found.topic_id_partition: found.role for found in all_descriptions(rlm)}


class RlmLifecycleContract:
    """Tests leadership calls with three fixtures.

    The fixtures are `stack`; `shipped`, in which NAME's two rolled segments are in the tier; `rlm`,
    which has NAME's log and no leadership yet.
    """

    @pytest.fixture
    def shipped(self, stack: Stack) -> Stack:
        three_segments(stack.log_dir)
        stack.ship()
        return stack

    def test_roles_are_taken_on_in_order(self, shipped: Stack, rlm: RemoteLogManager) -> None:
        outcomes = reported(rlm, change(NAME, 3), change(OTHERS[0], 0, FOLLOWER))
        assert outcomes == [None, None]
        assert roles(rlm) == {NAME: LEADER, OTHERS[0]: FOLLOWER}

    def test_a_role_again_is_a_success(self, shipped: Stack, rlm: RemoteLogManager) -> None:
        for _ in range(2):
            assert reported(rlm, change(NAME, 3)) == [None]
        assert reported(rlm, change(NAME, 3, FOLLOWER)) == [None]
        assert roles(rlm) == {NAME: FOLLOWER}

    def test_a_stale_epoch_is_that_partitions_outcome_and_no_others(
        self, shipped: Stack, rlm: RemoteLogManager
    ) -> None:
        reported(rlm, change(NAME, 3))
        stale, fresh = reported(rlm, change(NAME, 2, FOLLOWER), change(OTHERS[0], 0))
        assert isinstance(stale, FencedLeaderEpochError)
        assert "leader epoch 2 is older than 3" in str(stale)
        assert fresh is None
        assert roles(rlm) == {NAME: LEADER, OTHERS[0]: LEADER}
        for reason in StopReason:
            (stale,) = stopped(rlm, reason, NAME, epoch=2)
            assert isinstance(stale, FencedLeaderEpochError)
        assert roles(rlm) == {NAME: LEADER, OTHERS[0]: LEADER}
        assert [s.delete_state for s in all_partitions(shipped.rlmm)] == [None]

    def test_reassigned_touches_nothing_of_the_tier(
        self, shipped: Stack, rlm: RemoteLogManager
    ) -> None:
        reported(rlm, change(NAME, 3))
        before = shipped.segments()
        for _ in range(2):
            assert stopped(rlm, StopReason.REASSIGNED, NAME, OTHERS[0]) == [None, None]
        assert roles(rlm) == {NAME: None}
        assert shipped.segments() == before

    def test_topic_deleted_marks_once(self, shipped: Stack, rlm: RemoteLogManager) -> None:
        reported(rlm, change(NAME, 3))
        for _ in range(2):
            assert stopped(rlm, StopReason.TOPIC_DELETED, NAME, epoch=3) == [None]
        (found,) = all_partitions(shipped.rlmm)
        assert found.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        assert len(shipped.segments()) == 2
        events = all_events(shipped.rlmm, EventQuery(NAME))
        assert [event.reason for event in events].count("topic deleted") == 1

    def test_tiering_disabled_is_the_topics_to_allow_and_the_leaders_to_do(
        self, shipped: Stack, rlm: RemoteLogManager
    ) -> None:
        (untold,) = stopped(rlm, StopReason.TIERING_DISABLED, NAME)
        assert isinstance(untold, InvalidStateTransitionError)
        reported(rlm, change(NAME, 3))
        (refused,) = stopped(rlm, StopReason.TIERING_DISABLED, NAME)
        assert isinstance(refused, DeletionRefusedError)
        assert "remote.log.delete.on.disable" in str(refused)
        assert roles(rlm) == {NAME: LEADER}
        shipped.rlmm.put_topic_config(
            NAME.topic_id, {"remote.log.delete.on.disable": "true"}, now=True
        )
        for _ in range(2):
            assert stopped(rlm, StopReason.TIERING_DISABLED, NAME, epoch=3) == [None]
        marked = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        assert [segment.state for segment in shipped.segments()] == [marked] * 2

    def test_a_false_name_is_that_partitions_outcome_and_no_others(
        self, shipped: Stack, rlm: RemoteLogManager
    ) -> None:
        renamed = replace(OTHERS[0], topic="u")
        taken, refused = reported(rlm, change(NAME, 3), change(renamed, 3))
        assert taken is None
        assert isinstance(refused, InvalidRequestError)
        assert "changes[1].topic_id_partition.topic: " in str(refused)
        assert "has the topic id of another topic" in str(refused)
        assert roles(rlm) == {NAME: LEADER}
        refused, stop = stopped(rlm, StopReason.TOPIC_DELETED, renamed, NAME)
        assert isinstance(refused, InvalidRequestError)
        assert stop is None
        (found,) = all_partitions(shipped.rlmm)
        assert found.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
