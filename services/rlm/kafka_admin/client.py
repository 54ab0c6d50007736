"""Send Metadata, DescribeConfigs and ListOffsets requests to brokers, through kafka-python.

kafka-python's admin client does not suffice: it returns no cluster id, topic ids, leaders and
epochs of one Metadata answer, and sends no ListOffsets under a leader epoch. So only this file uses
`kafka.net` and `kafka.protocol`. Their interface may change with a minor release, so pyproject.toml
pins the version.
"""

import random
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaProtocolError, for_code
from kafka.net import KafkaConnection, KafkaTCPTransport, NetworkSelector
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from services.api.ids import ZERO_UUID, TopicIdPartition
from services.common.addresses import joined_address, split_address
from services.common.batches import batches
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    LogOffsets,
    NoPolicy,
    NoTopic,
    PartitionView,
    PolicyView,
    TopicView,
)
from services.rlm.kafka_admin.security import ConnectionOptions, KafkaSecurity, KafkaSecurityError

REQUEST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 3.0

_TIMEOUT_MARGIN_S = 1.0
"""Margin after the library's own timeout of a request."""

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


_NO_REPLICA = -1

_LEADER_EPOCHS_SINCE = 4
"""The first version of ListOffsets with a leader epoch (KIP-320): Kafka 2.1."""

_NO_PARTITION_ERROR = 0
_Topic = ListOffsetsRequest.ListOffsetsTopic
MAX_TOPICS_A_REQUEST = 500
MAX_PARTITIONS_A_REQUEST = 5_000

MAX_OTHER_BROKERS = 3
"""The most brokers besides the bootstrap servers that one view tries."""

NO_LEADER = -1

_TOPIC_IDS_SINCE = 10
"""The first version of Metadata with topic ids (KIP-516): Kafka 2.8. From this version on, an empty
list of topics means none; before, it meant all."""

_CLOSED = (KafkaConnectionError, KafkaProtocolError, ssl.SSLEOFError, ConnectionResetError)
_NO_ERROR, _UNKNOWN_TOPIC_OR_PARTITION, _TOPIC_AUTHORIZATION_FAILED = 0, 3, 29
_TOPIC_RESOURCE = 2
_CLEANUP_POLICY = "cleanup.policy"
_PLAINTEXT = KafkaSecurity()


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """The token of one connection."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str | None:
        return self._token


class BrokerConnection:
    """Send requests to one broker."""

    def __init__(self, net: NetworkSelector, connection: KafkaConnection, timeout_s: float) -> None:
        self._net = net
        self._connection = connection
        self._timeout_s = timeout_s

    def call(self, request: Any) -> Any:
        """Return the broker's answer in bounded time.

        Raises:
            TimeoutError: if the broker does not answer.
            Exception: any error of the library.
        """
        answer = self._connection.send_request(request)
        self._net.poll(timeout_ms=(self._timeout_s + _TIMEOUT_MARGIN_S) * 1000, future=answer)
        if not answer.is_done:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        if answer.exception is not None:
            raise answer.exception
        return answer.value


@contextmanager
def connected(
    server: str, options: ConnectionOptions, timeout_s: float
) -> Iterator[BrokerConnection]:
    """Connect to HOST:PORT; close every thread and file at the end of the block.

    Args:
        timeout_s: limits each request; connecting and a TLS handshake take at most
            CONNECT_TIMEOUT_S each.
    """
    host, _ = split_address(server)
    with ExitStack() as cleanup:
        opened = open_socket(server, min(timeout_s, CONNECT_TIMEOUT_S), options.ssl_context)
        broker = cleanup.enter_context(closing(BrokerSocket(opened)))
        net = cleanup.enter_context(closing(NetworkSelector()))
        connection = KafkaConnection(
            net,
            node_id=server,
            client_id="sediment-rlm",
            request_timeout_ms=timeout_s * 1000,
            receive_message_max_bytes=MAX_ANSWER_BYTES,
            **options.options,
            sasl_oauth_token_provider=_Token(options.token),
        )
        connection.connection_made(KafkaTCPTransport(net, broker, host))
        cleanup.enter_context(closing(connection))
        # Requests wait for the login; if it fails, they fail with its reason.
        net.call_soon(connection.initialize)
        yield BrokerConnection(net, connection, timeout_s)


def open_socket(server: str, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    """Connect to HOST:PORT, with the TLS handshake, within a time limit that the library lacks.

    Returns:
        A socket that does not block.
    """
    host, port = split_address(server)
    opened = socket.create_connection((host, port), timeout_s)
    try:
        if context is not None:
            opened = context.wrap_socket(opened, server_hostname=host.rstrip("."))
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


class BrokerSocket:
    """Deliver the bytes that a broker sent before it closed the connection, such as the reason.

    kafka-python reads until a read blocks, and drops the bytes if the connection ends before that.
    So this socket reports the end in a separate read.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._has_read = False

    def recv(self, size: int) -> bytes:
        has_read, self._has_read = self._has_read, False
        try:
            data = self._socket.recv(size)
        except _WOULD_BLOCK as e:
            raise BlockingIOError from e
        except OSError as e:
            if has_read:
                raise BlockingIOError from e
            raise
        if has_read and not data:
            raise BlockingIOError
        self._has_read = bool(data)
        return data

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except _WOULD_BLOCK as e:
            raise BlockingIOError from e

    def close(self) -> None:
        self._socket.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _offsets_of(
    names: Iterable[TopicIdPartition],
    epochs: Mapping[TopicIdPartition, int],
    timeout_s: float,
    which: OffsetSpec | int,
    isolation: IsolationLevel,
) -> Any:
    topics = [
        _Topic(
            name=topic,
            partitions=[
                _Topic.ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=epochs[name],
                    timestamp=which,
                )
                for name in some
            ],
        )
        for topic, some in groupby(names, lambda name: name.topic)
    ]
    return ListOffsetsRequest(
        replica_id=_NO_REPLICA,
        isolation_level=isolation,
        topics=topics,
        timeout_ms=int(timeout_s * 1000),
        min_version=_LEADER_EPOCHS_SINCE,
    )


def stable_offsets(
    answers: Iterable[Any], requested: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    """Read the offsets of the requested partitions from ListOffsetsResponses."""
    found = {
        (topic.name, partition.partition_index): int(partition.offset)
        for answer in answers
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == _NO_PARTITION_ERROR and partition.offset >= 0
    }
    offsets = ((name, found.get((name.topic, name.partition))) for name in requested)
    return {name: offset for name, offset in offsets if offset is not None}


class KafkaAdmin:
    """Send requests to the brokers of a cluster. Thread-safe.

    Each view makes a new connection and closes it, so that it finds a broker that moved or
    returned.

    Args:
        bootstrap_servers: HOST:PORT each. A view tries them in random order, then some brokers of
            the last answer, until one answers.
        timeout_s: limits each request; connecting and a TLS handshake take CONNECT_TIMEOUT_S each.
        security: its files are read by each view.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        timeout_s: float = REQUEST_TIMEOUT_S,
        security: KafkaSecurity = _PLAINTEXT,
    ) -> None:
        self._bootstrap_servers = tuple(bootstrap_servers)
        self._security = security
        self._brokers: Mapping[int, str] = {}
        self._timeout_s = timeout_s

    @property
    def broker_ids(self) -> list[int]:
        """Return the brokers of the last view."""
        return sorted(self._brokers)

    def view(self, topics: Collection[str]) -> ClusterView:
        """Request topics as in ClusterAdmin.view."""
        return self._first_answer(topics, with_policies=False).cluster

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        """Request policies as in ClusterAdmin.cleanup_policies."""
        return self._first_answer(topics, with_policies=True)

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        """Request offsets as in ClusterAdmin.stable_offsets; the last view has the address."""
        with self.connected_to(leader) as broker:
            return self._offsets(broker, epochs, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)

    def log_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, LogOffsets]:
        """Request offsets as in ClusterAdmin.log_offsets; the last view has the address."""
        with self.connected_to(leader) as broker:
            starts = self._offsets(broker, epochs, OffsetSpec.EARLIEST)
            ends = self._offsets(broker, epochs, OffsetSpec.LATEST)
        return {name: LogOffsets(starts[name], ends[name]) for name in starts if name in ends}

    def _offsets(
        self,
        broker: BrokerConnection,
        epochs: Mapping[TopicIdPartition, int],
        which: OffsetSpec | int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicIdPartition, int]:
        answers = [
            broker.call(_offsets_of(some, epochs, self._timeout_s, which, isolation))
            for some in batches(sorted(epochs), MAX_PARTITIONS_A_REQUEST)
        ]
        return stable_offsets(answers, epochs)

    def offsets_at(
        self, leader: int, epochs: Mapping[TopicIdPartition, int], timestamp_ms: int
    ) -> Mapping[TopicIdPartition, int]:
        """Request the first offset of a record of this time or later; absent if there is none."""
        with self.connected_to(leader) as broker:
            return self._offsets(broker, epochs, timestamp_ms)

    def address_of(self, broker_id: int) -> str:
        """Ask the cluster for HOST:PORT of a broker, at the listener of the bootstrap servers.

        Raises:
            ClusterUnreachableError: if no broker answers, or the answer does not name this one.
        """
        self.view(())
        return self._address_of(broker_id)

    def _address_of(self, broker_id: int) -> str:
        server = self._brokers.get(broker_id)
        if server is None:
            raise ClusterUnreachableError(
                f"the last answer of the cluster names no broker {broker_id}"
            )
        return server

    @contextmanager
    def connected_to(self, leader: int) -> Iterator[BrokerConnection]:
        """Connect to a broker by its address in the last view.

        Raises:
            ClusterUnreachableError: for any failure, also within the block.
        """
        server = self._address_of(leader)
        options = self._options()
        try:
            with connected(server, options, self._timeout_s) as broker:
                yield broker
        except Exception as e:  # the library documents no exceptions
            raise ClusterUnreachableError(f"{server}: {self._reason(e)}") from e

    def _first_answer(self, topics: Collection[str], *, with_policies: bool) -> PolicyView:
        options = self._options()
        failures = []
        for server in self._servers():
            try:
                answers, described = self._request(
                    server, sorted(set(topics)), options, with_policies=with_policies
                )
                view = PolicyView(cluster_view(answers), described)
                addresses = broker_addresses(answers[-1])
            except Exception as e:  # noqa: BLE001 - the library documents no exceptions
                failures.append(f"{server}: {self._reason(e)}")
                continue
            self._brokers = addresses
            return view
        raise ClusterUnreachableError("; ".join(failures))

    def _options(self) -> ConnectionOptions:
        try:
            return self._security.connection_options()
        except KafkaSecurityError as e:
            raise ClusterUnreachableError(str(e)) from e

    def _reason(self, error: Exception) -> str:
        """Describe a failure, with the likely cause if the broker closed the connection.

        Brokers close it if the client uses another protocol: without an answer, or with a TLS
        alert, which the library mistakes for a message of impossible size.
        """
        if not isinstance(error, _CLOSED):
            return str(error)
        return (
            f"{error}; check that the listener speaks RLM_KAFKA_SECURITY_PROTOCOL="
            f"{self._security.security_protocol.value}, and RLM_KAFKA_SSL_CERTIFICATE_FILE if it "
            "requires client certificates"
        )

    def _servers(self) -> Iterator[str]:
        yield from random.sample(self._bootstrap_servers, len(self._bootstrap_servers))
        others = sorted({*self._brokers.values()} - {*self._bootstrap_servers})
        yield from random.sample(others, min(len(others), MAX_OTHER_BROKERS))

    def _request(
        self, server: str, topics: Sequence[str], options: ConnectionOptions, *, with_policies: bool
    ) -> tuple[list[Any], dict[str, str | NoPolicy]]:
        """Request metadata, and cleanup policies by topic."""
        with connected(server, options, self._timeout_s) as broker:
            # The answer to a request without topics describes only the cluster.
            requested = list(batches(topics, MAX_TOPICS_A_REQUEST)) or [()]
            answers = [broker.call(metadata_of(some)) for some in requested]
            for answer in answers:
                if answer.error_code:
                    raise for_code(answer.error_code)()
            # After Metadata, so that a policy is never older than the topic's id.
            described = [
                broker.call(_policies_of(some)) for some in requested if with_policies and some
            ]
        results = [result for answer in described for result in answer.results]
        return answers, {result.resource_name: cleanup_policy(result) for result in results}


def metadata_of(topics: Sequence[str], *, with_rights: bool = False) -> Any:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=with_rights,
        min_version=_TOPIC_IDS_SINCE,
    )


def _policies_of(topics: Sequence[str]) -> Any:
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=[_CLEANUP_POLICY]
        )
        for name in topics
    ]
    return DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )


def cluster_view(answers: Sequence[Any]) -> ClusterView:
    """Join the answers into one view.

    Raises:
        ClusterUnreachableError: if an answer is incomplete, or they are of several clusters.
    """
    if not all(answer.brokers for answer in answers):
        # A broker that does not list itself yet does not know the cluster's topics either.
        raise ClusterUnreachableError(
            "the broker names no brokers, not even itself; it is starting"
        )
    cluster_ids = {answer.cluster_id for answer in answers}
    if len(cluster_ids) > 1:
        raise ClusterUnreachableError(
            "brokers of two clusters answered; check RLM_BOOTSTRAP_SERVERS"
        )
    (cluster_id,) = cluster_ids
    if not cluster_id:
        raise ClusterUnreachableError("the broker answered without a cluster id")
    topics = {topic.name: topic_view(topic) for answer in answers for topic in answer.topics}
    return ClusterView(cluster_id, topics)


def topic_view(answer: Any) -> TopicView | NoTopic:
    """Read a MetadataResponseTopic.

    Without a topic id, as from a broker before Kafka 2.8, the result is FAILED: a missing id does
    not mean another topic.
    """
    if answer.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return NoTopic.UNKNOWN
    if answer.error_code == _TOPIC_AUTHORIZATION_FAILED:
        return NoTopic.NOT_AUTHORIZED
    if answer.error_code != _NO_ERROR or answer.topic_id in (None, ZERO_UUID):
        return NoTopic.FAILED
    partitions = {p.partition_index: _partition(p) for p in answer.partitions}
    return TopicView(answer.topic_id, partitions)


def cleanup_policy(result: Any) -> str | NoPolicy:
    """Read the cleanup policy from a DescribeConfigsResult."""
    if result.error_code != _NO_ERROR:
        is_refused = result.error_code == _TOPIC_AUTHORIZATION_FAILED
        name = for_code(result.error_code).__name__
        return NoPolicy(f"{name}: {result.error_message or 'no reason'}", is_refused)
    for config in result.configs or ():
        if config.name == _CLEANUP_POLICY and config.value is not None:
            return str(config.value)
    return NoPolicy(f"the broker's answer has no {_CLEANUP_POLICY}")


def _partition(answer: Any) -> PartitionView:
    replicas, in_sync = frozenset(answer.replica_nodes), frozenset(answer.isr_nodes)
    if answer.leader_id == NO_LEADER:
        return PartitionView(None, None, replicas, in_sync)
    epoch = answer.leader_epoch
    return PartitionView(answer.leader_id, None if epoch < 0 else epoch, replicas, in_sync)


def broker_addresses(answer: Any) -> dict[int, str]:
    """Read the brokers' addresses, by their ids."""
    return {broker.node_id: joined_address(broker.host, broker.port) for broker in answer.brokers}
