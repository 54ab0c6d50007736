"""Test copies under leases: two processes of one broker, failed renewals, abandoned attempts."""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import RenewOutcome
from services.api.retention import Deletion, DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.common.retry import Backoff
from services.rlm.copy.segment import CopyLimits, SegmentCopier
from services.rlm.copy.ship import PartitionShipReport, ShipSettings, ship
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, move
from tests.harness.eventually import eventually
from tests.harness.ship_stack import Stack
from tests.harness.troubles import FailingRsm
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, three_segments, write_log_dir

pytestmark = pytest.mark.deep

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
BROKER_ID = 7
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
DEADLINE_MS = 60_000
WHOLE = [(0, 9), (10, 19)]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    made = write_log_dir(tmp_path / "logs", BROKER_ID)
    three_segments(made)
    return made


@pytest.fixture
def copied_dir(log_dir: Path, tmp_path: Path) -> Path:
    """Provide a directory of the same broker, with locks of its own."""
    return Path(shutil.copytree(log_dir, tmp_path / "copy"))


def leased_for(lease_ms: int, retry_for_s: float = 0.0) -> ShipSettings:
    return ShipSettings(
        threads=1,
        retry_for_s=retry_for_s,
        backoff=Backoff(initial_s=0.05, max_s=0.5),
        limits=CopyLimits(lease_ms=lease_ms),
    )


class Watched(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM; renewals may fail, and the requests are kept."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.is_away = False
        self.failed = 0
        self.renewed = 0
        self.asked_for: list[RemoteLogSegmentState] = []

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        if self.is_away:
            self.failed += 1
            raise RetriableRemoteStorageError("away")
        outcomes = self.real.renew_copy_leases(segment_ids, lease_ms, broker_id)
        self.renewed += 1
        return outcomes

    def update_remote_log_segment_metadata(
        self, update: Any, context: MutationContext = NO_CONTEXT
    ) -> Any:
        self.asked_for.append(update.state)
        return self.real.update_remote_log_segment_metadata(update, context)


def left_attempt(
    stack: Stack,
    start: int,
    lease_ms: int | None,
    broker_id: int = BROKER_ID,
    *,
    began_ms: int = 1,
    broker_leader_epoch: int | None = None,
) -> RemoteLogSegmentMetadata:
    """Add a copy of ten offsets that began long ago and was never finished."""
    made = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(NAME, uuid4()),
        start,
        start + 9,
        max_timestamp_ms=1,
        broker_id=broker_id,
        event_timestamp_ms=began_ms,
        segment_leader_epochs=segment_leader_epochs([(0, start)]),
        segment_size_in_bytes=100,
        broker_leader_epoch=broker_leader_epoch,
    )
    stack.rlmm.add_remote_log_segment_metadata(made, lease_ms=lease_ms)
    return made


def shipped(
    stack: Stack, log_dir: Path, settings: ShipSettings | None = None, **doubles: Any
) -> PartitionShipReport:
    rsm, rlmm = doubles.get("rsm", stack.rsm), doubles.get("rlmm", stack.rlmm)
    (partition,) = ship([log_dir], rsm, rlmm, settings or leased_for(HOUR_MS)).partitions
    return partition


def is_leased(stack: Stack) -> bool:
    return any(segment.copy_leased for segment in stack.segments())


@pytest.mark.parametrize(("start", "copied", "held"), [(0, 0, 2), (10, 1, 1)])
def test_copy_of_another_process_of_the_broker_is_waited_for(
    stack: Stack, start: int, copied: int, held: int
) -> None:
    attempt = left_attempt(stack, start, HOUR_MS)
    report = shipped(stack, stack.log_dir)
    assert (report.cleaned_attempts, report.copied_segments) == (0, copied)
    assert (report.blocked_segments, report.complete) == (held, False)
    (problem,) = report.problems
    assert problem.kind is ProblemKind.COPY_FAILED
    assert f"copying offsets {start} to {start + 9} (or died doing so)" in problem.message
    states = {s.remote_log_segment_id: s.state for s in stack.segments()}
    assert states.pop(attempt.remote_log_segment_id) is STARTED
    assert list(states.values()) == [FINISHED] * copied


def test_copy_of_a_killed_process_is_cleaned_up_after_its_lease(stack: Stack) -> None:
    left_attempt(stack, 0, lease_ms=2_000)
    report = shipped(stack, stack.log_dir, leased_for(HOUR_MS, retry_for_s=60.0))
    assert (report.cleaned_attempts, report.copied_segments) == (1, 2)
    assert report.complete
    assert stack.ranges() == WHOLE


@pytest.mark.parametrize(
    ("lease_ms", "broker_id", "cleaned"), [(None, BROKER_ID, 1), (HOUR_MS, BROKER_ID + 1, 0)]
)
def test_copy_without_a_lease_or_of_another_broker_is_not_waited_for(
    stack: Stack, lease_ms: int | None, broker_id: int, cleaned: int
) -> None:
    left_attempt(stack, 0, lease_ms, broker_id)
    report = shipped(stack, stack.log_dir)
    assert (report.cleaned_attempts, report.copied_segments) == (cleaned, 2)
    assert report.complete


def began_ago(age_ms: int) -> int:
    return time.time_ns() // 1_000_000 - age_ms


def test_young_copy_of_the_broker_without_a_lease_is_waited_for(stack: Stack) -> None:
    attempt = left_attempt(stack, 0, lease_ms=None, began_ms=began_ago(HOUR_MS - 600_000))
    report = shipped(stack, stack.log_dir)
    assert (report.cleaned_attempts, report.copied_segments) == (0, 0)
    assert (report.blocked_segments, report.complete) == (2, False)
    (problem,) = report.problems
    assert "retrying when it finishes or its copy is an hour old" in problem.message
    assert [s.remote_log_segment_id for s in stack.segments()] == [attempt.remote_log_segment_id]


@pytest.mark.parametrize("off_by_ms", [YEAR_MS, -YEAR_MS])
def test_how_young_a_copy_of_the_broker_is_the_clock_of_this_host_does_not_say(
    stack: Stack, off_by_ms: int
) -> None:
    attempt = left_attempt(stack, 0, lease_ms=None, began_ms=began_ago(60_000))
    settings = leased_for(HOUR_MS)
    report = ship(
        [stack.log_dir], stack.rsm, stack.rlmm, settings, now_ms=lambda: began_ago(0) + off_by_ms
    )
    (partition,) = report.partitions
    assert (partition.cleaned_attempts, partition.blocked_segments) == (0, 2)
    assert [(s.remote_log_segment_id, s.state) for s in stack.segments()] == [
        (attempt.remote_log_segment_id, STARTED)
    ]


@pytest.mark.parametrize(("age_ms", "epoch"), [(HOUR_MS + 60_000, None), (60_000, 0)])
def test_old_copy_of_the_broker_or_of_an_rlm_without_lease_is_cleaned_up(
    stack: Stack, age_ms: int, epoch: int | None
) -> None:
    """A lease of RLM's copies has expired, or never existed and the folder's lock is free."""
    began_ms = began_ago(age_ms)
    left_attempt(stack, 0, lease_ms=None, began_ms=began_ms, broker_leader_epoch=epoch)
    report = shipped(stack, stack.log_dir)
    assert (report.cleaned_attempts, report.copied_segments) == (1, 2)
    assert stack.ranges() == WHOLE


class ChangedOnceListed(Watched):
    """Changes the segments between the first list that has any and the next request."""

    change: Any = None

    def list_remote_log_segments(self, *args: Any, **kwargs: Any) -> Any:
        page = self.real.list_remote_log_segments(*args, **kwargs)
        change, self.change = self.change, None
        if change is not None:
            change()
        return page


def test_a_copy_that_was_listed_without_a_lease_may_have_one_by_now(stack: Stack) -> None:
    """A late renewal changes no revision."""
    attempt, rlmm = left_attempt(stack, 0, lease_ms=1_000), ChangedOnceListed(stack.rlmm)
    eventually(lambda: not is_leased(stack), DEADLINE_MS)
    ids = [attempt.remote_log_segment_id]
    rlmm.change = lambda: stack.rlmm.renew_copy_leases(ids, HOUR_MS, BROKER_ID)
    report = shipped(stack, stack.log_dir, rlmm=rlmm)
    assert (report.cleaned_attempts, report.copied_segments, report.blocked_segments) == (0, 0, 2)
    assert [s.state for s in stack.segments()] == [STARTED]


def test_a_copy_that_was_listed_as_in_progress_may_have_finished_by_now(stack: Stack) -> None:
    attempt, rlmm = left_attempt(stack, 0, lease_ms=None), ChangedOnceListed(stack.rlmm)
    rlmm.change = lambda: move(stack.rlmm, attempt, FINISHED, broker_id=BROKER_ID)
    report = shipped(stack, stack.log_dir, leased_for(HOUR_MS, retry_for_s=60.0), rlmm=rlmm)
    assert (report.cleaned_attempts, report.copied_segments) == (0, 1)
    assert stack.ranges() == WHOLE
    assert attempt.remote_log_segment_id in {s.remote_log_segment_id for s in stack.segments()}


def test_two_processes_on_copies_of_one_folder_copy_each_segment_once(
    stack: Stack, copied_dir: Path
) -> None:
    rsm, meanwhile = FailingRsm(stack.rsm), list[PartitionShipReport]()
    rsm.before_copy = lambda _: meanwhile.append(shipped(stack, copied_dir))
    assert shipped(stack, stack.log_dir, rsm=rsm).complete
    assert [(p.copied_segments, p.cleaned_attempts) for p in meanwhile] == [(0, 0), (0, 0)]
    late = shipped(stack, copied_dir)
    assert (late.copied_segments, late.present_segments) == (0, 2)
    assert stack.ranges() == WHOLE
    assert len(stack.keys()) == 2 * 3


def test_a_process_ends_its_own_attempts_at_once(stack: Stack) -> None:
    """The leases are its own, including that of an attempt whose begin got no response."""
    lost = list[object]()

    class AnswerLost(Watched):
        def add_remote_log_segment_metadata(self, *args: Any, **kwargs: Any) -> Any:
            outcome = self.real.add_remote_log_segment_metadata(*args, **kwargs)
            if not lost:
                lost.append(outcome)
                raise RetriableRemoteStorageError("the connection broke")
            return outcome

    settings = leased_for(HOUR_MS, retry_for_s=60.0)
    report = shipped(stack, stack.log_dir, settings, rlmm=AnswerLost(stack.rlmm))
    assert (report.cleaned_attempts, report.copied_segments) == (1, 2)
    assert stack.ranges() == WHOLE


@pytest.mark.deep
def test_a_copy_that_takes_longer_than_its_lease_keeps_it(stack: Stack) -> None:
    rsm, rlmm = FailingRsm(stack.rsm), Watched(stack.rlmm)

    def slowly(metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.start_offset == 0:
            # The fourth comes after the lease's first length.
            eventually(lambda: rlmm.renewed >= 4, DEADLINE_MS)
            assert is_leased(stack)

    rsm.before_copy = slowly
    report = shipped(stack, stack.log_dir, leased_for(18_000), rsm=rsm, rlmm=rlmm)
    assert (report.copied_segments, report.cleaned_attempts) == (2, 0)
    assert rlmm.asked_for == [FINISHED, FINISHED]


class Killed(Exception):
    """End a process here."""


class DeletesNothing:
    """An RSM whose client is killed when it requests a deletion."""

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        raise Killed


def delete_by_another(stack: Stack) -> None:
    (segment,) = stack.segments()
    deletion = Deletion(segment, DeletionReason.LOG_START_OFFSET, "")
    begun = begin_deletion(stack.rlmm, NAME, [deletion], None, None, Deleter(), 1)
    assert [outcome.error for outcome in begun] == [None]
    finished = finish_deletion(stack.rlmm, stack.rsm, [segment], Deleter(), 1)
    assert [outcome.error for outcome in finished] == [None]


@pytest.mark.parametrize("is_deleted_meanwhile", [True, False])
@pytest.mark.parametrize("is_before_the_bytes", [True, False])
def test_copy_with_an_expired_lease_is_abandoned_before_it_finishes(
    stack: Stack, is_before_the_bytes: bool, is_deleted_meanwhile: bool
) -> None:
    rsm, rlmm = FailingRsm(stack.rsm), Watched(stack.rlmm)
    rlmm.is_away = True

    def until_the_lease_has_ended(answer: Any) -> Any:
        eventually(lambda: not is_leased(stack), DEADLINE_MS)
        if is_deleted_meanwhile:
            delete_by_another(stack)
        return answer

    if is_before_the_bytes:
        rsm.before_copy = until_the_lease_has_ended
    else:
        rsm.after_copy = until_the_lease_has_ended
    report = shipped(stack, stack.log_dir, leased_for(1_000), rsm=rsm, rlmm=rlmm)
    assert report.copied_segments == 0
    assert FINISHED not in rlmm.asked_for
    assert stack.keys() == []
    again = shipped(stack, stack.log_dir)
    assert again.complete
    assert stack.ranges() == WHOLE


@pytest.mark.parametrize(
    "failure",
    [None, RetriableRemoteStorageError("the answer was lost"), RemoteStorageError("it broke")],
    ids=["finishes", "is given up", "is cleaned up"],
)
@pytest.mark.parametrize("is_finished", [True, False], ids=["deleted", "marked"])
@pytest.mark.parametrize("by_another_rlm", [True, False])
def test_objects_uploaded_after_another_process_abandoned_the_copy_are_deleted(
    stack: Stack, by_another_rlm: bool, is_finished: bool, failure: RemoteStorageError | None
) -> None:
    rsm = FailingRsm(stack.rsm)
    other = SegmentCopier(
        DeletesNothing() if not is_finished else stack.rsm,  # type: ignore[arg-type]
        stack.rlmm,
        BROKER_ID,
        lambda: 1,
        CopyLimits(),
    )

    def give_up(segment: RemoteLogSegmentMetadata) -> None:
        """Abandon the attempt, with the request id that an RLM gives it, or with none."""
        if by_another_rlm:
            with suppress(Killed):
                other.clean_up(segment)
        else:
            states = [DELETE_STARTED, DELETE_FINISHED] if is_finished else [DELETE_STARTED]
            move(stack.rlmm, segment, *states, broker_id=BROKER_ID)

    def fail(answer: bytes | None) -> bytes | None:
        assert stack.keys()
        if failure is not None:
            raise failure
        return answer

    rsm.before_copy, rsm.after_copy = give_up, fail
    report = shipped(stack, stack.log_dir, rsm=rsm)
    assert (report.copied_segments, report.complete) == (0, False)
    assert stack.keys() == []
    assert shipped(stack, stack.log_dir).complete
    assert stack.ranges() == WHOLE


def test_a_refused_renewal_gives_the_copy_up_while_the_lease_would_still_run(stack: Stack) -> None:
    rsm, rlmm, refused = FailingRsm(stack.rsm), Watched(stack.rlmm), list[object]()

    def refuse(segment_ids: Any, lease_ms: int, broker_id: int) -> list[RenewOutcome]:
        refused.append(segment_ids)
        return [InvalidStateTransitionError("its copy is over")]

    rlmm.renew_copy_leases = refuse  # type: ignore[method-assign]
    copies = list[RemoteLogSegmentMetadata]()

    def once(metadata: RemoteLogSegmentMetadata) -> None:
        copies.append(metadata)
        if len(copies) == 1:
            eventually(lambda: refused, DEADLINE_MS)

    rsm.before_copy = once
    report = shipped(stack, stack.log_dir, leased_for(6_000, retry_for_s=60.0), rsm=rsm, rlmm=rlmm)
    assert (report.copied_segments, report.cleaned_attempts) == (2, 1)
    assert len(copies) == 3
    assert stack.ranges() == WHOLE


def test_copy_that_cannot_be_abandoned_still_reports_its_failure(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    rsm = FailingRsm(stack.rsm)

    class AwayForUpdates(Watched):
        def update_remote_log_segment_metadata(
            self, update: Any, context: MutationContext = NO_CONTEXT
        ) -> Any:
            raise RetriableRemoteStorageError("the database is away")

    def broken(_: RemoteLogSegmentMetadata) -> None:
        raise RetriableRemoteStorageError("the store is away")

    rsm.before_copy = broken
    report = shipped(stack, stack.log_dir, rsm=rsm, rlmm=AwayForUpdates(stack.rlmm))
    (problem,) = report.problems
    assert "the store is away" in problem.message
    assert (
        "could not record that the copy was abandoned; the next pass retries: the database is away"
        in caplog.text
    )
    assert [segment.state for segment in stack.segments()] == [STARTED]
    assert is_leased(stack)
