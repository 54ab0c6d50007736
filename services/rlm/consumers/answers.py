"""Answer the requests of a consumer of Kafka: one node that leads every partition it lists.

The messages are encoded by kafka-python, whose `kafka.protocol` has Kafka's schemas.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import (
    FetchRequest as KafkaFetchRequest,
)
from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from services.api.errors import InvalidRequestError
from services.api.ids import ZERO_UUID, TopicIdPartition
from services.api.offset_queries import (
    MAX_OFFSET_QUERIES,
    EpochAnswer,
    EpochQuery,
    FoundOffset,
    OffsetQueries,
    OffsetQuery,
)
from services.api.remote_log_manager import (
    MAX_FETCH_BYTES,
    MAX_FETCH_PARTITIONS,
    MAX_FETCH_WAIT_MS,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    FetchRole,
    IsolationLevel,
)
from services.rlm.consumers.catalog import Catalog, ConsumedLog, Topic
from services.rlm.consumers.framing import Buffer, Records

_NONE, _OUT_OF_RANGE, _UNKNOWN_TOPIC, _NOT_AUTHORIZED = 0, 1, 3, 29
_CLUSTER_NOT_AUTHORIZED, _UNSUPPORTED_VERSION, _INVALID_REQUEST = 31, 35, 42
_POLICY_VIOLATION, _STORAGE_ERROR, _NO_SESSION, _UNKNOWN_TOPIC_ID = 44, 56, 70, 100
_CODES = {
    FetchError.NONE: _NONE,
    FetchError.OFFSET_OUT_OF_RANGE: _OUT_OF_RANGE,
    FetchError.CORRUPT_MESSAGE: 2,
    FetchError.UNKNOWN_TOPIC_ID: _UNKNOWN_TOPIC,
    FetchError.NOT_LEADER_OR_FOLLOWER: 6,
    FetchError.REQUEST_TIMED_OUT: 7,
    FetchError.POLICY_VIOLATION: _POLICY_VIOLATION,
    # Kafka has no code of its own for this; clients retry after this one.
    FetchError.TIERED_STORAGE_NOT_AVAILABLE: _STORAGE_ERROR,
    FetchError.FENCED_LEADER_EPOCH: 74,
    FetchError.UNKNOWN_LEADER_EPOCH: 75,
    FetchError.OFFSET_MOVED_TO_TIERED_STORAGE: 109,
    FetchError.UNKNOWN_SERVER_ERROR: -1,
}
_BY_TOPIC_ID = 13
_READ_ONLY = "RLM serves reads only; produce to the brokers of the cluster"

_FetchTopic = FetchResponse.FetchableTopicResponse
_FetchData = _FetchTopic.PartitionData
_ListTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_MetadataTopic = MetadataResponse.MetadataResponseTopic
_ProduceTopic = ProduceResponse.TopicProduceResponse

MayRead = Callable[[str, str], bool]
"""Returns whether the caller may make an RPC of this name for a topic."""


@dataclass(frozen=True, slots=True)
class Node:
    """The one node that consumers see, at its advertised address."""

    id: int
    host: str
    port: int
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Api:
    """A request that is served.

    Attributes:
        first, last: its versions.
        answer: the name of the method that answers it.
    """

    request: Any
    first: int
    last: int
    answer: str


# Fetch ends before version 15, in which a follower's id moves. Version 0 of ApiVersions answers an
# unknown later one. Produce and InitProducerId are there to be refused by name.
_APIS = {
    0: _Api(ProduceRequest, 3, 9, "_produce"),
    1: _Api(KafkaFetchRequest, 4, 13, "_fetch"),
    2: _Api(ListOffsetsRequest, 1, 11, "_list_offsets"),
    3: _Api(MetadataRequest, 0, 12, "_metadata"),
    18: _Api(ApiVersionsRequest, 0, 4, "_api_versions"),
    22: _Api(InitProducerIdRequest, 0, 4, "_init_producer_id"),
    23: _Api(OffsetForLeaderEpochRequest, 2, 4, "_epochs"),
}
_API_VERSIONS = 18


class UnservedRequestError(Exception):
    """The error for a request that is not served, or not Kafka's: the connection is closed."""


class Answers:
    """Answer the requests of one connection, one after another.

    Args:
        may_read: the policy, for the peer of the connection.
        fetch_max_bytes: most bytes of one Fetch, whatever the client allows.
    """

    def __init__(
        self, rlm: ConsumedLog, node: Node, may_read: MayRead, fetch_max_bytes: int
    ) -> None:
        self._rlm = rlm
        self._node = node
        self._may_read = may_read
        self._fetch_max_bytes = fetch_max_bytes
        self._catalog = Catalog(rlm)
        self._fetched = 0
        self._records = Records()

    def answer(self, api_key: int, version: int, data: bytes) -> Sequence[Buffer] | None:
        """Return the framed answer to a request, in pieces; None if the client expects none.

        Raises:
            UnservedRequestError: this is no request of Kafka, or one that is not served.
        """
        api = _APIS.get(api_key)
        if api is None:
            raise UnservedRequestError(f"API key {api_key} is not served")
        if not api.first <= version <= api.last:
            if api_key != _API_VERSIONS:
                raise UnservedRequestError(f"API key {api_key}: version {version} is not served")
            # Kafka: the client retries with a version that the answer lists.
            correlation_id = int.from_bytes(data[4:8], "big", signed=True)
            return Records().framed(self._api_versions_of(_UNSUPPORTED_VERSION), 0, correlation_id)
        try:
            request = api.request.decode(data, version=version, header=True)
        except Exception as e:  # A boundary: bytes of a client, and kafka-python names no errors.
            raise UnservedRequestError(f"API key {api_key}: cannot be decoded: {e}") from e
        try:
            response = getattr(self, api.answer)(request, version)
            if response is None:
                return None
            return self._records.framed(response, version, request.header.correlation_id)
        finally:
            self._records = Records()

    def _api_versions(self, request: Any, version: int) -> Any:
        return self._api_versions_of(_NONE)

    def _api_versions_of(self, error_code: int) -> Any:
        served = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.first, max_version=api.last)
            for key, api in _APIS.items()
        ]
        return ApiVersionsResponse(error_code=error_code, api_keys=served)

    def _metadata(self, request: Any, version: int) -> Any:
        asked = request.topics
        if asked is None or (version == 0 and not asked):
            found = self._catalog.all_topics()
            topics = [self._topic(t) for t in found if self._may_read("Fetch", t.name)]
        else:
            topics = [self._asked_topic(each, version) for each in asked]
        node = self._node
        broker = MetadataResponse.MetadataResponseBroker(
            node_id=node.id, host=node.host, port=node.port, rack=None
        )
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[broker],
            cluster_id=node.cluster_id,
            controller_id=node.id,
            topics=topics,
        )

    def _asked_topic(self, asked: Any, version: int) -> Any:
        name = asked.name
        if version >= 10 and not name:
            topic = self._catalog.by_id(asked.topic_id)
            # What a caller may not read looks like what is not there.
            if topic is None or not self._may_read("Fetch", topic.name):
                return _no_topic(None, asked.topic_id, _UNKNOWN_TOPIC_ID)
            return self._topic(topic)
        if name and not self._may_read("Fetch", name):
            return _no_topic(name, ZERO_UUID, _NOT_AUTHORIZED)
        topic = self._catalog.by_name(name)
        if topic is None:
            return _no_topic(name, ZERO_UUID, _UNKNOWN_TOPIC)
        return self._topic(topic)

    def _topic(self, topic: Topic) -> Any:
        node = [self._node.id]
        return _MetadataTopic(
            error_code=_NONE,
            name=topic.name,
            topic_id=topic.id,
            is_internal=False,
            partitions=[
                _MetadataTopic.MetadataResponsePartition(
                    error_code=_NONE,
                    partition_index=each.topic_id_partition.partition,
                    leader_id=self._node.id,
                    leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
                    replica_nodes=node,
                    isr_nodes=node,
                    offline_replicas=[],
                )
                for each in topic.partitions
            ],
        )

    def _fetch(self, request: Any, version: int) -> Any:
        if version >= 7 and request.session_id != 0:
            # This listener never gives a session, so the client sends all of its partitions.
            return FetchResponse(
                throttle_time_ms=0, error_code=_NO_SESSION, session_id=0, responses=[]
            )
        wanted: dict[TopicIdPartition, FetchPartition] = {}
        failed: dict[tuple[Any, int], int] = {}
        names: dict[tuple[Any, int], TopicIdPartition] = {}
        by_id = version >= _BY_TOPIC_ID
        for topic in _items(request.topics):
            key = topic.topic_id if by_id else topic.topic
            found = self._readable("Fetch", key)
            for each in _items(topic.partitions):
                at = key, each.partition
                if isinstance(found, int):
                    failed[at] = found
                    continue
                try:
                    tp = names[at] = TopicIdPartition(*found, each.partition)
                    wanted[tp] = _wanted(tp, each)
                except InvalidRequestError:
                    failed[at] = _OUT_OF_RANGE if each.fetch_offset < 0 else _INVALID_REQUEST
        parts = self._parts(request, self._next_of(list(wanted.values())))
        throttle_time_ms = _throttle_time_ms(parts.values())
        responses = []
        for topic in _items(request.topics):
            key = topic.topic_id if by_id else topic.topic
            data = []
            for each in _items(topic.partitions):
                at = key, each.partition
                if at in failed:
                    data.append(_no_data(each.partition, failed[at]))
                else:
                    # Named twice, a partition has its records once: the answer is bounded.
                    data.append(self._data(each.partition, parts.pop(names[at], []), by_id))
            responses.append(
                _FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=data)
            )
        return FetchResponse(
            throttle_time_ms=throttle_time_ms,
            error_code=_NONE,
            session_id=0,
            responses=responses,
        )

    def _next_of(self, wanted: list[FetchPartition]) -> list[FetchPartition]:
        """Return as many as one request takes; the next call begins behind them."""
        if len(wanted) <= MAX_FETCH_PARTITIONS:
            return wanted
        at = self._fetched % len(wanted)
        self._fetched = at + MAX_FETCH_PARTITIONS
        return (wanted + wanted)[at : at + MAX_FETCH_PARTITIONS]

    def _parts(
        self, request: Any, wanted: list[FetchPartition]
    ) -> dict[TopicIdPartition, list[FetchPart]]:
        """Fetch; the partitions beyond the most of one request get no records this time."""
        if not wanted:
            return {}
        fetch = FetchRequest(
            tuple(wanted),
            _bounded(request.max_bytes, 1, self._fetch_max_bytes),
            _isolation(request.isolation_level),
            _bounded(request.max_wait_ms, 0, MAX_FETCH_WAIT_MS),
            max(request.min_bytes, 0),
            FetchRole.CONSUMER if request.replica_id < 0 else FetchRole.FOLLOWER,
        )
        found: dict[TopicIdPartition, list[FetchPart]] = {}
        for part in self._rlm.fetch(fetch):
            found.setdefault(part.topic_id_partition, []).append(part)
        return found

    def _data(self, partition: int, parts: list[FetchPart], by_id: bool) -> Any:
        if not parts:
            return _no_data(partition, _NONE)
        first, last = parts[0], parts[-1]
        if last.error is not FetchError.NONE:
            self._forget_if_unknown(last)
            return _no_data(partition, _code(last.error, by_id))
        fields: dict[str, Any] = {}
        if first.diverging_epoch is not None:
            fields["diverging_epoch"] = _FetchData.EpochEndOffset(
                epoch=first.diverging_epoch.leader_epoch,
                end_offset=first.diverging_epoch.end_offset,
            )
        aborted = sorted({each for part in parts for each in part.aborted_transactions})
        return _FetchData(
            partition_index=partition,
            error_code=_NONE,
            high_watermark=first.high_watermark,
            last_stable_offset=first.last_stable_offset,
            log_start_offset=first.log_start_offset,
            aborted_transactions=[
                _FetchData.AbortedTransaction(
                    producer_id=each.producer_id, first_offset=each.first_offset
                )
                for each in aborted
            ],
            preferred_read_replica=-1,
            records=self._records.token_for([p for part in parts for p in part.pieces]),
            **fields,
        )

    def _list_offsets(self, request: Any, version: int) -> Any:
        isolation = _isolation(request.isolation_level or 0)
        timeout_ms = max(request.timeout_ms or 0, 0)
        asked: list[tuple[str, list[OffsetQuery | int]]] = []
        for topic in _items(request.topics):
            found = self._readable("ListOffsets", topic.name)
            asked.append((topic.name, [_query(found, each) for each in _items(topic.partitions)]))
        queries = [each for _, of in asked for each in of if isinstance(each, OffsetQuery)]
        # One call: the time that it may take is that of the whole request.
        first = tuple(queries[:MAX_OFFSET_QUERIES])
        queried = OffsetQueries(first, isolation, timeout_ms) if first else None
        answers = iter([] if queried is None else self._rlm.list_offsets(queried))
        topics = [
            _ListTopic(
                name=topic.name,
                partitions=[
                    _no_offset(each.partition_index, query)
                    if isinstance(query, int)
                    else self._offset(each.partition_index, next(answers, None))
                    for each, query in zip(topic.partitions, of, strict=True)
                ],
            )
            for topic, (_, of) in zip(request.topics, asked, strict=True)
        ]
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _offset(self, partition: int, found: FoundOffset | None) -> Any:
        if found is None:  # Beyond the most queries of one request: the client retries.
            return _no_offset(partition, _CODES[FetchError.REQUEST_TIMED_OUT])
        self._forget_if_unknown(found)
        if found.error is not FetchError.NONE:
            return _no_offset(partition, _code(found.error, False))
        return _ListTopic.ListOffsetsPartitionResponse(
            partition_index=partition,
            error_code=_NONE,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=-1 if found.leader_epoch is None else found.leader_epoch,
        )

    def _epochs(self, request: Any, version: int) -> Any:
        asked: list[tuple[str, list[EpochQuery | int]]] = []
        for topic in _items(request.topics):
            found = self._readable("OffsetForLeaderEpoch", topic.topic)
            queries = [_epoch_query(found, each) for each in _items(topic.partitions)]
            asked.append((topic.topic, queries))
        # One call: the time that it may take is that of the whole request.
        first = [each for _, of in asked for each in of if isinstance(each, EpochQuery)]
        first = first[:MAX_OFFSET_QUERIES]
        answers = iter(self._rlm.offsets_for_leader_epochs(tuple(first)) if first else ())
        topics = [
            _EpochTopic(
                topic=name,
                partitions=[
                    _no_epoch(each.partition, query)
                    if isinstance(query, int)
                    else self._end_of_epoch(each.partition, next(answers, None))
                    for each, query in zip(topic.partitions, of, strict=True)
                ],
            )
            for topic, (name, of) in zip(request.topics, asked, strict=True)
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    def _end_of_epoch(self, partition: int, found: EpochAnswer | None) -> Any:
        if found is None:  # Beyond the most queries of one request: the client retries.
            return _no_epoch(partition, _CODES[FetchError.REQUEST_TIMED_OUT])
        self._forget_if_unknown(found)
        if found.error is not FetchError.NONE or found.end is None:
            return _no_epoch(partition, _code(found.error, False))
        return _EpochTopic.EpochEndOffset(
            error_code=_NONE,
            partition=partition,
            leader_epoch=found.end.leader_epoch,
            end_offset=found.end.end_offset,
        )

    def _produce(self, request: Any, version: int) -> Any:
        """Refuse a write; a producer without acknowledgements expects no answer."""
        if request.acks == 0:
            raise UnservedRequestError(_READ_ONLY)
        refused = [
            _ProduceTopic(
                name=topic.name,
                partition_responses=[
                    _ProduceTopic.PartitionProduceResponse(
                        index=each.index,
                        error_code=_POLICY_VIOLATION,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                        record_errors=[],
                        error_message=_READ_ONLY,
                    )
                    for each in _items(topic.partition_data)
                ],
            )
            for topic in _items(request.topic_data)
        ]
        return ProduceResponse(responses=refused, throttle_time_ms=0)

    def _init_producer_id(self, request: Any, version: int) -> Any:
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=_CLUSTER_NOT_AUTHORIZED,
            producer_id=-1,
            producer_epoch=-1,
        )

    def _readable(self, rpc: str, topic: str | UUID) -> tuple[UUID, str] | int:
        """Return a topic's id and name, or the error code if the caller may not read it."""
        if isinstance(topic, UUID):
            name = self._catalog.name_of(topic)
            if name is None or not self._may_read(rpc, name):
                return _UNKNOWN_TOPIC_ID
            return topic, name
        if not topic:
            return _UNKNOWN_TOPIC
        if not self._may_read(rpc, topic):
            return _NOT_AUTHORIZED
        topic_id = self._catalog.id_of(topic)
        return _UNKNOWN_TOPIC if topic_id is None else (topic_id, topic)

    def _forget_if_unknown(self, answer: Any) -> None:
        if answer.error is FetchError.UNKNOWN_TOPIC_ID:
            self._catalog.forget(answer.topic_id_partition.topic)


def _items(array: list[Any] | None) -> list[Any]:
    """Return an array that Kafka's schema does not let be null."""
    if array is None:
        raise UnservedRequestError("an array is null")
    return array


def _bounded(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


def _isolation(number: int) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if number == 1 else IsolationLevel.READ_UNCOMMITTED


def _throttle_time_ms(answers: Iterable[list[FetchPart]]) -> int:
    """Return how long the client is to wait: only if the quota of the tier left it no records."""
    parts = [part for answer in answers for part in answer]
    if any(part.size_bytes for part in parts):
        return 0
    return max((part.throttle_time_ms for part in parts), default=0)


def _epoch(number: int | None) -> int | None:
    return None if number is None or number < 0 else number


def _code(error: FetchError, by_id: bool) -> int:
    return _UNKNOWN_TOPIC_ID if by_id and error is FetchError.UNKNOWN_TOPIC_ID else _CODES[error]


def _query(topic: tuple[UUID, str] | int, asked: Any) -> OffsetQuery | int:
    """Return the query for a partition, or its error code."""
    if isinstance(topic, int):
        return topic
    try:
        tp = TopicIdPartition(*topic, asked.partition_index)
        return OffsetQuery(tp, asked.timestamp, _epoch(asked.current_leader_epoch))
    except InvalidRequestError:
        return _INVALID_REQUEST


def _epoch_query(topic: tuple[UUID, str] | int, asked: Any) -> EpochQuery | int:
    """Return the query for a partition, or its error code."""
    if isinstance(topic, int):
        return topic
    try:
        tp = TopicIdPartition(*topic, asked.partition)
        return EpochQuery(tp, asked.leader_epoch, _epoch(asked.current_leader_epoch))
    except InvalidRequestError:
        return _INVALID_REQUEST


def _wanted(tp: TopicIdPartition, asked: Any) -> FetchPartition:
    return FetchPartition(
        tp,
        asked.fetch_offset,
        _bounded(asked.partition_max_bytes, 1, MAX_FETCH_BYTES),
        _epoch(asked.current_leader_epoch),
        _epoch(asked.last_fetched_epoch),
    )


def _no_topic(name: str | None, topic_id: UUID, error_code: int) -> Any:
    return _MetadataTopic(
        error_code=error_code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _no_data(partition: int, error_code: int) -> Any:
    return _FetchData(
        partition_index=partition,
        error_code=error_code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )


def _no_offset(partition: int, error_code: int) -> Any:
    return _ListTopic.ListOffsetsPartitionResponse(
        partition_index=partition,
        error_code=error_code,
        timestamp=-1,
        offset=-1,
        leader_epoch=-1,
    )


def _no_epoch(partition: int, error_code: int) -> Any:
    return _EpochTopic.EpochEndOffset(
        error_code=error_code, partition=partition, leader_epoch=-1, end_offset=-1
    )
