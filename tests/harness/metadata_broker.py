"""Run a broker that answers Metadata, DescribeConfigs and ListOffsets as a test wants.

No real broker can be made to give these responses.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Self

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from services.local.process import LOOPBACK

_LIST_OFFSETS, _METADATA, _API_VERSIONS, _DESCRIBE_CONFIGS = 2, 3, 18, 32
_LIST_OFFSETS_VERSION, _METADATA_VERSION = 6, 12
_API_VERSIONS_VERSION, _DESCRIBE_CONFIGS_VERSION = 0, 4
_UNSUPPORTED_VERSION = 35
_HEADER = struct.Struct(">hhi")
_SIZE = struct.Struct(">i")
_NO_TAGS = b"\0"

Answers = Callable[[Sequence[str]], Any]
"""Returns a MetadataResponse for the requested names."""
Describes = Callable[[Sequence[str]], Sequence[Any]]
"""Returns DescribeConfigsResults for the names of topics."""
Lists = Callable[[str, int], tuple[int, int]]
"""Returns the error code and the offset of a topic's partition."""


class MetadataBroker:
    """Listens while it is entered; one connection at a time.

    Attributes:
        requests: the received MetadataRequests.
        config_requests: the received DescribeConfigsRequests.
        offset_requests: the received ListOffsetsRequests.
    """

    def __init__(
        self,
        answers: Answers,
        describes: Describes = lambda names: (),
        lists: Lists = lambda topic, partition: (0, 0),
    ) -> None:
        self._answers = answers
        self._describes = describes
        self._lists = lists
        self._listener = socket.create_server((LOOPBACK, 0))
        self._connection: socket.socket | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.requests: list[Any] = []
        self.config_requests: list[Any] = []
        self.offset_requests: list[Any] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._connection is not None:
            with suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                self._connection, _ = self._listener.accept()
                with self._connection as connection, suppress(ConnectionError):
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while size := stream.read(_SIZE.size):
                answer = self._answer(stream.read(*_SIZE.unpack(size)))
                connection.sendall(_SIZE.pack(len(answer)) + answer)

    def _answer(self, request: bytes) -> bytes:
        api_key, version, correlation_id = _HEADER.unpack_from(request)
        answered = _SIZE.pack(correlation_id)
        if api_key == _API_VERSIONS:
            return answered + _api_versions(version)
        if api_key == _DESCRIBE_CONFIGS:
            return answered + _NO_TAGS + self._described(request, version)
        if api_key == _LIST_OFFSETS:
            return answered + _NO_TAGS + self._listed(request, version)
        assert (api_key, version) == (_METADATA, _METADATA_VERSION)
        asked = MetadataRequest.decode(request, version=version, header=True)
        self.requests.append(asked)
        answer = self._answers([topic.name for topic in asked.topics])
        return answered + _NO_TAGS + bytes(answer.encode(version=version))

    def _described(self, request: bytes, version: int) -> bytes:
        assert version == _DESCRIBE_CONFIGS_VERSION
        asked = DescribeConfigsRequest.decode(request, version=version, header=True)
        self.config_requests.append(asked)
        results = self._describes([resource.resource_name for resource in asked.resources])
        answer = DescribeConfigsResponse(throttle_time_ms=0, results=list(results))
        return bytes(answer.encode(version=version))

    def _listed(self, request: bytes, version: int) -> bytes:
        assert version == _LIST_OFFSETS_VERSION
        asked = ListOffsetsRequest.decode(request, version=version, header=True)
        self.offset_requests.append(asked)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        answer = ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                topic(
                    name=each.name,
                    partitions=[
                        self._offset(each.name, p.partition_index) for p in each.partitions
                    ],
                )
                for each in asked.topics
            ],
        )
        return bytes(answer.encode(version=version))

    def _offset(self, topic: str, partition: int) -> Any:
        error_code, offset = self._lists(topic, partition)
        return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
            partition_index=partition,
            error_code=error_code,
            timestamp=-1,
            offset=offset,
            leader_epoch=4,
        )


def _api_versions(version: int) -> bytes:
    known = [
        (_LIST_OFFSETS, 1, _LIST_OFFSETS_VERSION),
        (_METADATA, 0, _METADATA_VERSION),
        (_API_VERSIONS, 0, _API_VERSIONS_VERSION),
        (_DESCRIBE_CONFIGS, 1, _DESCRIBE_CONFIGS_VERSION),
    ]
    answer = ApiVersionsResponse(
        error_code=0 if version == _API_VERSIONS_VERSION else _UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in known
        ],
    )
    return bytes(answer.encode(version=_API_VERSIONS_VERSION))


def metadata(
    topics: Sequence[Any] = (), cluster_id: str | None = "c", brokers: Sequence[str] = ("one:9092",)
) -> Any:
    """Build a MetadataResponse of a cluster with these brokers, HOST:PORT each."""
    addresses = [address.rpartition(":") for address in brokers]
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=i, host=host, port=int(port), rack=None)
            for i, (host, _, port) in enumerate(addresses)
        ],
        cluster_id=cluster_id,
        controller_id=0,
        topics=list(topics),
    )


def topic(name: str, topic_id: Any, *partitions: Any, error_code: int = 0) -> Any:
    """Build a MetadataResponseTopic."""
    return MetadataResponse.MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=list(partitions),
    )


def described(name: str, policy: str | None, error_code: int = 0, error: str | None = None) -> Any:
    """Build a DescribeConfigsResult of a topic's cleanup.policy; None if it has none."""
    configs = [
        DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult(
            name="cleanup.policy",
            value=policy,
            read_only=False,
            config_source=1,
            is_sensitive=False,
            synonyms=[],
            config_type=7,
            documentation=None,
        )
    ]
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=error_code,
        error_message=error,
        resource_type=2,
        resource_name=name,
        configs=[] if policy is None else configs,
    )


def partition(
    number: int, leader: int, leader_epoch: int, replicas: Sequence[int], error_code: int = 0
) -> Any:
    """Build a MetadataResponsePartition."""
    return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        error_code=error_code,
        partition_index=number,
        leader_id=leader,
        leader_epoch=leader_epoch,
        replica_nodes=list(replicas),
        isr_nodes=[],
        offline_replicas=[],
    )
