"""Test that DeleteRecords raises the tier's log start, and what it refuses."""

from dataclasses import replace

import pytest

from services.api.errors import InvalidRequestError
from services.api.offset_queries import (
    HIGH_WATERMARK,
    OffsetService,
    RaisedLogStart,
    RecordsToDelete,
)
from services.api.partitions import EventQuery
from services.api.remote_log_manager import FetchError
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.callback_rlm import FOLLOWER, LEADER, callback_rlm, send_role
from tests.harness.holds import export, hold
from tests.harness.retained_log import take_turns
from tests.harness.ship_stack import Stack, read
from tests.harness.troubles import FailingRlmm
from tests.unit.rlm.kafka_bytes import NAME, batch, high_watermarks, three_segments

NOT_LEADER = FetchError.NOT_LEADER_OR_FOLLOWER
OUT_OF_RANGE = FetchError.OFFSET_OUT_OF_RANGE


@pytest.fixture
def stack(stack: Stack) -> Stack:
    """A log of offsets 0 to 24 whose high watermark is 22; 0 to 19 are in the tier."""
    stack.files = three_segments(stack.log_dir)
    high_watermarks(stack.log_dir, {(NAME.topic, NAME.partition): 22})
    stack.ship()
    return stack


def delete(rlm: OffsetService, before_offset: int) -> RaisedLogStart:
    (answer,) = rlm.delete_records((RecordsToDelete(NAME, before_offset),))
    return answer


def test_readers_get_nothing_below_the_new_log_start(stack: Stack) -> None:
    rlm = stack.rlm()
    assert delete(rlm, 12) == RaisedLogStart(NAME, log_start_offset=12)
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 12
    assert read(rlm, 11) is OUT_OF_RANGE
    assert read(rlm, 12) == b"".join([batch(10, 5), batch(15, 5)])
    assert read(stack.tier_reader(), 11) is OUT_OF_RANGE
    (event,) = (e for e in stack.rlmm.list_events(EventQuery(NAME)).events if e.kind == "LOG_START")
    assert (event.reason, event.rule_detail) == ("delete records", "before offset 12")


@pytest.mark.parametrize("offset", [22, HIGH_WATERMARK])
def test_at_most_to_the_high_watermark(stack: Stack, offset: int) -> None:
    rlm = stack.rlm()
    assert delete(rlm, offset).log_start_offset == 22
    assert delete(rlm, offset).log_start_offset == 22
    above = delete(rlm, 23)
    assert (above.error, above.log_start_offset) == (OUT_OF_RANGE, -1)
    assert "high watermark 22" in above.error_message


def test_a_lower_offset_changes_nothing(stack: Stack) -> None:
    rlm = stack.rlm()
    delete(rlm, 12)
    assert delete(rlm, 5) == RaisedLogStart(NAME, log_start_offset=12)
    assert delete(rlm, 12) == RaisedLogStart(NAME, log_start_offset=12)
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 12
    events = stack.rlmm.list_events(EventQuery(NAME)).events
    assert [e.kind for e in events].count("LOG_START") == 1


def test_only_the_leader_deletes(stack: Stack) -> None:
    rlm = callback_rlm(stack)
    assert delete(rlm, 12).error is NOT_LEADER
    assert send_role(rlm, FOLLOWER, 3) is None
    assert delete(rlm, 12).error is NOT_LEADER
    assert delete(stack.tier_reader(), 12).error is NOT_LEADER
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0
    assert send_role(rlm, LEADER, 4) is None
    assert delete(rlm, 12).log_start_offset == 12


def test_a_hold_forbids_it(stack: Stack) -> None:
    hold(stack.rlmm, NAME, first_offset=11, last_offset=11)
    rlm = stack.rlm()
    answer = delete(rlm, 12)
    assert answer.error is FetchError.POLICY_VIOLATION
    assert "hold audit (operator) keeps offsets 11-11" in answer.error_message
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0
    assert delete(rlm, 11).log_start_offset == 11


@pytest.mark.parametrize("owner", ["rlm", "sweep", "broker"])
def test_any_owner_of_retention_will_do(stack: Stack, owner: str) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {"sediment.retention.owner": owner})
    assert delete(stack.rlm(), 12).log_start_offset == 12


def test_without_the_database_nothing_is_promised(stack: Stack) -> None:
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    assert delete(rlm, 12).error is FetchError.TIERED_STORAGE_NOT_AVAILABLE


def test_segments_below_are_deleted_by_the_next_pass_of_retention(stack: Stack) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.ms": "-1"})
    rlm = callback_rlm(stack)
    assert send_role(rlm, LEADER, 4) is None
    assert delete(rlm, 12).log_start_offset == 12
    take_turns(rlm, 2)
    assert stack.ranges() == [(10, 19)]


def test_what_an_export_has_yet_to_read_is_not_deleted(stack: Stack) -> None:
    export(stack.rlmm, NAME, 11)
    answer = delete(stack.rlm(), 12)
    assert answer.error is FetchError.POLICY_VIOLATION
    assert "lake" in answer.error_message
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0


def test_an_export_lets_go_of_what_it_has_read(stack: Stack) -> None:
    export(stack.rlmm, NAME, 12)
    assert delete(stack.rlm(), 12).log_start_offset == 12


def test_a_partition_twice_is_refused(stack: Stack) -> None:
    rlm = stack.rlm()
    twice = (RecordsToDelete(NAME, 12), RecordsToDelete(NAME, 13))
    with pytest.raises(InvalidRequestError, match="twice"):
        rlm.delete_records(twice)
    with pytest.raises(InvalidRequestError, match="before_offset"):
        RecordsToDelete(NAME, -2)
    other = replace(NAME, partition=1)
    answers = rlm.delete_records((RecordsToDelete(other, 1), RecordsToDelete(NAME, 12)))
    assert [answer.error for answer in answers] == [NOT_LEADER, FetchError.NONE]
