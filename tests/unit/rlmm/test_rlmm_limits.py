"""Test the requests that RLMM refuses without the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from traceback import format_exception
from uuid import UUID

import pytest

from services.api.calls import MutationContext
from services.api.errors import CustomMetadataTooLargeError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NOTHING_COPIED, PartitionReport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
    segment_leader_epochs,
)
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.limits import Limits, check_storable
from services.rlmm.database.rows import event_key, ms_of

TP = TopicIdPartition(UUID(int=1), "orders", 3)
SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(TP, UUID(int=2)),
    start_offset=0,
    end_offset=9,
    max_timestamp_ms=1,
    broker_id=1,
    event_timestamp_ms=1,
    segment_leader_epochs=segment_leader_epochs([(0, 0), (1, 5)]),
    segment_size_in_bytes=1,
)
LIMITS = Limits(custom_metadata_bytes=4, leader_epochs=2)


@pytest.mark.parametrize("custom_metadata", [None, b"", b"1234"])
def test_custom_metadata_up_to_the_limit_passes(custom_metadata: bytes | None) -> None:
    LIMITS.check_segment(replace(SEGMENT, custom_metadata=custom_metadata))


def test_custom_metadata_over_the_limit_names_the_field() -> None:
    update = RemoteLogSegmentMetadataUpdate(
        SEGMENT.remote_log_segment_id, 1, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1, b"12345"
    )
    with pytest.raises(CustomMetadataTooLargeError, match=r"^update\.custom_metadata: .* 4 bytes"):
        LIMITS.check_update(update)
    with pytest.raises(CustomMetadataTooLargeError, match=r"^metadata\.custom_metadata"):
        LIMITS.check_segment(replace(SEGMENT, custom_metadata=b"12345"))


def test_leader_epochs_are_limited() -> None:
    epochs = segment_leader_epochs([(0, 0), (1, 5), (2, 6)])
    with pytest.raises(InvalidRequestError, match=r"^metadata\.segment_leader_epochs"):
        LIMITS.check_segment(replace(SEGMENT, segment_leader_epochs=epochs))


def test_leader_epochs_of_a_report_are_limited() -> None:
    limits = LIMITS
    limits.check_report(report(segment_leader_epochs([(0, 0), (1, 5)])))
    with pytest.raises(InvalidRequestError, match=r"^leader_epochs: at most 2, has 3"):
        limits.check_report(report(segment_leader_epochs([(0, 0), (1, 5), (2, 6)])))


def report(epochs: tuple[SegmentLeaderEpoch, ...]) -> PartitionReport:
    return PartitionReport(TP, 1, 9, 1, Lineage(epochs), 0, 9, 9, 9, 0, NOTHING_COPIED)


@pytest.mark.parametrize(
    ("field", "context"),
    [
        ("request_id", MutationContext(request_id="a\0")),
        ("reason", MutationContext(reason="a\0")),
        ("rule_detail", MutationContext(rule_detail="a\0")),
        ("plan_id", MutationContext(plan_id="a\0")),
    ],
)
def test_text_with_nul_is_refused_by_name(field: str, context: MutationContext) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^context\.{field}"):
        check_storable(context)


@pytest.mark.parametrize(("epoch", "last"), [(None, "-1"), (0, "0"), (7, "7")])
def test_an_events_key_is_that_of_the_compaction_kip(epoch: int | None, last: str) -> None:
    key = event_key(replace(SEGMENT, broker_leader_epoch=epoch))
    assert key == f"AAAAAAAAAAAAAAAAAAAAAQ:3:9:{last}"


@pytest.mark.parametrize(
    "url", ["canary", "postgresql://u:p@canary:canary@h/db", "mysql://u:canary@h/db"]
)
def test_a_database_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^database_url: ") as caught:
        create_database_engine(url)
    assert "canary" not in "".join(format_exception(caught.value))


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        # A float of seconds times 1,000 would be one less.
        (datetime(2009, 2, 13, 23, 31, 30, 1_000, tzinfo=UTC), 1_234_567_890_001),
        (datetime(2009, 2, 13, 23, 31, 30, 1_999, tzinfo=UTC), 1_234_567_890_001),
    ],
)
def test_the_databases_clock_is_read_in_whole_milliseconds(at: datetime, ms: int) -> None:
    assert ms_of(at) == ms
