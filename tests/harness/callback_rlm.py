"""Provide RLMs that learn of leadership by calls, and make these calls."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionRole,
    PartitionStops,
    RemoteLogManager,
    StopPartition,
    StopReason,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.retained_log import AT_ONCE, DEADLINE_S
from tests.harness.ship_stack import Stack
from tests.harness.troubles import FailingRsm
from tests.unit.rlm.kafka_bytes import NAME

LEADER, FOLLOWER = PartitionRole.LEADER, PartitionRole.FOLLOWER
REASSIGNED = StopReason.REASSIGNED
TIERING_DISABLED = StopReason.TIERING_DISABLED
TOPIC_DELETED = StopReason.TOPIC_DELETED
ALL_AT_ONCE = replace(AT_ONCE, deletion_grace_ms=0, remover_interval_s=0.0)


def callback_rlm(
    stack: Stack,
    log_dir: Path | None = None,
    rsm: Any = None,
    rlmm: Any = None,
    limits: RlmLimits = ALL_AT_ONCE,
) -> Any:
    """Make an RLM without any leadership yet; a test steps it by hand."""
    return BrokerRemoteLogManager(
        [log_dir or stack.log_dir],
        rsm or stack.rsm,
        rlmm or stack.rlmm,
        limits,
        source=PartitionSource.CALLBACKS,
    )


def broker_beside(log_dir: Path, broker_id: int) -> Path:
    """Make the log directory of a follower that has all of the leader's log."""
    other = Path(shutil.copytree(log_dir, log_dir.with_name(f"logs-{broker_id}")))
    (other / "meta.properties").write_text(f"version=1\nnode.id={broker_id}\ncluster.id=c\n")
    return other


def send_role(
    rlm: RemoteLogManager, role: PartitionRole, epoch: int, name: TopicIdPartition = NAME
) -> LifecycleOutcome:
    (outcome,) = rlm.on_leadership_change(LeadershipDelta((LeadershipChange(name, epoch, role),)))
    return outcome


def stop(
    rlm: RemoteLogManager,
    reason: StopReason,
    epoch: int | None = None,
    name: TopicIdPartition = NAME,
) -> LifecycleOutcome:
    (outcome,) = rlm.stop_partitions(PartitionStops((StopPartition(name, epoch, reason),)))
    return outcome


def refused_as(outcome: LifecycleOutcome) -> type[RemoteStorageError] | None:
    return None if outcome is None else type(outcome)


def turn(scheduler: Any) -> None:
    scheduler.tick()
    assert scheduler.wait_idle(DEADLINE_S)


def removing_turns(rlm: Any, turns: int = 3) -> None:
    for _ in range(turns):
        turn(rlm.lanes.removal)


class HeldCopies:
    """An RSM in which a copy waits, on request, until the test releases it."""

    def __init__(self, stack: Stack) -> None:
        self.rsm = FailingRsm(stack.rsm)
        self.rsm.before_copy = self._before_copy
        self.copied_from: list[int] = []
        self._hold_at: int | None = None
        self._is_held, self._go_on = Event(), Event()

    def _before_copy(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.copied_from.append(metadata.start_offset)
        if metadata.start_offset == self._hold_at:
            self._is_held.set()
            assert self._go_on.wait(DEADLINE_S)

    @contextmanager
    def held(self, rlm: Any, start_offset: int) -> Iterator[None]:
        """Hold the copy pass of `rlm` at the segment that begins at `start_offset` during the
        block.

            The pass continues after the block, to its end.
        """
        self._hold_at = start_offset
        rlm.lanes.copies.tick()
        assert self._is_held.wait(DEADLINE_S)
        try:
            yield
        finally:
            self._go_on.set()
        assert rlm.lanes.copies.wait_idle(DEADLINE_S)
