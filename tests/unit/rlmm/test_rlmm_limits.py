"""What RLMM refuses before it asks the database."""

from dataclasses import replace
from traceback import format_exception
from uuid import UUID

import pytest

from services.api.calls import MutationContext
from services.api.errors import CustomMetadataTooLargeError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlmm.database import create_database_engine
from services.rlmm.limits import Limits, check_storable
from services.rlmm.rows import event_key

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
LIMITS = Limits(custom_metadata_bytes=4, leader_epochs_per_segment=2)


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
    "url", ["secret", "postgresql://u:p@secret:secret@h/db", "mysql://u:secret@h/db"]
)
def test_a_database_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^database_url: ") as caught:
        create_database_engine(url)
    assert "secret" not in "".join(format_exception(caught.value))
