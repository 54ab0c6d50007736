"""Test that RLM's listener for consumers answers every version that it offers, and a follower."""

from typing import Any

import pytest
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from services.api.offset_queries import MAX_OFFSET_QUERIES, EpochAnswer, EpochQuery
from services.rlm.consumers.answers import Answers
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.partition_readers import Readers
from tests.harness.doors import NODE_ID, fetch_of, framed
from tests.harness.ship_stack import Stack
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

REQUESTS: dict[int, tuple[Any, Any]] = {
    1: (FetchRequest, FetchResponse),
    2: (ListOffsetsRequest, ListOffsetsResponse),
    3: (MetadataRequest, MetadataResponse),
    8: (OffsetCommitRequest, OffsetCommitResponse),
    9: (OffsetFetchRequest, OffsetFetchResponse),
    10: (FindCoordinatorRequest, FindCoordinatorResponse),
    11: (JoinGroupRequest, JoinGroupResponse),
    18: (ApiVersionsRequest, ApiVersionsResponse),
    23: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
}
OFFERED = [
    (1, 4, 13),
    (2, 1, 11),
    (3, 0, 12),
    (8, 2, 9),
    (9, 2, 7),
    (10, 0, 3),
    (11, 0, 9),
    (18, 0, 4),
    (23, 2, 4),
]
NOT_LEADER, REQUEST_TIMED_OUT, GROUP_AUTHORIZATION_FAILED = 6, 7, 30


@pytest.fixture
def answers(stack: Stack) -> Answers:
    three_segments(stack.log_dir)
    stack.ship()
    return answers_of(stack.tier_reader())


def answers_of(rlm: BrokerRemoteLogManager) -> Answers:
    return Answers(rlm, ReaderCluster(Node(NODE_ID, "host", 1), Readers()), lambda *_: True, 2**20)


def request_of(api_key: int) -> Any:
    match api_key:
        case 1:
            request = fetch_of(NAME.topic_id, 0)
            request.topics[0].topic = NAME.topic
            return request
        case 2:
            listed = ListOffsetsRequest.ListOffsetsTopic
            asked = listed.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=-2
            )
            topics = [listed(name=NAME.topic, partitions=[asked])]
            return ListOffsetsRequest(
                replica_id=-1, isolation_level=0, topics=topics, timeout_ms=1000
            )
        case 3:
            topic = MetadataRequest.MetadataRequestTopic(topic_id=NAME.topic_id, name=NAME.topic)
            return MetadataRequest(
                topics=[topic],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        case 8:
            committed = OffsetCommitRequest.OffsetCommitRequestTopic
            offset = committed.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            topics = [committed(name=NAME.topic, partitions=[offset])]
            return OffsetCommitRequest(group_id="group", member_id="", topics=topics)
        case 9:
            return OffsetFetchRequest(group_id="group", topics=[])
        case 10:
            return FindCoordinatorRequest(key="group", key_type=0)
        case 11:
            return JoinGroupRequest(
                group_id="group",
                session_timeout_ms=1,
                rebalance_timeout_ms=1,
                member_id="",
                protocol_type="consumer",
                protocols=[],
            )
        case 18:
            return ApiVersionsRequest(client_software_name="test", client_software_version="1")
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    of_epoch = wanted.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[wanted(topic=NAME.topic, partitions=[of_epoch])]
    )


def asked(answers: Answers, request: Any, api_key: int, version: int) -> Any:
    answer = answers.answer(api_key, version, framed(request, version)[4:])
    return REQUESTS[api_key][1].decode(b"".join(answer)[4:], version=version, header=True)


def test_the_versions_of_this_test_are_those_that_are_offered(answers: Answers) -> None:
    offered = asked(answers, request_of(18), 18, 4).api_keys
    found = {(each.api_key, each.min_version, each.max_version) for each in offered}
    produce, init_producer_id = 0, 22
    assert {each for each in found if each[0] not in (produce, init_producer_id)} == set(OFFERED)


@pytest.mark.parametrize(("api_key", "first", "last"), OFFERED)
def test_each_offered_version_is_answered(
    answers: Answers, api_key: int, first: int, last: int
) -> None:
    for version in range(first, last + 1):
        require_answer(asked(answers, request_of(api_key), api_key, version), api_key)


def require_answer(answer: Any, api_key: int) -> None:
    match api_key:
        case 1:
            (part,) = answer.responses[0].partitions
            assert (part.error_code, part.records) == (0, batch(0, 5))
        case 2:
            (part,) = answer.topics[0].partitions
            assert (part.error_code, part.offset) == (0, 0)
        case 3:
            (topic,) = answer.topics
            assert (topic.error_code, topic.name) == (0, NAME.topic)
            assert [each.leader_id for each in topic.partitions] == [NODE_ID]
        case 8:
            (part,) = answer.topics[0].partitions
            assert part.error_code == GROUP_AUTHORIZATION_FAILED
        case 10:
            assert (answer.error_code, answer.node_id, answer.host) == (0, NODE_ID, "host")
        case 9 | 11:
            assert answer.error_code == GROUP_AUTHORIZATION_FAILED
        case 18:
            assert answer.error_code == 0
        case 23:
            (part,) = answer.topics[0].partitions
            assert (part.error_code, part.end_offset) == (0, 20)


@pytest.mark.parametrize("version", [4, 12, 13])
def test_a_followers_fetch_is_that_of_a_replica(answers: Answers, version: int) -> None:
    """This RLM does not lead the partition: a consumer gets records, a replica none."""
    request = request_of(1)
    request.replica_id = 3
    (part,) = asked(answers, request, 1, version).responses[0].partitions
    assert (part.error_code, part.records) == (NOT_LEADER, b"")


class Asked(Wrapper[BrokerRemoteLogManager]):
    """Knows no epoch; keeps how many partitions each call asks for."""

    def __init__(self, rlm: BrokerRemoteLogManager) -> None:
        super().__init__(rlm)
        self.counts: list[int] = []

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        self.counts.append(len(queries))
        return [EpochAnswer(query.topic_id_partition) for query in queries]


def test_epochs_of_too_many_partitions_are_left_for_the_next_request(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    rlm: Any = Asked(stack.tier_reader())
    request = request_of(23)
    (topic,) = request.topics
    topic.partitions = [
        OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
            partition=number, current_leader_epoch=-1, leader_epoch=0
        )
        for number in range(MAX_OFFSET_QUERIES + 1)
    ]
    (found,) = asked(answers_of(rlm), request, 23, 4).topics
    codes = [part.error_code for part in found.partitions]
    assert codes == [0] * MAX_OFFSET_QUERIES + [REQUEST_TIMED_OUT]
    assert rlm.counts == [MAX_OFFSET_QUERIES]
