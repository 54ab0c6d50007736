"""What the fuzzing takes for a sound refusal, and that it takes nothing else for one."""

from collections.abc import Sequence

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from sqlalchemy import text

from services.api.errors import InvalidRequestError, RemoteStorageError, ThrottledError
from services.rlmm.database.engine import create_database_engine
from services.rpc.statuses import status_of
from tests.deep.fuzzing.calling import Answer
from tests.deep.fuzzing.database_digest import DatabaseDigest, changed_parts
from tests.deep.fuzzing.field_paths import names_a_field
from tests.deep.fuzzing.rules import LONGEST_REFUSAL, require_sound_answer
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

REQUEST = pb.OnPartitionLeadershipChangesRequest(
    leaders=[pb.PartitionLeadership(leader_epoch=1), pb.PartitionLeadership()]
)
SETTINGS = pb.PutTopicConfigRequest(entries={"nonsense": "1", "a\nb": "2"})


@pytest.mark.parametrize(
    ("said", "is_named"),
    [
        ("broker_id: must be -1 or above", True),
        ("leaders: at most 10000", True),
        ("leaders[1]: too many", True),
        ("leaders[1].topic_id_partition: must be set", True),
        ("leaders[0].topic_id_partition.topic: not legal", True),
        # No such item, no index, an index of what is no list.
        ("leaders[2].leader_epoch: must be 0 or above", False),
        ("leaders.leader_epoch: must be 0 or above", False),
        ("broker_id[0]: must be -1 or above", False),
        # No such field, at any depth.
        ("broker: must be -1 or above", False),
        ("topic: belongs to another", False),
        ("leaders[0].topic_id_partition.name: not legal", False),
        ("leaders[0].leader_epoch.value: must be 0 or above", False),
        # No path.
        ("broker_id must be -1 or above", False),
        ("must be -1 or above: broker_id", False),
        ("", False),
    ],
)
def test_a_path_must_exist_in_the_message(said: str, is_named: bool) -> None:
    assert names_a_field(said, REQUEST) is is_named


def refused(status: status_pb2.Status) -> Answer:
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return Answer(codes[status.code], said=status.message, status=status)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("broker_id: must be -1 or above"),
        ThrottledError("the queue is full; come back in 100 ms"),
    ],
    ids=str,
)
def test_a_refusal_in_our_words_is_sound(error: RemoteStorageError) -> None:
    require_sound_answer([REQUEST], refused(status_of(error)))


@pytest.mark.parametrize("said", ["nonsense: no such", "'a\\nb': no such", "retention.ms: over"])
def test_a_setting_is_named_as_a_field_is(said: str) -> None:
    require_sound_answer([SETTINGS], refused(status_of(InvalidRequestError(said))))


def with_reason(status: status_pb2.Status, domain: str, reason: str) -> status_pb2.Status:
    info = AnyMessage()
    info.Pack(error_details_pb2.ErrorInfo(domain=domain, reason=reason))
    return status_pb2.Status(code=status.code, message=status.message, details=[info])


INVALID = status_of(InvalidRequestError("broker_id: must be -1 or above"))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(grpc.StatusCode.UNKNOWN, said="boom"), "not in words of ours"),
        (refused(status_of(RemoteStorageError("boom"))), "INTERNAL"),
        (refused(status_pb2.Status(code=INVALID.code, message=INVALID.message)), "ErrorInfo"),
        (refused(with_reason(INVALID, "elsewhere", "INVALID_REQUEST")), "ErrorInfo"),
        (refused(with_reason(INVALID, "sediment", "NO_SUCH_REASON")), "NO_SUCH_REASON is not"),
        (refused(with_reason(INVALID, "sediment", "THROTTLED")), "THROTTLED is not INVALID"),
        (refused(status_of(InvalidRequestError("no: field"))), "names no field"),
        (refused(status_of(InvalidRequestError("broker_id: a\nb"))), "not one line"),
        (refused(status_of(InvalidRequestError("broker_id: \x00"))), "not one line"),
        (refused(status_of(InvalidRequestError("x" * (LONGEST_REFUSAL + 1)))), "characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_other_refusal_is_not(answer: Answer, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        require_sound_answer([REQUEST], answer)


def outcomes(*statuses: status_pb2.Status) -> Answer:
    response = pb.RenewCopyLeasesResponse(outcomes=statuses)
    return Answer(grpc.StatusCode.OK, [response])


def test_the_refusals_of_items_are_checked_too() -> None:
    segments: Sequence[segment_pb.RemoteLogSegmentId] = [segment_pb.RemoteLogSegmentId()]
    request = pb.RenewCopyLeasesRequest(segments=segments)
    sound = status_of(InvalidRequestError("id: must be 22 characters"))
    require_sound_answer([request], outcomes(status_pb2.Status(), sound))
    with pytest.raises(AssertionError, match="INTERNAL"):
        require_sound_answer([request], outcomes(sound, status_of(RemoteStorageError("boom"))))
    with pytest.raises(AssertionError, match="names no field: lease_ms"):
        require_sound_answer([request], outcomes(status_of(InvalidRequestError("lease_ms: no"))))


def test_a_digest_shows_which_tables_changed(database_url: str) -> None:
    engine = create_database_engine(database_url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        digest = DatabaseDigest(connection)
        before = digest.take()
        assert changed_parts(before, digest.take()) == []
        name = "INSERT INTO topics (topic_id, name) VALUES (gen_random_uuid(), 'orders')"
        connection.execute(text(name))
        added = digest.take()
        assert changed_parts(before, added) == ["topics"]
        connection.execute(text("UPDATE topics SET name = 'payments'"))
        assert changed_parts(added, digest.take()) == ["topics"]
    engine.dispose()
