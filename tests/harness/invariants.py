"""Check the invariants of docs/understand/architecture.md by the audit trail and the rows.

That the bytes are there, and nothing else is, tests ask of the store themselves."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.api.partitions import (
    NOTHING_COPIED,
    EventQuery,
    PartitionEvent,
    PartitionState,
    SegmentTotals,
)
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_events,
    all_partitions,
    all_segments,
)
from services.api.retention import DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    predecessors,
    saved_bytes_of,
)

_State = RemoteLogSegmentState
_RETENTION = {
    DeletionReason.RETENTION_TIME.value,
    DeletionReason.RETENTION_SIZE.value,
    DeletionReason.LOG_START_OFFSET.value,
}
_FINISHED, _DELETE_STARTED = _State.COPY_SEGMENT_FINISHED, _State.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = _State.DELETE_SEGMENT_FINISHED


def assert_invariants(rlmm: RemoteLogMetadataManager, names: Iterable[TopicIdPartition]) -> None:
    """Assert the invariants of these partitions, as far as RLMM knows them, with no active
    change.
    """
    summaries = {s.topic_id_partition: s for s in all_partitions(rlmm)}
    for name in summaries.keys() & set(names):
        events = list(all_events(rlmm, EventQuery(name)))
        revisions = list(range(1, summaries[name].revision + 1))
        assert [event.revision for event in events] == revisions
        _assert_log_start_only_rises(events)
        rows = list(all_segments(rlmm, name))
        assert summaries[name].totals == counted(rows), name
        last = _assert_states_in_order(events)
        assert {id_ for id_, state in last.items() if state is _FINISHED} == {
            row.remote_log_segment_id.id for row in rows if row.state is _FINISHED
        }
        _assert_log_start_rose_first(events)
        if not any(_gives_up_the_tier(event) for event in events):
            _assert_watermark_passes_what_is_known(rlmm.partition_state(name).value, rows)


def counted(rows: Iterable[RemoteLogSegmentMetadata]) -> SegmentTotals:
    """Return the totals of segments by counting all of them; an unknown size counts as 0."""
    live = [row for row in rows if row.state is not _DELETE_FINISHED]
    sizes = [max(0, row.segment_size_in_bytes) for row in live]
    finished = [size for row, size in zip(live, sizes, strict=True) if row.state is _FINISHED]
    saved = sum(saved_bytes_of(row.custom_metadata) for row in live if row.state is _FINISHED)
    return SegmentTotals(len(finished), sum(finished), len(live), sum(sizes), saved)


def _gives_up_the_tier(event: PartitionEvent) -> bool:
    """Return whether the partition's tier is given up: data reported as copied before is gone
    then.
    """
    is_disabled = event.reason == DeletionReason.TIERING_DISABLED.value
    return is_disabled or event.kind == "PARTITION_DELETE"


def _assert_log_start_only_rises(events: list[PartitionEvent]) -> None:
    raises = [(int(e.from_state), int(e.to_state)) for e in events if e.kind == "LOG_START"]
    assert all(old < new for old, new in raises)
    assert all(before[1] == after[0] for before, after in pairwise(raises))


def _changes(events: list[PartitionEvent]) -> Iterator[tuple[UUID, PartitionEvent, _State]]:
    """Yield the changes of segments."""
    for event in events:
        if event.kind == "SEGMENT":
            assert event.segment_id is not None
            yield event.segment_id, event, RemoteLogSegmentState(event.to_state)


def _assert_states_in_order(events: list[PartitionEvent]) -> dict[UUID, _State]:
    """Return each segment's last state."""
    last: dict[UUID, _State] = {}
    for id_, event, state in _changes(events):
        allowed = predecessors(state)
        if event.from_state == event.to_state:  # Its bytes were replaced.
            allowed = frozenset({_FINISHED})
        assert last.get(id_) in allowed if allowed else id_ not in last, event
        last[id_] = state
    return last


def _assert_log_start_rose_first(events: list[PartitionEvent]) -> None:
    """Assert that retention deletes only behind the log start."""
    log_start = 0
    for event in events:
        if event.kind == "LOG_START":
            log_start = int(event.to_state)
        elif event.to_state == _DELETE_STARTED.value and event.reason in _RETENTION:
            end_offset = int(event.key.split(":")[2])
            assert end_offset < log_start, event


def _assert_watermark_passes_what_is_known(
    state: PartitionState, rows: list[RemoteLogSegmentMetadata]
) -> None:
    """Assert that there are only finished segments and recorded gaps from the log start on.

    If the log start was never raised, the check begins at the first of these.
    """
    copied_through = state.report.copied_through_offset if state.report else NOTHING_COPIED
    finished = [(r.start_offset, r.end_offset) for r in rows if r.state is _FINISHED]
    known = sorted([*finished, *((gap.start_offset, gap.end_offset) for gap in state.gaps)])
    reached = state.log_start_offset or (known[0][0] if known else 0)
    for start, end in known:
        if start <= reached:
            reached = max(reached, end + 1)
    assert copied_through < reached
