"""Test that bad input is refused with the exact path of the field.

What lists of additions, look-ups, ids and events refuse stands in test_rlmm_bulk_requests; what the
manager itself refuses, in the contract. Here is how it reaches whoever calls over gRPC.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from services.api.ids import uuid_to_text
from services.api.partitions import EventQuery
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.contract.rlmm.segments import revision_of
from tests.contract.sound_rlmm_requests import (
    FUTURE,
    RPCS,
    TP,
    addition,
    change,
    report,
    rlmm_of_sound_requests,
    sound_requests,
    tp_message,
)
from tests.deep.fuzzing.calling import Answer, call, statuses_in
from tests.deep.fuzzing.rules import reason_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

Spoil = Callable[[Any], object]
INVALID, ABORTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED
ATTEMPT = "remote_log_segment_id"
OTHER_NAME = "payments"
ANOTHER_REVISION = (
    f"context.expected_revision: partition 0 of topic orders has revision 4, not {FUTURE}"
)


@pytest.fixture(scope="module")
def channel(rlmm_database_url: str) -> Iterator[grpc.Channel]:
    with rlmm_of_sound_requests(rlmm_database_url) as opened:
        yield opened


def epochs(*pairs: tuple[int, int]) -> list[segment_pb.SegmentLeaderEpoch]:
    return [segment_pb.SegmentLeaderEpoch(leader_epoch=e, start_offset=o) for e, o in pairs]


def set_epochs(*pairs: tuple[int, int]) -> Spoil:
    def spoil(request: Any) -> None:
        del request.metadata.segment_leader_epochs[:]
        request.metadata.segment_leader_epochs.extend(epochs(*pairs))

    return spoil


def put(path: str, value: object) -> Spoil:
    *way, last = path.split(".")

    def spoil(request: Any) -> None:
        for name in way:
            request = request[int(name)] if name.isdecimal() else getattr(request, name)
        setattr(request, last, value)

    return spoil


def repeated(field: str, count: int) -> Spoil:
    def spoil(request: Any) -> None:
        items = getattr(request, field)
        first = items[0]
        del items[:]
        items.extend([first] * count)

    return spoil


def added_to(field: str, value: Any) -> Spoil:
    return lambda request: getattr(request, field).append(value)


def settings(entries: Mapping[str, str]) -> Spoil:
    return lambda request: request.entries.update(entries)


def named(path: str) -> Spoil:
    """Put another name for the topic id of the field at `path`."""
    return put(f"{path}.topic_id_partition.topic", OTHER_NAME)


ADD, UPDATE = "AddRemoteLogSegmentMetadata", "UpdateRemoteLogSegmentMetadata"
BAD: list[tuple[str, Spoil, grpc.StatusCode, str]] = [
    (ADD, set_epochs(), INVALID, "metadata.segment_leader_epochs: must not be empty"),
    (ADD, set_epochs((1, 10), (0, 15)), INVALID, "metadata.segment_leader_epochs: must ascend"),
    (ADD, set_epochs((0, 15), (1, 10)), INVALID, "metadata.segment_leader_epochs: must ascend"),
    (ADD, set_epochs((0, 10), (0, 15)), INVALID, "metadata.segment_leader_epochs: must ascend"),
    (ADD, set_epochs((0, 10), (1, 20)), INVALID, "metadata.segment_leader_epochs: epoch start 20"),
    (
        ADD,
        set_epochs(*((epoch, 10) for epoch in range(10_001))),
        INVALID,
        "metadata.segment_leader_epochs: at most 10000",
    ),
    (ADD, put("metadata.end_offset", 9), INVALID, "metadata.end_offset: must not be below"),
    (ADD, put("metadata.state", 99), INVALID, "metadata.state: must be set to a known value"),
    (ADD, put("metadata.state", 2), INVALID, "metadata.state: must be COPY_SEGMENT_STARTED"),
    (
        ADD,
        put("metadata.custom_metadata", bytes(129)),
        INVALID,
        "metadata.custom_metadata: at most 128 bytes, has 129",
    ),
    *(
        (
            ADD,
            put(f"metadata.{ATTEMPT}.topic_id_partition.topic_id", id),
            INVALID,
            f"metadata.{ATTEMPT}.topic_id_partition.topic_id: {said}",
        )
        for id, said in [
            ("orders", "must be 22 characters"),
            (TP.topic_id.hex, "must be 22 characters"),
            (f"{{{TP.topic_id}}}", "must be 22 characters"),
            (uuid_to_text(TP.topic_id) + "==", "must be 22 characters"),
            ("A" * 21 + "B", "must be 22 characters"),
            ("A" * 22, "must not be the zero id"),
        ]
    ),
    (ADD, named(f"metadata.{ATTEMPT}"), INVALID, f"metadata.{ATTEMPT}.topic_id_partition.topic: "),
    (ADD, put("context.reason", "\0"), INVALID, "context.reason: must not contain NUL"),
    (ADD, put("context.retention_owner", 99), INVALID, "context.retention_owner: must be set"),
    (ADD, lambda _: None, ABORTED, ANOTHER_REVISION),
    (
        "AddRemoteLogSegmentMetadataBatch",
        repeated("adds", 2),
        INVALID,
        "adds[1]: adds[0] has",
    ),
    (
        "AddRemoteLogSegmentMetadataBatch",
        repeated("adds", 1_001),
        INVALID,
        "adds: must be 1 to 1000, are 1001",
    ),
    (UPDATE, put("update.state", 1), INVALID, "update.state: an update cannot be to COPY_SEGMENT_"),
    (UPDATE, put("update.state", 0), INVALID, "update.state: must be set to a known value"),
    (
        UPDATE,
        put("update.custom_metadata", bytes(129)),
        INVALID,
        "update.custom_metadata: at most 128 bytes, has 129",
    ),
    (UPDATE, put(f"update.{ATTEMPT}.id", "x"), INVALID, f"update.{ATTEMPT}.id: must be 22"),
    (UPDATE, named(f"update.{ATTEMPT}"), INVALID, f"update.{ATTEMPT}.topic_id_partition.topic: "),
    (UPDATE, lambda _: None, ABORTED, ANOTHER_REVISION),
    (
        "UpdateRemoteLogSegmentMetadataBatch",
        repeated("updates", 2),
        INVALID,
        "updates[1]: updates[0] has",
    ),
    (
        "UpdateRemoteLogSegmentMetadataBatch",
        added_to("updates", pb.UpdateRemoteLogSegmentMetadataRequest()),
        INVALID,
        "updates[1].update: must be set",
    ),
    *(
        (
            name,
            put("topic_id_partition.topic", OTHER_NAME),
            INVALID,
            "topic_id_partition.topic: topic id",
        )
        for name in (
            "GetRemoteLogSegmentMetadata",
            "GetHighestOffsetForEpoch",
            "ListRemoteLogSegments",
            "GetRemoteLogSize",
            "GetNextSegmentWithTxnIndex",
            "RaiseLogStartOffset",
            "ListEvents",
        )
    ),
    ("ListRemoteLogSegments", added_to("states", 0), INVALID, "states[0]: must be set to a known"),
    ("ListRemoteLogSegments", put("deletes_for", 99), INVALID, "deletes_for: must be set to"),
    (
        "PutRemotePartitionDeleteMetadata",
        put("metadata.state", 0),
        INVALID,
        "metadata.state: must be set to a known value, is 0",
    ),
    (
        "PutRemotePartitionDeleteMetadata",
        named("metadata"),
        INVALID,
        "metadata.topic_id_partition.topic: topic id",
    ),
    (
        "PutRemotePartitionDeleteMetadata",
        lambda _: None,
        ABORTED,
        ANOTHER_REVISION,
    ),
    (
        "OnPartitionLeadershipChanges",
        added_to("leaders", pb.PartitionLeadership()),
        INVALID,
        "leaders[2].topic_id_partition: must be set",
    ),
    (
        "OnPartitionLeadershipChanges",
        named("leaders.1"),
        INVALID,
        "leaders[1].topic_id_partition.topic: topic id",
    ),
    (
        "OnPartitionLeadershipChanges",
        named("followers.0"),
        INVALID,
        "followers[0].topic_id_partition.topic: topic id",
    ),
    (
        "OnPartitionLeadershipChanges",
        repeated("followers", 10_001),
        INVALID,
        "followers: must be at most 10000, are 10001",
    ),
    (
        "OnStopPartitions",
        added_to("partitions", segment_pb.TopicIdPartition()),
        INVALID,
        "partitions[1].topic_id: must be 22",
    ),
    (
        "GetPartitionRevisions",
        put("partitions.1.topic", OTHER_NAME),
        INVALID,
        "partitions[1].topic: ",
    ),
    (
        "WatchPartitions",
        put("partitions.1.topic_id_partition.topic", OTHER_NAME),
        INVALID,
        "partitions[1].topic_id_partition.topic: topic id",
    ),
    (
        "WatchPartitions",
        put("partitions.0.after_revision", -1),
        INVALID,
        "partitions[0].after_revision: must be 0 to",
    ),
    (
        "WatchPartitions",
        added_to("partitions", pb.WatchedPartition()),
        INVALID,
        "partitions[2].topic_id_partition: must be set",
    ),
    (
        "ListPartitions",
        added_to("delete_states", 99),
        INVALID,
        "delete_states[0]: must be set to",
    ),
    (
        "PutTopicConfig",
        settings({"nonsense": "1"}),
        INVALID,
        "nonsense: no such setting of a topic",
    ),
    (
        "PutTopicConfig",
        settings({"a\nb": "1"}),
        INVALID,
        "'a\\nb': no such setting of a topic",
    ),
    ("PutTopicConfig", put("topic_id", "x"), INVALID, "topic_id: must be 22 characters"),
    ("PutTopicConfig", put("context.plan_id", "p"), INVALID, "context: only reason may be set"),
    (
        "PutTopicConfig",
        settings({"sediment.owner": "team"}),
        ABORTED,
        f"expected_revision: the settings of topic orders have revision 0, not {FUTURE}",
    ),
    (
        "ReportPartitionState",
        lambda request: request.reports[1].leader_epochs.extend(epochs((0, 0))),
        INVALID,
        "reports[1].leader_epochs: 0 at 0 cannot follow 3 at 50",
    ),
    (
        "ReportPartitionState",
        put("reports.1.leader_epoch", 2),
        INVALID,
        "reports[1].leader_epochs: has 3, above leader_epoch 2",
    ),
    (
        "ReportPartitionState",
        put("reports.0.high_watermark", 101),
        INVALID,
        "reports[0].high_watermark: must not be above log_end_offset 100",
    ),
    (
        "ReportPartitionState",
        put("polled_logs.1.log_start_offset", -1),
        INVALID,
        "polled_logs[1].log_start_offset",
    ),
    (
        "RaiseLogStartOffset",
        lambda _: None,
        ABORTED,
        ANOTHER_REVISION,
    ),
    ("ScanRemoteLogSegments", put("shards", 10_001), INVALID, "shards: must be 1 to 10000"),
    ("ScanRemoteLogSegments", put("shard", 1), INVALID, "shard: must be 0 to"),
    ("ScanRemoteLogSegments", put("partition", 1), INVALID, "partition: needs topic"),
    ("ScanRemoteLogSegments", put("topic", "\0"), INVALID, "topic: must not contain NUL"),
    ("BinRemoteLogSegments", put("axis", 99), INVALID, "axis: must be set to a known"),
    ("BinRemoteLogSegments", put("bins", 0), INVALID, "bins: must be 1 to 2000"),
    ("BinRemoteLogSegments", put("first", -1), INVALID, "first: must be 0 to"),
    ("ScanRemoteLogSegments", added_to("columns", "size"), INVALID, "columns: must be some of"),
    (
        "ScanRemoteLogSegments",
        added_to("delete_states", 0),
        INVALID,
        "delete_states[0]: must be set",
    ),
]


@pytest.mark.parametrize(
    ("name", "spoil", "code", "said"), BAD, ids=[f"{name} {said}" for name, _, _, said in BAD]
)
def test_bad_input_is_named(
    channel: grpc.Channel, name: str, spoil: Spoil, code: grpc.StatusCode, said: str
) -> None:
    request = sound_requests()[name]
    spoil(request)
    before = revision_of(RemoteLogMetadataManagerClient(channel, "rlmm"), TP)
    answer = call(channel, RPCS[name], [request])
    assert (answer.code, answer.said[: len(said)]) == (code, said)
    assert revision_of(RemoteLogMetadataManagerClient(channel, "rlmm"), TP) == before


def test_too_much_custom_metadata_has_its_own_reason(channel: grpc.Channel) -> None:
    request = addition()
    request.metadata.custom_metadata = bytes(129)
    answer = call(channel, RPCS[ADD], [request])
    assert answer.status is not None
    assert reason_of(answer.status) == "CUSTOM_METADATA_TOO_LARGE"


def test_the_refusal_of_an_item_names_a_field_of_the_item(channel: grpc.Channel) -> None:
    """Only the database can find this fault, of one item among valid ones."""
    misnamed = addition()
    misnamed.metadata.remote_log_segment_id.topic_id_partition.topic = OTHER_NAME
    adds = pb.AddRemoteLogSegmentMetadataBatchRequest(adds=[addition(), misnamed])
    assert items_said(call(channel, RPCS[f"{ADD}Batch"], [adds]))[1].startswith(
        f"metadata.{ATTEMPT}.topic_id_partition.topic: topic id"
    )
    moved = change()
    moved.update.remote_log_segment_id.topic_id_partition.topic = OTHER_NAME
    updates = pb.UpdateRemoteLogSegmentMetadataBatchRequest(updates=[moved])
    assert items_said(call(channel, RPCS[f"{UPDATE}Batch"], [updates]))[0].startswith(
        f"update.{ATTEMPT}.topic_id_partition.topic: topic id"
    )
    looked_up = pb.GetRemoteLogSegmentMetadataRequest(topic_id_partition=tp_message())
    looked_up.topic_id_partition.topic = OTHER_NAME
    lookups = pb.GetRemoteLogSegmentMetadataBatchRequest(lookups=[looked_up])
    assert items_said(call(channel, RPCS["GetRemoteLogSegmentMetadataBatch"], [lookups])) == [
        f"topic_id_partition.topic: topic id {TP.topic_id} belongs to another topic than "
        "'payments'; send the topic's own name"
    ]
    reported = report()
    del reported.reports[1:]
    reported.reports[0].topic_id_partition.topic = OTHER_NAME
    assert items_said(call(channel, RPCS["ReportPartitionState"], [reported]))[0].startswith(
        "topic_id_partition.topic: topic id"
    )


def items_said(answer: Answer) -> list[str]:
    return [status.message for response in answer.responses for status in statuses_in(response)]


FORGED = [
    pytest.param("x", "page_token: not a page token", id="nonsense"),
    pytest.param("A" * 40, "page_token: not a page token", id="too short"),
    pytest.param("A" * 43 + "=", "page_token: is of another query", id="of nobody"),
]
PAGED = ["ListRemoteLogSegments", "ListPartitions", "ListEvents"]


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize(("token", "said"), FORGED)
def test_a_forged_page_token_is_refused(
    channel: grpc.Channel, name: str, token: str, said: str
) -> None:
    answer = call(channel, RPCS[name], [paged(name, token)])
    assert (answer.code, answer.said) == (INVALID, said)


@pytest.mark.parametrize("name", PAGED)
def test_the_page_token_of_another_rpc_is_refused(channel: grpc.Channel, name: str) -> None:
    rlmm = RemoteLogMetadataManagerClient(channel, "rlmm")
    tokens = {
        "ListPartitions": rlmm.list_partitions(page_size=1).next_page_token,
        "ListEvents": rlmm.list_events(EventQuery(TP), page_size=1).next_page_token,
    }
    for token in (tokens[other] for other in tokens if other != name):
        assert token
        answer = call(channel, RPCS[name], [paged(name, token)])
        assert (answer.code, answer.said) == (INVALID, "page_token: is of another query")


def paged(name: str, token: str) -> Message:
    request: Any = sound_requests()[name]
    if name == "ListRemoteLogSegments":
        request.ClearField("if_revision_not")
    request.page_token = token
    return request  # type: ignore[no-any-return]
