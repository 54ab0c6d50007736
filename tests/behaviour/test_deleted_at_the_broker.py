"""Test records that kafka-delete-records deleted at a broker beside RLM: no loss, and named."""

import os

import pytest

from services.api.offset_queries import RecordsToDelete
from services.api.partitions import DELETED_AT_BROKER, OffsetGap
from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.manager import BrokerRemoteLogManager
from tests.behaviour.test_lost_before_copy import lose_before_copy
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack, description
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

CUT = 22


class Broker:
    """The files that a broker writes for one partition, each in its own time."""

    def __init__(self, files: PartitionFiles) -> None:
        self.files = files
        self._log_dir = files.path.parent
        self._written_ns = os.stat(files.path / "leader-epoch-checkpoint").st_mtime_ns
        self._write("replication-offset-checkpoint", f"0\n1\n{NAME.topic} 0 26\n")

    def cuts_epochs(self) -> None:
        """Cut the leader epochs, at once."""
        self.files.epochs((0, CUT))
        self._written_ns += 10**9
        os.utime(self.files.path / "leader-epoch-checkpoint", ns=(0, self._written_ns))

    def writes_log_starts(self, *lines: str) -> None:
        """Write all log starts, once a minute."""
        text = "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines))
        self._write("log-start-offset-checkpoint", text)

    def _write(self, name: str, text: str) -> None:
        self._written_ns += 10**9
        path = self._log_dir / name
        path.write_text(text)
        os.utime(path, ns=(0, self._written_ns))


@pytest.fixture
def broker(stack: Stack) -> Broker:
    """Provide a log: 0 to 9 are in the tier, and all below 22 was deleted a moment ago."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    take_turns(stack.rlm(limits=AT_ONCE))
    assert stack.ranges() == [(0, 9)]
    lose_before_copy(files, 20)
    broker = Broker(files)
    broker.cuts_epochs()
    return broker


def problems(rlm: BrokerRemoteLogManager) -> tuple[Problem, ...]:
    return description(rlm).problems


@pytest.mark.parametrize("is_new", [True, False])
def test_nothing_is_decided_before_the_broker_has_written_its_log_start(
    stack: Stack, broker: Broker, is_new: bool
) -> None:
    if not is_new:
        broker.writes_log_starts()
        broker.cuts_epochs()
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm, rounds=2)
    assert problems(rlm) == ()
    assert rlm.copy_lag().blocked_partitions == 0
    assert (stack.ranges(), stack.rlmm.partition_state(NAME).value.gaps) == ([(0, 9)], ())
    broker.writes_log_starts(f"{NAME.topic} 0 {CUT}")
    take_turns(rlm, rounds=2)
    assert stack.ranges() == [(0, 9), (20, 24)]
    # No loss, but Spark's readers pass recorded gaps only.
    deleted = OffsetGap(10, 21, DELETED_AT_BROKER)
    assert stack.rlmm.partition_state(NAME).value.gaps == (deleted,)
    assert [problem.kind for problem in problems(rlm)] == [ProblemKind.DELETED_AT_BROKER]
    assert description(rlm).copied_through_offset == 24
    assert rlm.copy_lag().lost_partitions == 0


def test_what_the_tier_still_has_is_named_until_it_is_deleted_there(
    stack: Stack, broker: Broker
) -> None:
    broker.writes_log_starts(f"{NAME.topic} 0 {CUT}")
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    (problem,) = problems(rlm)
    assert (problem.kind, problem.offset) == (ProblemKind.DELETED_AT_BROKER, CUT)
    assert "from offset 0 on" in problem.message
    assert f"delete-records {NAME.topic}-0 --before 22 --yes" in problem.message
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0
    assert rlm.copy_lag().blocked_partitions == 0
    (answer,) = rlm.delete_records((RecordsToDelete(NAME, CUT),))
    assert answer.log_start_offset == CUT
    assert problems(rlm) == ()


def test_what_the_broker_does_not_list_is_lost(stack: Stack, broker: Broker) -> None:
    broker.writes_log_starts()
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    assert [(p.kind, p.offset) for p in problems(rlm)] == [(ProblemKind.LOST_BEFORE_COPY, 10)]
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 19),)
