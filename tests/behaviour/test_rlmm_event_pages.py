"""Test pages of a long audit trail: each reads a bounded number of events."""

from uuid import uuid4

from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.rlmm.changes.audit import MAX_EXAMINED
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import add, segment

LONG_TRAIL = """
    INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, broker_id,
        plan_id)
    SELECT :id, 0, revision, 'LOG_START', '', '', '', -1,
        CASE WHEN revision = :last THEN 'plan-1' ELSE 'plan-2' END
    FROM generate_series(2, :last) AS revision"""


def test_an_event_far_away_is_found_over_pages_without_any(engine: Engine) -> None:
    rlmm = SqlRemoteLogMetadataManager(engine)
    tp = TopicIdPartition(uuid4(), "orders", 0)
    add(rlmm, segment(tp, 0, 9))
    last = 2 * MAX_EXAMINED + 5
    with engine.begin() as connection:
        connection.execute(text(LONG_TRAIL), {"id": tp.topic_id, "last": last})
    query = EventQuery(tp, plan_id="plan-1")
    page = rlmm.list_events(query)
    assert page.events == ()
    assert page.next_page_token
    assert [event.revision for event in all_events(rlmm, query)] == [last]
    unfiltered = rlmm.list_events(EventQuery(tp, after_revision=last - 1))
    assert [event.revision for event in unfiltered.events] == [last]
    assert unfiltered.next_page_token == ""
