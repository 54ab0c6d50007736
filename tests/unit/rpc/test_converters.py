"""Test that malformed messages are refused by field path.

That values cross the wire unchanged is a matter of the contract suites over gRPC.
"""

from dataclasses import replace
from uuid import UUID

import pytest

from services.api.calls import AtRevision
from services.api.errors import ConcurrentUpdateError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import (
    PartitionReport,
    PartitionState,
)
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    LogDigest,
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
)
from services.api.remote_storage_manager import SegmentFileHeader as FileHeader
from services.api.segments import (
    RemoteLogSegmentMetadata,
    segment_leader_epochs,
)
from services.rpc.converters.fields import converters, items_from_proto
from services.rpc.converters.log import fetch_request_from_proto
from services.rpc.converters.partitions import (
    report_from_proto,
    report_outcome_from_proto,
    report_outcome_to_proto,
    report_to_proto,
)
from services.rpc.converters.rpcs import rpc_of
from services.rpc.converters.shared import (
    metadata_from_proto,
    metadata_to_proto,
)
from services.rpc.converters.storage import (
    CopyRequest,
    _read_segment,
    copy_from_proto,
    copy_to_proto,
    digests_from_proto,
    digests_to_proto,
    read_segment_from_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as metadata_pb

TP = TopicIdPartition(UUID(int=1), "orders", 0)
SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(TP, UUID(int=2)),
    start_offset=0,
    end_offset=9,
    max_timestamp_ms=-1,
    broker_id=1,
    event_timestamp_ms=0,
    segment_leader_epochs=segment_leader_epochs([(0, 0)]),
    segment_size_in_bytes=3,
)


REPORT = PartitionReport(TP, 1, 1, 1, Lineage(), 0, 0, 0, 0, 0, 0)


def test_an_outcome_has_the_report_that_it_answers_and_does_not_carry_it() -> None:
    state = PartitionState(3, Lineage(segment_leader_epochs([(0, 0)])), REPORT, 5, 6)
    answered = AtRevision(state, 7)
    message = report_outcome_to_proto(answered)
    over_the_wire = metadata_pb.ReportOutcome.FromString(message.SerializeToString())
    assert not over_the_wire.result.state.HasField("report")
    assert report_outcome_from_proto(over_the_wire, REPORT) == answered


def test_refused_report_converts_to_its_error() -> None:
    message = report_outcome_to_proto(ConcurrentUpdateError("report_number: 4 ..."))
    over_the_wire = metadata_pb.ReportOutcome.FromString(message.SerializeToString())
    refusal = report_outcome_from_proto(over_the_wire, REPORT)
    assert isinstance(refusal, ConcurrentUpdateError)
    assert "report_number: 4 ..." in str(refusal)


def test_a_malformed_report_is_refused_by_path() -> None:
    good = report_to_proto(REPORT)
    with pytest.raises(InvalidRequestError, match=r"^reports\[1\]\.topic_id_part"):
        items_from_proto([good, metadata_pb.PartitionReport()], "reports", report_from_proto)
    good.high_watermark = 1
    with pytest.raises(InvalidRequestError, match=r"^reports\[0\]\.high_watermark: must"):
        items_from_proto([good], "reports", report_from_proto)


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (lambda m: m.ClearField("remote_log_segment_id"), "remote_log_segment_id: must be set"),
        (
            lambda m: m.remote_log_segment_id.ClearField("topic_id_partition"),
            "remote_log_segment_id.topic_id_partition: must be set",
        ),
        (
            lambda m: setattr(m.remote_log_segment_id.topic_id_partition, "topic_id", "x"),
            "remote_log_segment_id.topic_id_partition.topic_id: must be 22",
        ),
        (lambda m: m.ClearField("state"), "state: must be set"),
        (lambda m: setattr(m, "state", 99), "state: must be set to a known value, is 99"),
        (
            lambda m: setattr(m.segment_leader_epochs[0], "leader_epoch", -1),
            r"segment_leader_epochs\[0\]\.leader_epoch: must be 0",
        ),
    ],
)
def test_a_malformed_segment_is_refused_by_path(damage: object, path: str) -> None:
    message = metadata_to_proto(SEGMENT)
    assert callable(damage)
    damage(message)
    with pytest.raises(InvalidRequestError, match=f"^{path}"):
        metadata_from_proto(message)


def reset_leader_epoch(manager: object, topic_id_partition: TopicIdPartition, epoch: int) -> None:
    """Stand for a method of the contract of which a parameter is no field of the request."""


def undelete_partition(manager: object, topic_id_partition: TopicIdPartition) -> None:
    """Stand for one that lacks a field."""


def test_a_method_whose_parameters_are_not_those_of_its_request_is_refused() -> None:
    with pytest.raises(TypeError, match="reset_leader_epoch: epoch is no field of Reset"):
        rpc_of(reset_leader_epoch)
    with pytest.raises(TypeError, match=r"undelete_partition and Undelete.* differ: \['context'\]"):
        rpc_of(undelete_partition)


def copy_messages() -> list[CopyRequest]:
    files = [FileHeader(kind, 3, crc32c=7) for kind in SegmentFile]
    chunks = [SegmentChunk(kind, b"abc") for kind in SegmentFile]
    return list(copy_to_proto(SEGMENT, LogSegmentData(files, chunks)))


def test_copy_keeps_its_files_and_chunks_in_order() -> None:
    metadata, data = copy_from_proto(copy_messages())
    assert metadata == SEGMENT
    assert [(f.file, f.size_bytes, f.crc32c) for f in data.files] == [
        (kind, 3, 7) for kind in SegmentFile
    ]
    assert [(c.file, c.data) for c in data.chunks] == [(kind, b"abc") for kind in SegmentFile]


def test_a_copy_without_a_header_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^header"):
        copy_from_proto(copy_messages()[1:])


def test_a_copy_without_any_message_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^header"):
        copy_from_proto([])


def test_a_second_header_is_refused() -> None:
    messages = copy_messages()
    _, data = copy_from_proto([*messages, messages[0]])
    with pytest.raises(InvalidRequestError, match=r"^chunk"):
        list(data.chunks)


@pytest.mark.parametrize("missing", [kind for kind in SegmentFile if kind.name != "TRANSACTION"])
def test_every_file_but_the_transaction_index_must_be_announced(missing: SegmentFile) -> None:
    files = [FileHeader(kind, 0) for kind in SegmentFile if kind is not missing]
    with pytest.raises(InvalidRequestError, match=f"files: {missing.name} is missing"):
        LogSegmentData(files, [])


def test_a_role_of_a_later_release_is_refused() -> None:
    message = rlm_pb.FetchRequest(max_bytes=1)
    message.role = 99  # type: ignore[assignment]
    with pytest.raises(InvalidRequestError, match=r"^role: must be set to a known value"):
        fetch_request_from_proto(message)


def test_segment_converted_twice_is_equal() -> None:
    message = metadata_to_proto(SEGMENT)
    assert read_segment_from_proto(message) == read_segment_from_proto(message) == SEGMENT
    other = replace(SEGMENT, custom_metadata=None)
    assert read_segment_from_proto(metadata_to_proto(other)) == other


def test_a_long_segment_is_read_and_not_kept() -> None:
    epochs = [(epoch, SEGMENT.start_offset) for epoch in range(1000)]
    long = replace(SEGMENT, segment_leader_epochs=segment_leader_epochs(epochs))
    before = _read_segment.cache_info().currsize
    assert read_segment_from_proto(metadata_to_proto(long)) == long
    assert _read_segment.cache_info().currsize == before


def test_a_malformed_segment_is_refused_each_time_it_is_read() -> None:
    message = metadata_to_proto(SEGMENT)
    message.end_offset = -5
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"^end_offset"):
            read_segment_from_proto(message)


def test_a_message_and_a_dataclass_with_different_fields_are_refused() -> None:
    with pytest.raises(TypeError, match=r"report_number.*revision"):
        converters(PartitionReport, metadata_pb.PartitionSummary)


def test_log_with_a_wrong_number_of_chunks_is_refused() -> None:
    message = digests_to_proto(CopyDigests(LogDigest(FileDigest(3, 1), (1,)), {}))
    message.log.chunk_crc32c.append(7)
    with pytest.raises(InvalidRequestError, match=r"log.chunk_crc32c: must be 1, are 2"):
        digests_from_proto(message)
