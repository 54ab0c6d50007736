"""Test `scrub --repair`: lost indexes are made anew for good, and nothing is lost meanwhile."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from services.api.errors import CorruptSegmentError
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_events,
    segments_by_id,
)
from services.api.remote_storage_manager import IndexType
from services.api.retention import Deletion, DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.records.index_files import producer_entries
from services.rlmm.database.engine import create_database_engine
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan
from tests.behaviour.test_rebuilt_indexes import NAME, damaged, indexes_of, lost, new_rsm, shipped
from tests.contract.remote_storage_manager_contract import fetched
from tests.harness.ship_stack import Stack
from tests.harness.tier import HOUR_MS, now_ms
from tests.harness.wrapper import Wrapper

__all__ = ["shipped"]
pytestmark = pytest.mark.deep

DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def repaired(stack: Stack, rlmm: Any = None) -> Scrubbed:
    rsm = new_rsm(stack)
    plan = ScrubPlan(uuid4().hex, locations=(1,), repairs=True)
    pace = Pace(lambda _: None, lambda _: None)
    return Scrub(rlmm or stack.rlmm, rsm, rsm.objects, plan, pace).run()


def stored(stack: Stack, segment: RemoteLogSegmentMetadata) -> dict[IndexType, bytes]:
    """Return the index files that RSM need not rebuild."""
    rsm = new_rsm(stack)
    return {
        kind: b"".join(rsm.fetch_index(segment, kind, as_stored=True))
        for kind in IndexType
        if kind is not IndexType.TRANSACTION or not segment.txn_idx_empty
    }


def row_of(stack: Stack, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    [row] = segments_by_id(stack.rlmm, NAME, [segment.remote_log_segment_id.id])
    return row


def objects_of(stack: Stack, segment: RemoteLogSegmentMetadata) -> list[str]:
    found = stack.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*")
    return sorted(path.name for path in found)


def mark(rlmm: RemoteLogMetadataManager, segment: RemoteLogSegmentMetadata) -> None:
    id_ = segment.remote_log_segment_id
    update = RemoteLogSegmentMetadataUpdate(id_, now_ms(), DELETE_STARTED, 1)
    rlmm.update_remote_log_segment_metadata(update)


@pytest.mark.parametrize("harm", [lost, damaged])
def test_indexes_are_made_anew_for_good(shipped: Stack, harm: Callable[..., None]) -> None:
    segments = shipped.segments(NAME)
    before = [stored(shipped, each) for each in segments]
    logs = [fetched(new_rsm(shipped), each) for each in segments]
    harm(indexes_of(shipped, segments[1]))
    done = repaired(shipped)
    assert (done.segments, done.damaged, done.repaired) == (len(segments), 1, 1)
    [line] = done.repairs
    assert ": repaired: OFFSET, TIMESTAMP, PRODUCER_SNAPSHOT" in line
    row = row_of(shipped, segments[1])
    assert row.custom_metadata != segments[1].custom_metadata
    after = stored(shipped, row)
    assert after[IndexType.LEADER_EPOCH] == before[1][IndexType.LEADER_EPOCH]
    assert after.get(IndexType.TRANSACTION) == before[1].get(IndexType.TRANSACTION)
    snapshots = (each[IndexType.PRODUCER_SNAPSHOT] for each in (after, before[1]))
    known, copied = ({p.producer_id: p for p in producer_entries(each)} for each in snapshots)
    assert copied.items() <= known.items()
    for log, each in zip(logs, shipped.segments(NAME), strict=True):
        assert fetched(new_rsm(shipped), each) == log
    again = repaired(shipped)
    assert (again.verified, again.damaged) == (len(segments), 0)


def test_a_repair_is_in_the_audit_trail(shipped: Stack) -> None:
    segment = shipped.segments(NAME)[1]
    lost(indexes_of(shipped, segment))
    repaired(shipped)
    event = list(all_events(shipped.rlmm, EventQuery(NAME)))[-1]
    assert event.segment_id == segment.remote_log_segment_id.id
    assert (event.from_state, event.to_state) == ("COPY_SEGMENT_FINISHED",) * 2
    assert event.reason == "indexes rebuilt"
    assert "OFFSET, TIMESTAMP, PRODUCER_SNAPSHOT" in event.rule_detail


def test_a_log_that_is_damaged_itself_is_not_repaired(shipped: Stack) -> None:
    segment = shipped.segments(NAME)[1]
    lost(indexes_of(shipped, segment))
    (log,) = shipped.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*.log")
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    before, revision = objects_of(shipped, segment), shipped.rlmm.partition_revisions([NAME])
    done = repaired(shipped)
    assert (done.damaged, done.repaired) == (1, 0)
    assert "not repaired: its log is damaged itself" in done.repairs[0]
    assert objects_of(shipped, segment) == before
    assert shipped.rlmm.partition_revisions([NAME]) == revision


class MarksFirst(Wrapper[RemoteLogMetadataManager]):
    """Mark a segment for deletion just before its bytes are replaced."""

    def replace_segment_data(self, segment_id: Any, *arguments: Any) -> Any:
        update = RemoteLogSegmentMetadataUpdate(segment_id, now_ms(), DELETE_STARTED, 1)
        self.real.update_remote_log_segment_metadata(update)
        return self.real.replace_segment_data(segment_id, *arguments)


def test_a_segment_that_was_marked_meanwhile_leaves_nothing(shipped: Stack) -> None:
    segment = shipped.segments(NAME)[1]
    lost(indexes_of(shipped, segment))
    done = repaired(shipped, MarksFirst(shipped.rlmm))
    assert (done.damaged, done.repaired) == (1, 0)
    assert "not repaired: it was marked for deletion meanwhile" in done.repairs[0]
    assert objects_of(shipped, segment) == []


class FailsOnce(Wrapper[RemoteLogMetadataManager]):
    """Refuse the first replacement, as if the repair had been killed before it."""

    is_first = True

    def replace_segment_data(self, *arguments: Any) -> Any:
        if self.is_first:
            self.is_first = False
            raise CorruptSegmentError("broken off")
        return self.real.replace_segment_data(*arguments)


def test_a_repair_that_was_broken_off_is_ended_by_the_next(shipped: Stack) -> None:
    segment = shipped.segments(NAME)[1]
    log = fetched(new_rsm(shipped), segment)
    lost(indexes_of(shipped, segment))
    rlmm = FailsOnce(shipped.rlmm)
    assert repaired(shipped, rlmm).repaired == 0
    assert row_of(shipped, segment) == segment
    assert fetched(new_rsm(shipped), segment) == log
    assert repaired(shipped, rlmm).repaired == 1
    assert fetched(new_rsm(shipped), row_of(shipped, segment)) == log
    assert repaired(shipped).damaged == 0


def test_a_replaced_segment_is_read_through_an_old_look_up(shipped: Stack) -> None:
    old = shipped.segments(NAME)[1]
    log, before = fetched(new_rsm(shipped), old), stored(shipped, old)
    indexes = indexes_of(shipped, old)
    sound = indexes.read_bytes()
    damaged(indexes)
    assert repaired(shipped).repaired == 1
    assert fetched(new_rsm(shipped), old) == log
    rebuilt = b"".join(new_rsm(shipped).fetch_index(old, IndexType.LEADER_EPOCH))
    assert rebuilt == before[IndexType.LEADER_EPOCH]
    indexes.write_bytes(sound)
    assert stored(shipped, old) == before


def reconciled(stack: Stack) -> Reconciled:
    rsm = new_rsm(stack)
    plan = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, 0, delete=True, locations=(1,))
    return Reconciliation(stack.rlmm, rsm, rsm.objects, plan).run()


def test_replaced_bytes_go_an_hour_after_they_were_found(shipped: Stack) -> None:
    old = shipped.segments(NAME)[1]
    lost(indexes_of(shipped, old))
    repaired(shipped)
    for _ in range(2):
        assert reconciled(shipped).deletions.objects == 0
    assert fetched(new_rsm(shipped), old)
    engine = create_database_engine(shipped.database_url)
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE anomalies SET first_seen = now() - interval '{HOUR_MS} milliseconds'")
        )
    engine.dispose()
    assert reconciled(shipped).deletions.objects == 1
    assert len(objects_of(shipped, old)) == 3
    assert fetched(new_rsm(shipped), row_of(shipped, old))


def test_a_deletion_by_an_old_listing_deletes_every_object(shipped: Stack) -> None:
    """Retention, removals and sweeps list first and mark later."""
    old = shipped.segments(NAME)[1]
    lost(indexes_of(shipped, old))
    repaired(shipped)
    deletion = Deletion(old, DeletionReason.RETENTION_TIME, "")
    [begun] = begin_deletion(shipped.rlmm, NAME, [deletion], None, None, Deleter(), now_ms())
    assert begun.segment.custom_metadata == row_of(shipped, old).custom_metadata
    [ended] = finish_deletion(shipped.rlmm, new_rsm(shipped), [begun.segment], Deleter(), now_ms())
    assert ended.error is None
    assert objects_of(shipped, old) == []
