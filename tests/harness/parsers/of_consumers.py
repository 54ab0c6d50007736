"""Read fuzzed requests of consumers of Kafka, as RLM's listener answers them."""

import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kafka.protocol.admin import DescribeClusterRequest, DescribeGroupsRequest
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from services.api.offset_queries import EpochAnswer, EpochQuery, OffsetAnswer, OffsetQueries
from services.api.remote_log_manager import FetchPart, FetchRequest, RecordSource
from services.rlm.consumers.answers import Answers
from services.rlm.consumers.backing import BackingConnection, BrokerAwayError
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.consumers.framing import UnservedRequestError
from services.rlm.consumers.groups import GROUP_APIS
from services.rlm.consumers.relay import Broker, Relay
from services.rlm.partition import ServedPartition
from services.rlm.partition_readers import Readers
from tests.harness.parsers.target import Target
from tests.unit.rlm.kafka_bytes import NAME, batch


class _OneLog:
    """Answer for one partition, which has one batch."""

    def served_partitions(self, topic: str = "") -> list[ServedPartition]:
        return [ServedPartition(NAME)] if topic in ("", NAME.topic) else []

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        for wanted in request.partitions:
            name = wanted.topic_id_partition
            yield FetchPart(name, pieces=(batch(0),), source=RecordSource.LOCAL)

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        return [OffsetAnswer(each.topic_id_partition, offset=1) for each in queries.queries]

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        return [EpochAnswer(each.topic_id_partition) for each in queries]


def _answer(data: bytes) -> None:
    """Answer a request, which begins with its API key, its version and its correlation id."""
    if len(data) < 8:
        raise UnservedRequestError("too short")
    rlm: Any = _OneLog()
    cluster = ReaderCluster(Node(1, "rlm", 9192), Readers())
    connection = BackingConnection(_BROKER.beside)
    with_broker = Relay(_BROKER, connection, rlm, cluster, bool, lambda group: group == "own")
    api_key, version = (int.from_bytes(data[at : at + 2], "big", signed=True) for at in (0, 2))
    for relay in (None, with_broker) if api_key in _OF_BROKERS else (None,):
        answers = Answers(rlm, cluster, lambda rpc, topic: bool(topic), 1024, relay)
        answer = answers.answer(api_key, version, data)
        assert b"".join(answer)[4:8] == data[4:8]


class _Away:
    """The way to a broker that is away."""

    needs_login = False

    def open(self) -> socket.socket:
        raise ConnectionRefusedError


_BROKER = Broker(_Away())
_OF_BROKERS = {*GROUP_APIS, 10, 32, 35, 60, 68}


def _requests() -> Sequence[bytes]:
    fetched, listed = KafkaFetchRequest.FetchTopic, ListOffsetsRequest.ListOffsetsTopic
    ended = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = fetched.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1,
    )
    fetch: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [fetched(topic=NAME.topic, topic_id=NAME.topic_id, partitions=[partition])],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    offset = listed.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    epoch = ended.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    requests = [
        *((KafkaFetchRequest(**fetch), version) for version in (4, 11, 12, 13)),
        *(
            (
                ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=0,
                    topics=[listed(name=NAME.topic, partitions=[offset])],
                    timeout_ms=0,
                ),
                version,
            )
            for version in (1, 7, 11)
        ),
        (
            OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[ended(topic=NAME.topic, partitions=[epoch])]
            ),
            4,
        ),
        *((MetadataRequest(topics=None), version) for version in (1, 9, 12)),
        (ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3),
        *((OffsetFetchRequest(group_id="other", topics=[]), version) for version in (2, 7)),
        (DescribeGroupsRequest(groups=["other"]), 5),
        (FindCoordinatorRequest(key="own", key_type=0, coordinator_keys=["own"]), 4),
        (DescribeClusterRequest(include_cluster_authorized_operations=False), 1),
    ]
    of_kip_848 = b"\0\x44\0\1\0\0\0\5\0\1c\0\6other\0"
    return [*(_encoded(request, version) for request, version in requests), of_kip_848]


def _encoded(request: Any, version: int) -> bytes:
    request.API_VERSION = version
    request.with_header(7, "client")
    return bytes(request.encode(header=True))


TARGETS = (
    Target("consumer_requests", _answer, (UnservedRequestError, BrokerAwayError), _requests),
)
