"""Name the groups of a consumer's request, and refuse a request for groups that it may not use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from struct import pack
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

NOT_AUTHORIZED = 30
LIST_GROUPS, CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 16, 68, 69

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic


@dataclass(frozen=True, slots=True)
class GroupApi:
    """A request of groups, where its groups are, and the answer that refuses it.

    Attributes:
        names: returns the groups of a request.
        refused: returns the answer to a request that is refused.
    """

    request: Any
    response: Any
    names: Callable[[Any], Sequence[str]]
    refused: Callable[[Any], Any]


def _one(request: Any) -> Sequence[str]:
    return (request.group_id,)


def _refused_by(response: Any) -> Callable[[Any], Any]:
    return lambda _: response(error_code=NOT_AUTHORIZED)


def _join_refused(_: Any) -> Any:
    none = dict.fromkeys(("protocol_type", "protocol_name", "leader", "member_id"), "")
    return JoinGroupResponse(error_code=NOT_AUTHORIZED, members=[], **none)


def _sync_refused(_: Any) -> Any:
    return SyncGroupResponse(error_code=NOT_AUTHORIZED, assignment=b"")


def _leave_refused(_: Any) -> Any:
    return LeaveGroupResponse(error_code=NOT_AUTHORIZED, members=[])


def _delete_offsets_refused(_: Any) -> Any:
    return OffsetDeleteResponse(error_code=NOT_AUTHORIZED, topics=[])


def _commit_refused(request: Any) -> Any:
    return OffsetCommitResponse(
        topics=[
            _CommitTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _CommitTopic.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=NOT_AUTHORIZED
                    )
                    for each in topic.partitions or ()
                ],
            )
            for topic in request.topics or ()
        ]
    )


def _offset_fetch_names(request: Any) -> Sequence[str]:
    return [each.group_id for each in request.groups or ()] or (request.group_id,)


def _offset_fetch_refused(request: Any) -> Any:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    groups = [
        group(group_id=each.group_id, topics=[], error_code=NOT_AUTHORIZED)
        for each in request.groups or ()
    ]
    return OffsetFetchResponse(error_code=NOT_AUTHORIZED, topics=[], groups=groups)


def _describe_refused(request: Any) -> Any:
    group = DescribeGroupsResponse.DescribedGroup
    none = dict.fromkeys(("group_state", "protocol_type", "protocol_data"), "")
    return DescribeGroupsResponse(
        groups=[
            group(error_code=NOT_AUTHORIZED, group_id=name, members=[], **none)
            for name in request.groups or ()
        ]
    )


def _delete_refused(request: Any) -> Any:
    result = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        results=[result(group_id=name, error_code=NOT_AUTHORIZED) for name in request.groups_names]
    )


GROUP_APIS = {
    8: GroupApi(OffsetCommitRequest, OffsetCommitResponse, _one, _commit_refused),
    9: GroupApi(
        OffsetFetchRequest, OffsetFetchResponse, _offset_fetch_names, _offset_fetch_refused
    ),
    11: GroupApi(JoinGroupRequest, JoinGroupResponse, _one, _join_refused),
    12: GroupApi(HeartbeatRequest, HeartbeatResponse, _one, _refused_by(HeartbeatResponse)),
    13: GroupApi(LeaveGroupRequest, LeaveGroupResponse, _one, _leave_refused),
    14: GroupApi(SyncGroupRequest, SyncGroupResponse, _one, _sync_refused),
    15: GroupApi(
        DescribeGroupsRequest, DescribeGroupsResponse, lambda r: r.groups or (), _describe_refused
    ),
    16: GroupApi(
        ListGroupsRequest, ListGroupsResponse, lambda _: (), _refused_by(ListGroupsResponse)
    ),
    42: GroupApi(
        DeleteGroupsRequest, DeleteGroupsResponse, lambda r: r.groups_names or (), _delete_refused
    ),
    47: GroupApi(OffsetDeleteRequest, OffsetDeleteResponse, _one, _delete_offsets_refused),
}
"""By API key; kafka-python does not know those of KIP-848."""


def heartbeat_group(data: bytes) -> str:
    """Return the group of a ConsumerGroupHeartbeat: the first text behind the request's header."""
    stream = BytesIO(data)
    RequestHeader.decode(stream, flexible=True)
    length = 0
    for shift in range(0, 35, 7):
        byte = stream.read(1)[0]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return stream.read(length - 1).decode()
    raise ValueError("a length of more than five bytes")


def refused_heartbeat(correlation_id: int) -> bytes:
    """Return the framed answer that refuses a ConsumerGroupHeartbeat (versions 0 and 1)."""
    no_text, no_struct, no_tags = 0, -1, 0
    body = pack(">ihbbiibb", 0, NOT_AUTHORIZED, no_text, no_text, 0, 0, no_struct, no_tags)
    return pack(">iib", 5 + len(body), correlation_id, no_tags) + body
