"""Deleting segments: marked first, then their objects, then confirmed; online and in sweeps alike.

    begin_deletion    log start raised, then DELETE_SEGMENT_STARTED: no look-up finds them any more
    finish_deletion   objects deleted, then DELETE_SEGMENT_FINISHED for what the store confirmed

Each step may be repeated, by anybody, from wherever it stopped: what is marked stays listed until
it is gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.failpoints import failpoint
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion
from services.api.segment_changes import MAX_UPDATE_BATCH, SegmentUpdate
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner

UNKNOWN_BROKER = -1
_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deleter:
    """Who deletes, for the audit trail and for the rules that may refuse it.

    Attributes:
        broker_id: UNKNOWN_BROKER: no broker.
        retention_owner: for whom a rule of retention deletes; None: not said, which counts as the
            broker where a partition's removal has not begun.
        plan_id: of the sweep.
        broker_leader_epoch: the deleter's view of who leads the partition; None: no fence.
    """

    broker_id: int = UNKNOWN_BROKER
    retention_owner: RetentionOwner | None = None
    plan_id: str | None = None
    broker_leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRevisions:
    """Of the partition and of its topic's settings, when it was decided what to delete.

    Attributes:
        partition: None: whatever changed of it.
    """

    partition: int | None
    config: int


@dataclass(frozen=True, slots=True)
class DeletionOutcome:
    """What became of one segment. `error` is None: the step is done."""

    segment: RemoteLogSegmentMetadata
    error: RemoteStorageError | None = None


def begin_deletion(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    deletions: Sequence[Deletion],
    log_start_offset: int | None,
    expected: ExpectedRevisions | None,
    deleter: Deleter,
    now_ms: int,
    log_start_reason: str = "retention",
) -> list[DeletionOutcome]:
    """Raise the log start, then mark the partition's segments; an outcome for each, in order.

    Args:
        log_start_offset: None: it stays.
        expected: refuse where something changed since; None: whatever changed.
        log_start_reason: for the audit trail.

    Raises:
        ConcurrentUpdateError, DeletionRefusedError, FencedLeaderEpochError: the log start was not
            raised, and nothing was marked.
        RetriableRemoteStorageError: RLMM cannot be reached; some may be marked.
    """
    revision = None if expected is None else expected.partition
    config_revision = None if expected is None else expected.config
    if log_start_offset is not None:
        context = _context(deleter, log_start_reason, None, revision, config_revision)
        raised = rlmm.raise_log_start_offset(topic_id_partition, log_start_offset, context)
        if revision is not None and raised.applied:
            revision = raised.revision
        failpoint("deletion.log_start_raised")
    outcomes: list[DeletionOutcome] = []
    for batch in _batches(deletions, MAX_UPDATE_BATCH):
        marked, revision = _mark(rlmm, batch, deleter, now_ms, revision, config_revision)
        outcomes += marked
        failpoint("deletion.marked_some")
    return outcomes


def finish_deletion(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    segments: Sequence[RemoteLogSegmentMetadata],
    deleter: Deleter,
    now_ms: int,
) -> Iterator[DeletionOutcome]:
    """Delete the objects of marked segments and confirm it; an outcome for each, in order.

    Raises:
        RetriableRemoteStorageError: RSM or RLMM cannot be reached; repeat it.
    """
    for batch in _batches(segments, MAX_DELETE_BATCH):
        errors = rsm.delete_log_segment_data_batch(batch)
        failpoint("deletion.objects_deleted")
        outcomes = map(DeletionOutcome, batch, errors)
        yield from _confirm(rlmm, list(outcomes), deleter, now_ms)
        failpoint("deletion.confirmed_some")


def _mark(
    rlmm: RemoteLogMetadataManager,
    deletions: Sequence[Deletion],
    deleter: Deleter,
    now_ms: int,
    revision: int | None,
    config_revision: int | None,
) -> tuple[list[DeletionOutcome], int | None]:
    """Also answers the partition's revision after it, where one was expected before."""
    unmarked = [d for d in deletions if d.segment.state is not _STARTED]
    if not unmarked:
        return [DeletionOutcome(d.segment) for d in deletions], revision
    updates = [
        SegmentUpdate(
            _update(d.segment, _STARTED, deleter, now_ms),
            _context(deleter, d.reason.value, d.detail, revision, config_revision),
        )
        for d in unmarked
    ]
    results = rlmm.update_remote_log_segment_metadata_batch(updates)
    applied = [r.revision for r in results if isinstance(r, MutationOutcome) and r.applied]
    errors = {
        d.segment.remote_log_segment_id: result
        for d, result in zip(unmarked, results, strict=True)
        if isinstance(result, RemoteStorageError)
    }
    outcomes = [
        DeletionOutcome(d.segment, errors.get(d.segment.remote_log_segment_id)) for d in deletions
    ]
    return outcomes, None if revision is None else max([revision, *applied])


def _confirm(
    rlmm: RemoteLogMetadataManager,
    outcomes: Sequence[DeletionOutcome],
    deleter: Deleter,
    now_ms: int,
) -> list[DeletionOutcome]:
    gone = [outcome.segment for outcome in outcomes if outcome.error is None]
    if not gone:
        return list(outcomes)
    context = MutationContext(reason="objects deleted", plan_id=deleter.plan_id)
    results = rlmm.update_remote_log_segment_metadata_batch(
        [SegmentUpdate(_update(s, _FINISHED, deleter, now_ms), context) for s in gone]
    )
    errors = {
        segment.remote_log_segment_id: result
        for segment, result in zip(gone, results, strict=True)
        if isinstance(result, RemoteStorageError)
    }
    return [
        DeletionOutcome(o.segment, o.error or errors.get(o.segment.remote_log_segment_id))
        for o in outcomes
    ]


def _update(
    segment: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    deleter: Deleter,
    now_ms: int,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        event_timestamp_ms=now_ms,
        state=state,
        broker_id=deleter.broker_id,
    )


def _context(
    deleter: Deleter,
    reason: str,
    rule_detail: str | None,
    revision: int | None,
    config_revision: int | None,
) -> MutationContext:
    return MutationContext(
        reason=reason,
        rule_detail=rule_detail,
        plan_id=deleter.plan_id,
        broker_leader_epoch=deleter.broker_leader_epoch,
        expected_revision=revision,
        expected_config_revision=config_revision,
        retention_owner=deleter.retention_owner,
    )


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
