"""Test that messages convert back to equal objects, and malformed ones are refused by field
path.
"""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from services.api.calls import AtRevision, MutationContext
from services.api.errors import ConcurrentUpdateError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import (
    NOTHING_COPIED,
    PartitionReport,
    PartitionState,
    PolledLog,
    RemotePartitionDeleteState,
    SegmentTotals,
)
from services.api.remote_log_metadata_manager import PartitionPage, PartitionSummary, SegmentPage
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogDigest,
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
)
from services.api.remote_storage_manager import SegmentFileHeader as FileHeader
from services.api.segment_objects import StoredManifest
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.topic_config import RetentionOwner, StoredTopicConfig
from services.rpc.converters.fields import converters, items_from_proto
from services.rpc.converters.log import fetch_request_from_proto
from services.rpc.converters.partitions import (
    partition_page_from_proto,
    partition_page_to_proto,
    report_from_proto,
    report_outcome_from_proto,
    report_outcome_to_proto,
    report_to_proto,
    state_from_proto,
    state_to_proto,
    topic_config_from_proto,
    topic_config_to_proto,
)
from services.rpc.converters.segments import (
    segment_page_from_proto,
    segment_page_to_proto,
)
from services.rpc.converters.shared import (
    context_from_proto,
    context_to_proto,
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
    manifest_from_proto,
    manifest_to_proto,
    read_segment_from_proto,
)
from tests.contract.remote_storage_manager_contract import a_segment
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as metadata_pb
from tieredstorage.v1 import remote_log_segment_pb2 as pb

OFFSETS = st.integers(0, 2**62)
IDS = st.uuids().filter(lambda uuid: uuid.int != 0)
NAMES = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(OFFSETS)
    length = draw(st.integers(0, 2**32))
    later = draw(st.lists(st.integers(0, length), max_size=4))
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=5, max_size=5)))
    starts = [start, *sorted(start + offset for offset in later)]
    tp = TopicIdPartition(draw(IDS), draw(NAMES), draw(st.integers(0, 2**31 - 1)))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(tp, draw(IDS)),
        start_offset=start,
        end_offset=start + length,
        max_timestamp_ms=draw(st.integers(-1, 2**62)),
        broker_id=draw(st.integers(-1, 2**31 - 1)),
        event_timestamp_ms=draw(OFFSETS),
        segment_leader_epochs=segment_leader_epochs(list(zip(epochs, starts, strict=False))),
        segment_size_in_bytes=draw(st.integers(-1, 2**31 - 1)),
        custom_metadata=draw(st.none() | st.binary(max_size=128)),
        state=draw(st.sampled_from(RemoteLogSegmentState)),
        txn_idx_empty=draw(st.booleans()),
        broker_leader_epoch=draw(st.none() | st.integers(0, 2**31 - 1)),
    )


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


@pytest.mark.parametrize("copy_leased", [True, False])
def test_copy_leased_survives_conversion(copy_leased: bool) -> None:
    reported = replace(SEGMENT, copy_leased=copy_leased)
    assert reported == SEGMENT
    assert metadata_from_proto(metadata_to_proto(reported)).copy_leased is copy_leased


def test_an_unknown_retention_owner_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^retention_owner: .* 99"):
        context_from_proto(pb.MutationContext(retention_owner=99))  # type: ignore[arg-type]


PARTITIONS = st.builds(TopicIdPartition, IDS, NAMES, st.integers(0, 2**31 - 1))


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=5)))
    starts = sorted(draw(OFFSETS) for _ in epochs)
    return Lineage(segment_leader_epochs(list(zip(epochs, starts, strict=True))))


@st.composite
def reports(draw: st.DrawFn) -> PartitionReport:
    high_watermark, last_stable_offset = draw(OFFSETS), draw(OFFSETS)
    lineage = draw(lineages())
    return PartitionReport(
        topic_id_partition=draw(PARTITIONS),
        broker_id=draw(st.integers(-1, 2**31 - 1)),
        leader_epoch=draw(st.integers(lineage.latest_epoch or 0, 2**31 - 1)),
        report_number=draw(OFFSETS),
        lineage=lineage,
        local_log_start_offset=draw(OFFSETS),
        log_end_offset=max(high_watermark, last_stable_offset),
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        only_local_bytes=draw(OFFSETS),
        copied_through_offset=draw(st.integers(NOTHING_COPIED, 2**62)),
    )


def polled_logs() -> st.SearchStrategy[PolledLog]:
    epochs = st.integers(0, 2**31 - 1)
    return st.builds(PolledLog, PARTITIONS, epochs, epochs, lineages(), OFFSETS, OFFSETS)


STATES = st.builds(
    AtRevision,
    st.builds(
        PartitionState,
        log_start_offset=OFFSETS,
        lineage=lineages(),
        report=st.none() | reports(),
        reported_at_ms=st.none() | OFFSETS,
        read_at_ms=OFFSETS,
        polled_log=st.none() | polled_logs(),
        polled_at_ms=st.none() | OFFSETS,
    ),
    OFFSETS,
)


crcs = st.integers(0, 2**32 - 1)
files = st.builds(FileDigest, st.integers(0, 2**31 - 1), crcs)


@st.composite
def logs(draw: st.DrawFn) -> LogDigest:
    chunk_bytes = draw(st.integers(1, 2**21))
    chunks = draw(st.lists(crcs, max_size=5))
    short = draw(st.integers(0, chunk_bytes - 1)) if chunks else 0
    whole = FileDigest(len(chunks) * chunk_bytes - short, draw(crcs))
    return LogDigest(whole, tuple(chunks), chunk_bytes)


def digests() -> st.SearchStrategy[CopyDigests]:
    return st.builds(CopyDigests, logs(), st.dictionaries(st.sampled_from(IndexType), files))


CONTEXTS = st.builds(
    MutationContext,
    request_id=st.none() | st.text(min_size=1, max_size=20),
    reason=st.text(max_size=20),
    rule_detail=st.none() | st.text(max_size=20),
    plan_id=st.none() | st.text(max_size=20),
    broker_leader_epoch=st.none() | st.integers(0, 2**31 - 1),
    expected_revision=st.none() | OFFSETS,
    expected_config_revision=st.none() | OFFSETS,
    retention_owner=st.none() | st.sampled_from(RetentionOwner),
)
STORED_CONFIGS = st.builds(
    StoredTopicConfig,
    topic_id=IDS,
    topic=NAMES,
    entries=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4),
    revision=OFFSETS,
)
PARTITION_PAGES = st.builds(
    PartitionPage,
    partitions=st.lists(
        st.builds(
            PartitionSummary,
            PARTITIONS,
            delete_state=st.none() | st.sampled_from(RemotePartitionDeleteState),
            revision=OFFSETS,
            marked_at_ms=st.none() | OFFSETS,
            read_at_ms=OFFSETS,
            cluster_id=st.none() | st.text("abc", max_size=5),
            known_since_ms=OFFSETS,
            totals=st.builds(SegmentTotals, OFFSETS, OFFSETS, OFFSETS, OFFSETS),
        ),
        max_size=3,
    ).map(tuple),
    next_page_token=st.text("abc", max_size=5),
)
SEGMENT_PAGES = st.builds(
    SegmentPage,
    segments=st.lists(segments(), max_size=2).map(tuple),
    next_page_token=st.text("abc", max_size=5),
    revision=OFFSETS,
    not_modified=st.booleans(),
    log_start_offset=OFFSETS,
)


@pytest.mark.parametrize(
    ("values", "write", "read"),
    [
        (segments(), metadata_to_proto, metadata_from_proto),
        (CONTEXTS, context_to_proto, context_from_proto),
        (reports(), report_to_proto, report_from_proto),
        (STATES, state_to_proto, state_from_proto),
        (STORED_CONFIGS, topic_config_to_proto, topic_config_from_proto),
        (PARTITION_PAGES, partition_page_to_proto, partition_page_from_proto),
        (SEGMENT_PAGES, segment_page_to_proto, segment_page_from_proto),
        (digests(), digests_to_proto, digests_from_proto),
    ],
)
@given(data=st.data())
def test_a_value_is_equal_after_conversion(
    data: st.DataObject,
    values: st.SearchStrategy[object],
    write: Callable[[object], Message],
    read: Callable[[Message], object],
) -> None:
    value = data.draw(values)
    message = write(value)
    assert read(type(message).FromString(message.SerializeToString())) == value


@given(STATES, reports())
def test_an_outcome_has_the_report_that_it_answers_and_does_not_carry_it(
    state: AtRevision[PartitionState], report: PartitionReport
) -> None:
    answered = AtRevision(replace(state.value, report=report), state.revision)
    message = report_outcome_to_proto(answered)
    over_the_wire = metadata_pb.ReportOutcome.FromString(message.SerializeToString())
    assert not over_the_wire.result.state.HasField("report")
    assert report_outcome_from_proto(over_the_wire, report) == answered


def test_refused_report_converts_to_its_error() -> None:
    message = report_outcome_to_proto(ConcurrentUpdateError("report_number: 4 ..."))
    over_the_wire = metadata_pb.ReportOutcome.FromString(message.SerializeToString())
    report = PartitionReport(TP, 1, 1, 1, Lineage(), 0, 0, 0, 0, 0, 0)
    refusal = report_outcome_from_proto(over_the_wire, report)
    assert isinstance(refusal, ConcurrentUpdateError)
    assert "report_number: 4 ..." in str(refusal)


def test_a_malformed_report_is_refused_by_path() -> None:
    good = report_to_proto(PartitionReport(TP, 1, 1, 1, Lineage(), 0, 0, 0, 0, 0, 0))
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


def test_a_manifest_of_an_older_service_has_no_digests() -> None:
    manifest = StoredManifest(a_segment(), "0" * 16, 1, 2, 3, other_deployment_id="another")
    assert manifest_from_proto(manifest_to_proto(manifest)) == manifest


def test_log_with_a_wrong_number_of_chunks_is_refused() -> None:
    message = digests_to_proto(CopyDigests(LogDigest(FileDigest(3, 1), (1,)), {}))
    message.log.chunk_crc32c.append(7)
    with pytest.raises(InvalidRequestError, match=r"log.chunk_crc32c: must be 1, are 2"):
        digests_from_proto(message)
