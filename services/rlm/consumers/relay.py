"""Relay what users, groups and tools ask of a broker to the one beside this RLM."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListGroupsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse

from services.rlm.consumers.backing import (
    BackingConnection,
    Beside,
    BrokerAwayError,
    BrokerVersions,
    ReadableTopics,
)
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.consumers.framing import Buffer, Records, UnservedRequestError, decoded
from services.rlm.consumers.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    GROUP_APIS,
    LIST_GROUPS,
    heartbeat_group,
    refused_heartbeat,
)

TIER_LOG_DIR = "sediment-tier"
"""The name of the tier as a log directory."""

_FIND_COORDINATOR, _SASL_HANDSHAKE, _API_VERSIONS, _DESCRIBE_CONFIGS = 10, 17, 18, 32
_DESCRIBE_LOG_DIRS, _SASL_AUTHENTICATE, _DESCRIBE_CLUSTER = 35, 36, 60
_RELAYED = {*GROUP_APIS, CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE, _DESCRIBE_CONFIGS}
_SASL = {_SASL_HANDSHAKE, _SASL_AUTHENTICATE}
# In version 0 tokens follow without a header. It is not served, but librdkafka does not log in
# where it is not offered.
_HANDSHAKES, _WITH_HEADERS = (0, 1), 1
_LAST_HEARTBEAT = 1
# Version 6 of FindCoordinator is for share groups.
_ANSWERED = {
    _FIND_COORDINATOR: (FindCoordinatorRequest, "_find_coordinator", 0, 5),
    _DESCRIBE_CLUSTER: (DescribeClusterRequest, "_describe_cluster", 0, 2),
    _DESCRIBE_LOG_DIRS: (DescribeLogDirsRequest, "_describe_log_dirs", 1, 4),
}
_OF_TRANSACTIONS, _BATCHES_SINCE, _OF_TOPIC = 1, 4, 2
_COORDINATOR_NOT_AVAILABLE, _TOPIC_NOT_AUTHORIZED, _UNSUPPORTED_MECHANISM = 15, 29, 33
_CLUSTER_NOT_AUTHORIZED, _TRANSACTIONAL_ID_NOT_AUTHORIZED = 31, 53
_UNSUPPORTED_ENDPOINT_TYPE, _CONTROLLERS = 115, 2
_GSSAPI = "GSSAPI"
_SIZE = Struct(">i")

_Coordinator = FindCoordinatorResponse.Coordinator
_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult

_log = logging.getLogger(__name__)


class Broker:
    """The broker beside this RLM, for all connections. Thread-safe.

    Attributes:
        needs_login: its listener speaks SASL: clients log in there, and its ACLs decide.
        versions: of requests that it serves.
    """

    def __init__(self, beside: Beside) -> None:
        self.beside = beside
        self.needs_login = beside.needs_login
        self.versions = BrokerVersions(beside)


class Relay:
    """Answer what one client asks of the broker. Not thread-safe.

    Args:
        connection: of this client.
        may_read: whether the policy lets the client read a topic; unused if clients log in.
        may_use_group: whether the policy lets it use a group; None: the broker decides.
    """

    def __init__(
        self,
        broker: Broker,
        connection: BackingConnection,
        rlm: ConsumedLog,
        cluster: ReaderCluster,
        may_read: Callable[[str], bool],
        may_use_group: Callable[[str], bool] | None,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._rlm = rlm
        self._cluster = cluster
        self._readable = ReadableTopics(connection, broker.versions)
        self._may_read = self._readable.may_read if broker.needs_login else may_read
        self._may_use_group = may_use_group
        self.is_logged_in = not broker.needs_login

    def may_call(self, rpc: str, topic: str) -> bool:
        """Return whether a client that logs in may read a topic, for any RPC of reading.

        Raises:
            BrokerAwayError: the broker does not answer.
        """
        return self._readable.may_read(topic)

    def expect(self, topics: Iterable[str]) -> None:
        """Ask at once for topics that `may_read` is about to be asked for."""
        if self._broker.needs_login:
            self._readable.expect(topics)

    def versions(self) -> dict[int, tuple[int, int]]:
        """Return first and last version of each request that is served, by API key.

        Raises:
            BrokerAwayError: clients must log in, and the broker never answered.
        """
        known = self._broker.versions.known()
        if self._broker.needs_login and not known:
            raise BrokerAwayError("no client can log in while the broker is away")
        served = {key: self._served(key, known[key]) for key in _RELAYED & known.keys()}
        if self._may_use_group is not None:
            served.pop(CONSUMER_GROUP_DESCRIBE, None)  # Its groups cannot be read.
        if self._broker.needs_login:
            served[_SASL_HANDSHAKE] = _HANDSHAKES
            served[_SASL_AUTHENTICATE] = known[_SASL_AUTHENTICATE]
        for key, (_, _, first, last) in _ANSWERED.items():
            first_there, last_there = known.get(key, (first, last))
            served[key] = max(first, first_there), min(last, last_there)
        return served

    def _served(self, key: int, versions: tuple[int, int]) -> tuple[int, int]:
        """Return the versions of a relayed request: all, or those whose groups can be read."""
        if self._may_use_group is None:
            return versions
        first, last = versions
        if key == CONSUMER_GROUP_HEARTBEAT:
            return first, min(last, _LAST_HEARTBEAT)
        schema = GROUP_APIS[key].request if key in GROUP_APIS else DescribeConfigsRequest
        return first, min(last, schema.max_version)

    def answer(self, api_key: int, version: int, data: bytes) -> Sequence[Buffer] | None:
        """Return the framed answer to a request; None if RLM answers it by itself.

        Raises:
            BrokerAwayError: the broker does not answer.
            EOFError: the client has left.
            UnservedRequestError: this is no request of Kafka, or one that is not served.
        """
        if self._broker.needs_login and api_key != _API_VERSIONS:
            if api_key in _SASL:
                return self._logging_in(api_key, version, data)
            if not self.is_logged_in:
                self._readable.check_login()
                self.is_logged_in = True
        if api_key in _ANSWERED:
            request, method, first, last = _ANSWERED[api_key]
            if not first <= version <= last:
                raise UnservedRequestError(f"API key {api_key}: version {version} is not served")
            found = decoded(request, api_key, version, data)
            return _framed(getattr(self, method)(found, version, data), version, data)
        if api_key not in _RELAYED:
            return None
        refused = None
        if self._may_use_group is not None:
            refused = self._refused(self._may_use_group, api_key, version, data)
        return self._relayed(data) if refused is None else refused

    def _relayed(self, data: bytes) -> Sequence[Buffer]:
        answer = self._connection.relay(data)
        return [_SIZE.pack(len(answer)), answer]

    def _logging_in(self, api_key: int, version: int, data: bytes) -> Sequence[Buffer]:
        """Relay a step of a login, whose passwords only client and broker know."""
        if api_key == _SASL_HANDSHAKE:
            if version != _WITH_HEADERS:
                raise UnservedRequestError(f"SaslHandshake: version {version} is not served")
            request = decoded(SaslHandshakeRequest, api_key, version, data)
            if request.mechanism == _GSSAPI:
                _log.info(
                    "a consumer was refused: GSSAPI's tickets are for the broker's host, not for "
                    "RLM's; use another mechanism of the cluster"
                )
                refused = SaslHandshakeResponse(error_code=_UNSUPPORTED_MECHANISM, mechanisms=[])
                return _framed(refused, version, data)
        return self._relayed(data)

    def _refused(
        self, may_use_group: Callable[[str], bool], api_key: int, version: int, data: bytes
    ) -> Sequence[Buffer] | None:
        """Return the answer to a request that the policy does not allow; None if it may pass.

        The broker sees RLM's own identity, so it cannot decide.
        """
        if api_key == CONSUMER_GROUP_DESCRIBE:
            raise UnservedRequestError("ConsumerGroupDescribe is not served with certificates")
        if api_key == CONSUMER_GROUP_HEARTBEAT:
            try:
                group = heartbeat_group(data)
            except Exception as e:  # A boundary, as in `decoded`.
                raise UnservedRequestError(f"API key {api_key}: cannot be decoded: {e}") from e
            is_allowed = version <= _LAST_HEARTBEAT and may_use_group(group)
            return None if is_allowed else [refused_heartbeat(_correlation_id(data))]
        if api_key == _DESCRIBE_CONFIGS:
            return self._refused_configs(version, data)
        api = GROUP_APIS[api_key]
        request = decoded(api.request, api_key, version, data)
        if api_key == LIST_GROUPS:
            return self._listed(may_use_group, version, data)
        names = api.names(request)
        if None in names:
            raise UnservedRequestError(f"API key {api_key}: the name of a group is null")
        if all(map(may_use_group, names)):
            return None
        return _framed(api.refused(request), version, data)

    def _listed(
        self, may_use_group: Callable[[str], bool], version: int, data: bytes
    ) -> Sequence[Buffer]:
        answer = ListGroupsResponse.decode(
            self._connection.relay(data), version=version, header=True
        )
        listed = [each for each in answer.groups if may_use_group(each.group_id)]
        response = ListGroupsResponse(error_code=answer.error_code, groups=listed)
        return _framed(response, version, data)

    def _refused_configs(self, version: int, data: bytes) -> Sequence[Buffer] | None:
        request = decoded(DescribeConfigsRequest, _DESCRIBE_CONFIGS, version, data)
        if any(each.resource_name is None for each in request.resources or ()):
            raise UnservedRequestError("DescribeConfigs: the name of a resource is null")
        codes = [
            _CLUSTER_NOT_AUTHORIZED
            if each.resource_type != _OF_TOPIC
            else 0
            if self._may_read(each.resource_name)
            else _TOPIC_NOT_AUTHORIZED
            for each in request.resources or ()
        ]
        if not any(codes):
            return None
        result = DescribeConfigsResponse.DescribeConfigsResult
        results = [
            result(
                error_code=max(codes),
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=[],
            )
            for each in request.resources
        ]
        return _framed(DescribeConfigsResponse(results=results), version, data)

    def _find_coordinator(self, request: Any, version: int, data: bytes) -> Any:
        """Name the RLM beside the coordinator's broker, under the broker's id."""
        keys = request.coordinator_keys if version >= _BATCHES_SINCE else [request.key]
        if keys is None or None in keys:
            raise UnservedRequestError("FindCoordinator: the name of a group is null")
        if request.key_type == _OF_TRANSACTIONS:
            found = [_coordinator(key, _TRANSACTIONAL_ID_NOT_AUTHORIZED) for key in keys]
        else:
            nodes = {node.id: node for node in self._cluster.nodes()}
            found = [self._placed(each, nodes) for each in self._found(keys, version, data)]
        if version >= _BATCHES_SINCE:
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _found(self, keys: Sequence[str], version: int, data: bytes) -> Sequence[Any]:
        """Ask the broker for coordinators; they are not available while it is away."""
        try:
            answer = self._connection.relay(data)
        except BrokerAwayError as e:
            if self._broker.needs_login:
                raise
            _log.info("no coordinator for a consumer: %s", e)
            self._connection.close()
            return [_coordinator(key, _COORDINATOR_NOT_AVAILABLE) for key in keys]
        found = FindCoordinatorResponse.decode(answer, version=version, header=True)
        if version >= _BATCHES_SINCE:
            return list(found.coordinators)
        return [_coordinator(keys[0], found.error_code, found.node_id, found.error_message)]

    def _placed(self, found: Any, nodes: Mapping[int, Node]) -> Any:
        if self._may_use_group is not None and not self._may_use_group(found.key):
            # Its requests are refused here. An error would reach clients of librdkafka too that
            # have a group and assign partitions.
            found = _coordinator(found.key, 0, self._cluster.own.id)
        node = nodes.get(found.node_id)
        if found.error_code or node is None:
            return _coordinator(
                found.key, found.error_code or _COORDINATOR_NOT_AVAILABLE, -1, found.error_message
            )
        found.host, found.port = node.host, node.port
        return found

    def _describe_cluster(self, request: Any, version: int, data: bytes) -> Any:
        cluster = self._cluster
        if request.endpoint_type == _CONTROLLERS:
            return DescribeClusterResponse(
                error_code=_UNSUPPORTED_ENDPOINT_TYPE, cluster_id="", brokers=[]
            )
        broker = DescribeClusterResponse.DescribeClusterBroker
        return DescribeClusterResponse(
            cluster_id=cluster.cluster_id or "",
            controller_id=cluster.own.id,
            brokers=[broker(broker_id=n.id, host=n.host, port=n.port) for n in cluster.nodes()],
        )

    def _describe_log_dirs(self, request: Any, version: int, data: bytes) -> Any:
        """Add the tier to the broker's directories: the partitions that this node serves."""
        answer = DescribeLogDirsResponse.decode(
            self._connection.relay(data), version=version, header=True
        )
        if self._may_use_group is not None:
            for each in answer.results:
                each.topics = [t for t in each.topics if self._may_read(t.name)]
        results = [*answer.results, self._tier(request)]
        return DescribeLogDirsResponse(error_code=answer.error_code, results=results)

    def _tier(self, request: Any) -> Any:
        asked = None
        if request.topics is not None:
            asked = {(t.topic, number) for t in request.topics for number in t.partitions or ()}
        served = self._rlm.served_partitions()
        self.expect({each.topic_id_partition.topic for each in served})
        leaders = self._cluster.leaders_of(served)
        by_topic: dict[str, list[Any]] = {}
        for each in served:
            tp = each.topic_id_partition
            is_asked = asked is None or (tp.topic, tp.partition) in asked
            is_own = leaders[tp].node_id == self._cluster.own.id
            if is_asked and is_own and self._may_read(tp.topic):
                partition = _LogDir.DescribeLogDirsTopic.DescribeLogDirsPartition(
                    partition_index=tp.partition,
                    partition_size=each.remote_size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
                by_topic.setdefault(tp.topic, []).append(partition)
        topics = [
            _LogDir.DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in sorted(by_topic.items())
        ]
        return _LogDir(
            error_code=0, log_dir=TIER_LOG_DIR, topics=topics, total_bytes=-1, usable_bytes=-1
        )


def _correlation_id(data: bytes) -> int:
    return int.from_bytes(data[4:8], "big", signed=True)


def _framed(response: Any, version: int, data: bytes) -> Sequence[Buffer]:
    return Records().framed(response, version, _correlation_id(data))


def _coordinator(key: str, error_code: int, node_id: int = -1, message: str | None = None) -> Any:
    return _Coordinator(
        key=key, error_code=error_code, error_message=message, node_id=node_id, host="", port=-1
    )
