"""Answer the requests of a consumer of Kafka, as a broker of the cluster of RLMs.

The messages are encoded by kafka-python, whose `kafka.protocol` has Kafka's schemas.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
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
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
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
    OffsetAnswer,
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
from services.rlm.consumers.catalog import Catalog, ConsumedLog
from services.rlm.consumers.cluster import ReaderCluster
from services.rlm.consumers.framing import Buffer, Records, UnservedRequestError, decoded
from services.rlm.consumers.groups import GROUP_APIS
from services.rlm.consumers.metadata import metadata_response, no_topic
from services.rlm.consumers.relay import Relay

_NONE, _OUT_OF_RANGE, _UNKNOWN_TOPIC, _NOT_AUTHORIZED = 0, 1, 3, 29
_TRANSACTIONAL_ID_NOT_AUTHORIZED = 53
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
_BY_TOPIC_ID, _OF_TRANSACTIONS = 13, 1
_READ_ONLY = "RLM serves reads only; produce to the brokers of the cluster"

_log = logging.getLogger(__name__)

_FetchTopic = FetchResponse.FetchableTopicResponse
_FetchData = _FetchTopic.PartitionData
_ListTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_ProduceTopic = ProduceResponse.TopicProduceResponse

Q = TypeVar("Q", OffsetQuery, EpochQuery)
A = TypeVar("A", OffsetAnswer, EpochAnswer)

MayRead = Callable[[str, str], bool]
"""Return whether the caller may make an RPC of this name for a topic."""


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
# unknown later one. Requests of producers and groups are there to be refused by name.
_APIS = {
    0: _Api(ProduceRequest, 3, 9, "_produce"),
    1: _Api(KafkaFetchRequest, 4, 13, "_fetch"),
    2: _Api(ListOffsetsRequest, 1, 11, "_list_offsets"),
    3: _Api(MetadataRequest, 0, 12, "_metadata"),
    8: _Api(GROUP_APIS[8].request, 2, 9, "_group"),
    9: _Api(GROUP_APIS[9].request, 2, 7, "_group"),
    10: _Api(FindCoordinatorRequest, 0, 3, "_find_coordinator"),
    11: _Api(GROUP_APIS[11].request, 0, 9, "_group"),
    18: _Api(ApiVersionsRequest, 0, 4, "_api_versions"),
    22: _Api(InitProducerIdRequest, 0, 4, "_init_producer_id"),
    23: _Api(OffsetForLeaderEpochRequest, 2, 4, "_epochs"),
}
_API_VERSIONS = 18


class Answers:
    """Answer the requests of one connection, one after another.

    Args:
        may_read: the policy, for the peer of the connection.
        fetch_max_bytes: most bytes of one Fetch, whatever the client allows.
        relay: None without a broker; then groups are refused.
    """

    def __init__(
        self,
        rlm: ConsumedLog,
        cluster: ReaderCluster,
        may_read: MayRead,
        fetch_max_bytes: int,
        relay: Relay | None = None,
    ) -> None:
        self._rlm = rlm
        self._cluster = cluster
        self._may_read = may_read
        self._fetch_max_bytes = fetch_max_bytes
        self._relay = relay
        self._catalog = Catalog(rlm)
        self._fetched = 0
        self._has_refused_group = False
        self._records = Records()

    def answer(self, api_key: int, version: int, data: bytes) -> Sequence[Buffer]:
        """Return the framed answer to a request, in pieces.

        Raises:
            UnservedRequestError: this is no request of Kafka, or one that is not served.
        """
        if self._relay is not None:
            relayed = self._relay.answer(api_key, version, data)
            if relayed is not None:
                return relayed
        api = _APIS.get(api_key)
        if api is None:
            raise UnservedRequestError(f"API key {api_key} is not served")
        if not api.first <= version <= api.last:
            if api_key != _API_VERSIONS:
                raise UnservedRequestError(f"API key {api_key}: version {version} is not served")
            # Kafka: the client retries with a version that the answer lists.
            correlation_id = int.from_bytes(data[4:8], "big", signed=True)
            refused = self._api_versions(None, version, _UNSUPPORTED_VERSION)
            return Records().framed(refused, 0, correlation_id)
        request = decoded(api.request, api_key, version, data)
        try:
            response = getattr(self, api.answer)(request, version)
            return self._records.framed(response, version, request.header.correlation_id)
        finally:
            self._records = Records()

    def _api_versions(self, request: Any, version: int, error_code: int = _NONE) -> Any:
        served = {key: (api.first, api.last) for key, api in _APIS.items()}
        if self._relay is not None:
            served = {k: v for k, v in served.items() if k not in GROUP_APIS}
            served |= self._relay.versions()
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in served.items()
        ]
        return ApiVersionsResponse(error_code=error_code, api_keys=keys)

    def _metadata(self, request: Any, version: int) -> Any:
        found: list[Any]
        if request.topics is None or (version == 0 and not request.topics):
            listed = self._catalog.all_topics()
            if self._relay is not None:
                self._relay.expect(topic.name for topic in listed)
            found = [t for t in listed if self._may_read("Fetch", t.name)]
        else:
            found = [self._requested_topic(each, version) for each in request.topics]
        return metadata_response(self._cluster, found)

    def _requested_topic(self, requested: Any, version: int) -> Any:
        """Return the Topic, or Kafka's answer that there is none."""
        name = requested.name
        if version >= 10 and not name:
            topic = self._catalog.by_id(requested.topic_id)
            # A topic that the caller may not read and one that does not exist look the same.
            if topic is None or not self._may_read("Fetch", topic.name):
                return no_topic(None, requested.topic_id, _UNKNOWN_TOPIC_ID)
            return topic
        if name and not self._may_read("Fetch", name):
            return no_topic(name, ZERO_UUID, _NOT_AUTHORIZED)
        return self._catalog.by_name(name) or no_topic(name, ZERO_UUID, _UNKNOWN_TOPIC)

    def _fetch(self, request: Any, version: int) -> Any:
        if version >= 7 and request.session_id != 0:
            # This listener never gives a session, so the client sends all of its partitions.
            return FetchResponse(error_code=_NO_SESSION, responses=[])
        partitions: dict[TopicIdPartition, FetchPartition] = {}
        named: dict[tuple[Any, int], TopicIdPartition | int] = {}
        by_id = version >= _BY_TOPIC_ID
        for topic in _items(request.topics):
            key = topic.topic_id if by_id else topic.topic
            readable = self._readable("Fetch", key)
            for each in _items(topic.partitions):
                at = key, each.partition
                if isinstance(readable, int):
                    named[at] = readable
                    continue
                try:
                    named[at] = tp = TopicIdPartition(*readable, each.partition)
                    partitions[tp] = _fetch_partition(tp, each)
                except InvalidRequestError:
                    named[at] = _OUT_OF_RANGE if each.fetch_offset < 0 else _INVALID_REQUEST
        is_follower = request.replica_id >= 0
        refused = {} if is_follower else self._take_refused(partitions)
        if refused:
            request.max_wait_ms = 0  # As in Kafka, an error of any partition ends the wait.
        parts = self._parts(request, self._next_of(list(partitions.values())))
        throttle_time_ms = _throttle_time_ms(parts.values())
        responses = []
        for topic in request.topics:
            key = topic.topic_id if by_id else topic.topic
            data = []
            for each in topic.partitions:
                tp_or_code = named[key, each.partition]
                if isinstance(tp_or_code, int):
                    data.append(_no_data(each.partition, tp_or_code))
                elif tp_or_code in refused:
                    data.append(_no_data(each.partition, refused[tp_or_code]))
                else:
                    # Named twice, a partition has its records once: the answer is bounded.
                    data.append(self._data(each, parts.pop(tp_or_code, []), by_id))
            responses.append(
                _FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=data)
            )
        return FetchResponse(
            throttle_time_ms=throttle_time_ms, error_code=_NONE, responses=responses
        )

    def _next_of(self, partitions: list[FetchPartition]) -> list[FetchPartition]:
        """Return as many as one request may have; the next call begins after them."""
        if len(partitions) <= MAX_FETCH_PARTITIONS:
            return partitions
        at = self._fetched % len(partitions)
        self._fetched = at + MAX_FETCH_PARTITIONS
        return (partitions + partitions)[at : at + MAX_FETCH_PARTITIONS]

    def _parts(
        self, request: Any, partitions: list[FetchPartition]
    ) -> dict[TopicIdPartition, list[FetchPart]]:
        """Fetch; the partitions beyond the most of one request get no records this time."""
        if not partitions:
            return {}
        fetch = FetchRequest(
            tuple(partitions),
            _bounded(request.max_bytes, 1, self._fetch_max_bytes),
            _isolation(request.isolation_level),
            _bounded(request.max_wait_ms, 0, MAX_FETCH_WAIT_MS),
            max(request.min_bytes, 0),
            FetchRole.CONSUMER if request.replica_id < 0 else FetchRole.FOLLOWER,
        )
        parts: dict[TopicIdPartition, list[FetchPart]] = {}
        for part in self._rlm.fetch(fetch):
            parts.setdefault(part.topic_id_partition, []).append(part)
        return parts

    def _take_refused(self, fetched: dict[TopicIdPartition, FetchPartition]) -> dict[Any, int]:
        """Remove the partitions that another node serves; return their error codes."""
        epochs = {tp: each.current_leader_epoch for tp, each in fetched.items()}
        refused = {}
        for tp, error in self._cluster.check(epochs).items():
            if error is not FetchError.NONE:
                refused[tp] = _CODES[error]
                del fetched[tp]
            else:  # The cluster's epoch may be later than the role's, which is polled.
                fetched[tp] = replace(fetched[tp], current_leader_epoch=None)
        return refused

    def _data(self, requested: Any, parts: list[FetchPart], by_id: bool) -> Any:
        partition = requested.partition
        if not parts:
            return _no_data(partition, _NONE)
        first, last = parts[0], parts[-1]
        if last.error is FetchError.OFFSET_OUT_OF_RANGE:
            is_above = requested.fetch_offset > last.log_start_offset
            if is_above and not self._cluster.has_end_of(last.topic_id_partition):
                return _no_data(partition, _CODES[FetchError.NOT_LEADER_OR_FOLLOWER])
        if last.error is not FetchError.NONE:
            return _no_data(partition, self._code(last, by_id))
        diverging = first.diverging_epoch
        epoch_end = diverging and _FetchData.EpochEndOffset(
            epoch=diverging.leader_epoch, end_offset=diverging.end_offset
        )
        aborted = sorted({each for part in parts for each in part.aborted_transactions})
        return _FetchData(
            partition_index=partition,
            error_code=_NONE,
            high_watermark=first.high_watermark,
            last_stable_offset=first.last_stable_offset,
            log_start_offset=first.log_start_offset,
            diverging_epoch=epoch_end,
            aborted_transactions=[
                _FetchData.AbortedTransaction(
                    producer_id=each.producer_id, first_offset=each.first_offset
                )
                for each in aborted
            ],
            records=self._records.token_for([p for part in parts for p in part.pieces]),
        )

    def _list_offsets(self, request: Any, version: int) -> Any:
        isolation = _isolation(request.isolation_level or 0)
        timeout_ms = max(request.timeout_ms or 0, 0)
        results = self._results(
            "ListOffsets",
            [(topic.name, _items(topic.partitions)) for topic in _items(request.topics)],
            _offset_query,
            lambda queries: self._rlm.list_offsets(OffsetQueries(queries, isolation, timeout_ms)),
        )
        topics = [
            _ListTopic(
                name=topic.name,
                partitions=[_offset(each, *next(results)) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _epochs(self, request: Any, version: int) -> Any:
        results = self._results(
            "OffsetForLeaderEpoch",
            [(topic.topic, _items(topic.partitions)) for topic in _items(request.topics)],
            _epoch_query,
            self._rlm.offsets_for_leader_epochs,
        )
        topics = [
            _EpochTopic(
                topic=topic.topic,
                partitions=[_end_of_epoch(each, *next(results)) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        return OffsetForLeaderEpochResponse(topics=topics)

    def _results(
        self,
        rpc: str,
        topics: list[tuple[str, list[Any]]],
        query_of: Callable[[UUID, str, Any], Q],
        call: Callable[[tuple[Q, ...]], list[A]],
    ) -> Iterator[tuple[int, A | None]]:
        """Answer the queries for all partitions, by one call, which has the request's whole time.

        Returns:
            For each partition, in their order, its error code, and the answer if it has no error.
        """
        queries: list[Q | int] = []
        for name, partitions in topics:
            readable = self._readable(rpc, name)
            for each in partitions:
                if isinstance(readable, int):
                    queries.append(readable)
                    continue
                try:
                    queries.append(query_of(*readable, each))
                except InvalidRequestError:
                    queries.append(_INVALID_REQUEST)
        valid = tuple(each for each in queries if not isinstance(each, int))[:MAX_OFFSET_QUERIES]
        checked = self._cluster.check({q.topic_id_partition: q.current_leader_epoch for q in valid})
        own = tuple(
            replace(q, current_leader_epoch=None) if q.topic_id_partition in checked else q
            for q in valid
            if checked.get(q.topic_id_partition, FetchError.NONE) is FetchError.NONE
        )
        answers = iter(call(own) if own else ())
        for query in queries:
            if isinstance(query, int):
                yield query, None
            elif (error := checked.get(query.topic_id_partition)) not in (None, FetchError.NONE):
                yield _CODES[error], None
            elif (answer := next(answers, None)) is None:
                # Beyond the most queries of one request: the client retries.
                yield _CODES[FetchError.REQUEST_TIMED_OUT], None
            else:
                code = self._code(answer)
                yield code, None if code else answer

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
                        error_message=_READ_ONLY,
                    )
                    for each in _items(topic.partition_data)
                ],
            )
            for topic in _items(request.topic_data)
        ]
        return ProduceResponse(responses=refused)

    def _init_producer_id(self, request: Any, version: int) -> Any:
        return InitProducerIdResponse(error_code=_CLUSTER_NOT_AUTHORIZED, producer_epoch=-1)

    def _find_coordinator(self, request: Any, version: int) -> Any:
        """Name this node for groups, so that members of a group ask it to join, and are refused.

        An error here would reach clients of librdkafka too that have a group and assign partitions.
        """
        node, code = self._cluster.own, _NONE
        if request.key_type == _OF_TRANSACTIONS:
            code = _TRANSACTIONAL_ID_NOT_AUTHORIZED
        return FindCoordinatorResponse(
            error_code=code, error_message=None, node_id=node.id, host=node.host, port=node.port
        )

    def _group(self, request: Any, version: int) -> Any:
        """Refuse by an error that clients do not retry: after others they wait for ever."""
        if not self._has_refused_group:
            self._has_refused_group = True
            _log.info(
                "a consumer of group %.100s was refused: RLM serves no consumer groups without "
                "RLM_BOOTSTRAP_SERVERS; assign partitions, and keep the offsets elsewhere",
                request.group_id,
            )
        return GROUP_APIS[request.API_KEY].refused(request)

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

    def _code(self, answer: FetchPart | OffsetAnswer | EpochAnswer, by_id: bool = False) -> int:
        """Return an answer's error code; let the catalog find an unknown topic's id again."""
        if answer.error is not FetchError.UNKNOWN_TOPIC_ID:
            return _CODES[answer.error]
        self._catalog.discard(answer.topic_id_partition.topic)
        return _UNKNOWN_TOPIC_ID if by_id else _UNKNOWN_TOPIC


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


def _offset_query(topic_id: UUID, topic: str, requested: Any) -> OffsetQuery:
    tp = TopicIdPartition(topic_id, topic, requested.partition_index)
    return OffsetQuery(tp, requested.timestamp, _epoch(requested.current_leader_epoch))


def _epoch_query(topic_id: UUID, topic: str, requested: Any) -> EpochQuery:
    tp = TopicIdPartition(topic_id, topic, requested.partition)
    return EpochQuery(tp, requested.leader_epoch, _epoch(requested.current_leader_epoch))


def _fetch_partition(tp: TopicIdPartition, requested: Any) -> FetchPartition:
    return FetchPartition(
        tp,
        requested.fetch_offset,
        _bounded(requested.partition_max_bytes, 1, MAX_FETCH_BYTES),
        _epoch(requested.current_leader_epoch),
        _epoch(requested.last_fetched_epoch),
    )


def _no_data(partition: int, error_code: int) -> Any:
    return _FetchData(
        partition_index=partition,
        error_code=error_code,
        high_watermark=-1,
        aborted_transactions=None,
    )


def _offset(requested: Any, error_code: int, answer: OffsetAnswer | None) -> Any:
    response = _ListTopic.ListOffsetsPartitionResponse(
        partition_index=requested.partition_index, error_code=error_code
    )
    if answer is not None:
        response.timestamp, response.offset = answer.timestamp_ms, answer.offset
        response.leader_epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
    return response


def _end_of_epoch(requested: Any, error_code: int, answer: EpochAnswer | None) -> Any:
    response = _EpochTopic.EpochEndOffset(partition=requested.partition, error_code=error_code)
    if answer is not None and answer.end is not None:
        response.leader_epoch, response.end_offset = answer.end.leader_epoch, answer.end.end_offset
    return response
