"""Test malformed bulk requests: refused as a whole, with the path of the faulty field."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import grpc
import pytest

from services.api.ids import TopicIdPartition, uuid_to_text
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.converters.shared import metadata_to_proto, topic_id_partition_to_proto
from tests.contract.rlmm.segments import segment
from tests.harness.served import served_manager
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

TP = TopicIdPartition(uuid4(), "orders", 0)
LONG = "x" * 257


@pytest.fixture(scope="module")
def channel(rlmm_database_url: str) -> Iterator[grpc.Channel]:
    engine = create_database_engine(rlmm_database_url)
    with served_manager(SqlRemoteLogMetadataManager(engine)) as (opened, _):
        yield opened
    engine.dispose()


def refusal(method: Any, request: object) -> str:
    """Return the message of an INVALID_ARGUMENT."""
    with pytest.raises(grpc.RpcError) as refused:
        method(request, timeout=60)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
    return str(error.details())


def sound_addition() -> pb.AddRemoteLogSegmentMetadataRequest:
    return pb.AddRemoteLogSegmentMetadataRequest(metadata=metadata_to_proto(segment(TP, 0, 9)))


def sound_lookup() -> pb.GetRemoteLogSegmentMetadataRequest:
    return pb.GetRemoteLogSegmentMetadataRequest(topic_id_partition=topic_id_partition_to_proto(TP))


Change = Callable[[Any], object]


def cleared(*path: str) -> Change:
    def change(message: Any) -> None:
        for name in path[:-1]:
            message = getattr(message, name)
        message.ClearField(path[-1])

    return change


def put(value: object, *path: str) -> Change:
    def change(message: Any) -> None:
        for name in path[:-1]:
            message = getattr(message, name)
        setattr(message, path[-1], value)

    return change


ID = ("metadata", "remote_log_segment_id")
BAD_ADDITIONS: list[tuple[Change, str]] = [
    (cleared("metadata"), "metadata: must be set"),
    (cleared(*ID), "metadata.remote_log_segment_id: must be set"),
    (
        cleared(*ID, "topic_id_partition"),
        "metadata.remote_log_segment_id.topic_id_partition: must be set",
    ),
    (put("", *ID, "id"), "metadata.remote_log_segment_id.id: must be 22 characters"),
    (
        put("nonsense", *ID, "topic_id_partition", "topic_id"),
        "metadata.remote_log_segment_id.topic_id_partition.topic_id: must be 22",
    ),
    (
        put("a/b", *ID, "topic_id_partition", "topic"),
        "metadata.remote_log_segment_id.topic_id_partition.topic: not a legal",
    ),
    (
        put(-1, *ID, "topic_id_partition", "partition"),
        "metadata.remote_log_segment_id.topic_id_partition.partition: must be 0",
    ),
    (put(-1, "metadata", "start_offset"), "metadata.start_offset: must be 0"),
    (put(-1, "metadata", "end_offset"), "metadata.end_offset: must not be below"),
    (put(-2, "metadata", "broker_id"), "metadata.broker_id: must be -1"),
    (put(-2, "metadata", "max_timestamp_ms"), "metadata.max_timestamp_ms: must be -1"),
    (put(-1, "metadata", "event_timestamp_ms"), "metadata.event_timestamp_ms: must be 0"),
    (put(-2, "metadata", "segment_size_in_bytes"), "metadata.segment_size_in_bytes: must be -1"),
    (put(-1, "metadata", "broker_leader_epoch"), "metadata.broker_leader_epoch: must be 0"),
    (cleared("metadata", "segment_leader_epochs"), "metadata.segment_leader_epochs: must not be"),
    (cleared("metadata", "state"), "metadata.state: "),
    (put(99, "metadata", "state"), "metadata.state: "),
    (put(LONG, "context", "request_id"), "context.request_id: over 256"),
    (put("", "context", "request_id"), "context.request_id: must not be empty"),
    (put(LONG, "context", "reason"), "context.reason: over 256"),
    (put(LONG, "context", "rule_detail"), "context.rule_detail: over 256"),
    (put(LONG, "context", "plan_id"), "context.plan_id: over 256"),
    (put(-1, "context", "broker_leader_epoch"), "context.broker_leader_epoch: must be 0"),
    (put(-1, "context", "expected_revision"), "context.expected_revision: must be 0"),
    (put(-1, "context", "expected_config_revision"), "context.expected_config_revision: must be 0"),
    (put(99, "context", "retention_owner"), "context.retention_owner: "),
]


@pytest.mark.parametrize(("change", "said"), BAD_ADDITIONS, ids=[said for _, said in BAD_ADDITIONS])
def test_a_malformed_addition_is_named_by_its_index(
    channel: grpc.Channel, change: Change, said: str
) -> None:
    stub, bad = pb_grpc.RemoteLogMetadataManagerStub(channel), sound_addition()
    change(bad)
    request = pb.AddRemoteLogSegmentMetadataBatchRequest(adds=[sound_addition(), bad])
    assert f"adds[1].{said}" in refusal(stub.AddRemoteLogSegmentMetadataBatch, request)
    partitions = [topic_id_partition_to_proto(TP)]
    unchanged = stub.GetPartitionRevisions(pb.GetPartitionRevisionsRequest(partitions=partitions))
    assert unchanged.revisions == [0]


BAD_LOOKUPS: list[tuple[Change, str]] = [
    (cleared("topic_id_partition"), "topic_id_partition: must be set"),
    (put("", "topic_id_partition", "topic_id"), "topic_id_partition.topic_id: must be 22"),
    (put("", "topic_id_partition", "topic"), "topic_id_partition.topic: not a legal"),
    (put(-1, "topic_id_partition", "partition"), "topic_id_partition.partition: must be 0"),
    (put(-1, "epoch_for_offset"), "epoch_for_offset: must be 0"),
    (put(-1, "offset"), "offset: must be 0"),
]


@pytest.mark.parametrize(("change", "said"), BAD_LOOKUPS, ids=[said for _, said in BAD_LOOKUPS])
def test_a_malformed_look_up_is_named_by_its_index(
    channel: grpc.Channel, change: Change, said: str
) -> None:
    stub, bad = pb_grpc.RemoteLogMetadataManagerStub(channel), sound_lookup()
    change(bad)
    request = pb.GetRemoteLogSegmentMetadataBatchRequest(lookups=[sound_lookup(), bad])
    assert f"lookups[1].{said}" in refusal(stub.GetRemoteLogSegmentMetadataBatch, request)


def of_partition(request: Any, **fields: Any) -> Any:
    return request(topic_id_partition=topic_id_partition_to_proto(TP), **fields)


SOUND_ID = uuid_to_text(uuid4())
BAD_REQUESTS: list[tuple[str, Any, str]] = [
    ("AddRemoteLogSegmentMetadataBatch", pb.AddRemoteLogSegmentMetadataBatchRequest(), "adds: "),
    ("GetRemoteLogSegmentMetadataBatch", pb.GetRemoteLogSegmentMetadataBatchRequest(), "lookups: "),
    (
        "GetRemoteLogSegmentMetadataById",
        pb.GetRemoteLogSegmentMetadataByIdRequest(ids=[SOUND_ID]),
        "topic_id_partition: must be set",
    ),
    (
        "GetRemoteLogSegmentMetadataById",
        of_partition(pb.GetRemoteLogSegmentMetadataByIdRequest),
        "ids: must be 1 to 1000, are 0",
    ),
    (
        "GetRemoteLogSegmentMetadataById",
        of_partition(pb.GetRemoteLogSegmentMetadataByIdRequest, ids=[SOUND_ID, ""]),
        "ids[1]: must be 22 characters",
    ),
    (
        "GetRemoteLogSegmentMetadataById",
        of_partition(pb.GetRemoteLogSegmentMetadataByIdRequest, ids=[SOUND_ID] * 1001),
        "ids: must be 1 to 1000, are 1001",
    ),
    ("GetEarliestLogOffset", pb.GetEarliestLogOffsetRequest(), "topic_id_partition: must be"),
    ("GetPartitionRevisions", pb.GetPartitionRevisionsRequest(), "partitions: must be 1"),
    (
        "GetPartitionRevisions",
        pb.GetPartitionRevisionsRequest(
            partitions=[topic_id_partition_to_proto(TP), segment_pb.TopicIdPartition()]
        ),
        "partitions[1].topic_id: must be 22 characters",
    ),
    ("ListEvents", pb.ListEventsRequest(), "topic_id_partition: must be set"),
    ("ListEvents", of_partition(pb.ListEventsRequest, after_revision=-1), "after_revision: must"),
    ("ListEvents", of_partition(pb.ListEventsRequest, segment_id="x"), "segment_id: must be 22"),
    ("ListEvents", of_partition(pb.ListEventsRequest, plan_id=LONG), "plan_id: over 256"),
    ("ListEvents", of_partition(pb.ListEventsRequest, page_size=-1), "page_size: must not be"),
    ("ListEvents", of_partition(pb.ListEventsRequest, page_token="x"), "page_token: not a page"),
]


@pytest.mark.parametrize(
    ("name", "request_", "said"), BAD_REQUESTS, ids=[f"{n} {s}" for n, _, s in BAD_REQUESTS]
)
def test_a_malformed_request_names_the_field(
    channel: grpc.Channel, name: str, request_: object, said: str
) -> None:
    stub = pb_grpc.RemoteLogMetadataManagerStub(channel)
    assert said in refusal(getattr(stub, name), request_)


@pytest.mark.deep
def test_a_batch_that_is_full_fits_into_a_message(channel: grpc.Channel) -> None:
    rlmm = RemoteLogMetadataManagerClient(channel, "rlmm")
    tps = [TopicIdPartition(uuid4(), "o" * 249, number) for number in range(10_000)]
    assert rlmm.partition_revisions(tps) == [0] * 10_000
