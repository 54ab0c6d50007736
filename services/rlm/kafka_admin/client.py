"""Ask brokers for metadata, topic settings and stable offsets, through kafka-python."""

import random
import socket
import ssl
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaProtocolError, for_code
from kafka.net import KafkaNetClient
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from services.api.ids import ZERO_UUID, TopicIdPartition
from services.rlm.kafka_admin.client_config import (
    ClientConfigError,
    ClientSecurity,
    client_security,
)
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    ClusterView,
    NoPolicy,
    NoTopic,
    PartitionView,
    PolicyView,
    TopicView,
)
from services.workflows.paging import batches


def listening_client(**options: Any) -> Any:
    """A KafkaNetClient that takes what came first, and the end of the connection with the next
    read."""
    client = KafkaNetClient(**options)
    build = client._manager._build_transport

    async def build_transport(*args: Any, **kwargs: Any) -> Any:
        transport = await build(*args, **kwargs)
        receive = transport._sock_recv

        def receive_what_came_first() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error

        transport._sock_recv = receive_what_came_first
        return transport

    client._manager._build_transport = build_transport
    return client


MAX_ANSWER_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 3.0

_GIVEN_UP_AFTER_S = 1.0
"""The request has timed out by then, if the library does what it says."""


class BrokerConnection:
    """What `connected` gives."""

    def __init__(self, client: KafkaNetClient, node_id: str, timeout_s: float) -> None:
        self._client = client
        self._node_id = node_id
        self._timeout_s = timeout_s

    def ask(self, request: Any) -> Any:
        """The answer, in bounded time. Raises whatever the library raises."""
        answer = self._client.send(self._node_id, request)
        self._client.poll(timeout_ms=(self._timeout_s + _GIVEN_UP_AFTER_S) * 1000, future=answer)
        if not answer.is_done:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        if answer.exception is not None:
            raise answer.exception
        return answer.value


@contextmanager
def connected(
    server: str, security: ClientSecurity, timeout_s: float
) -> Iterator[BrokerConnection]:
    """Connect to HOST:PORT; nothing is left of it afterwards, neither thread nor file.

    Args:
        timeout_s: of each request; of the connection, and of a TLS handshake, no more than
            CONNECT_TIMEOUT_S.
    """
    connect_timeout_s = min(timeout_s, CONNECT_TIMEOUT_S)
    client = listening_client(
        bootstrap_servers=[server],
        client_id="sediment-rlm",
        request_timeout_ms=timeout_s * 1000,
        socket_connection_setup_timeout_ms=connect_timeout_s * 1000,
        receive_message_max_bytes=MAX_ANSWER_BYTES,
        **security.options,
    )
    with closing(client):
        (broker,) = client.cluster.bootstrap_brokers()
        _try(broker.host, broker.port, connect_timeout_s, security.ssl_context)
        yield BrokerConnection(client, broker.node_id, timeout_s)


def _try(host: str, port: int, timeout_s: float, context: ssl.SSLContext | None) -> None:
    """The library leaves the socket of a refused connection, and of a TLS handshake that fails, to
    the garbage collector, and waits for a handshake without an end."""
    with socket.create_connection((host, port), timeout_s) as connection:
        if context is not None:
            context.wrap_socket(connection, server_hostname=host.rstrip(".")).close()


_CONSUMER = -1
"""The id of who is no replica."""

_SINCE = 4
"""The first version of ListOffsets that takes the leader epoch (KIP-320): Kafka 2.1."""

_NO_PARTITION_ERROR = 0
_Topic = ListOffsetsRequest.ListOffsetsTopic


def stable_offsets_of(
    names: Iterable[TopicIdPartition], epochs: Mapping[TopicIdPartition, int], timeout_s: float
) -> Any:
    """The question.

    Args:
        names: of which, in order.
    """
    topics = [
        _Topic(
            name=topic,
            partitions=[
                _Topic.ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=epochs[name],
                    timestamp=OffsetSpec.LATEST,
                )
                for name in some
            ],
        )
        for topic, some in groupby(names, lambda name: name.topic)
    ]
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=IsolationLevel.READ_COMMITTED,
        topics=topics,
        timeout_ms=int(timeout_s * 1000),
        min_version=_SINCE,
    )


def stable_offsets(
    answers: Iterable[Any], asked: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    """What ListOffsetsResponses say of the partitions that were asked for."""
    found = {
        (topic.name, partition.partition_index): int(partition.offset)
        for answer in answers
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == _NO_PARTITION_ERROR and partition.offset >= 0
    }
    told = ((name, found.get((name.topic, name.partition))) for name in asked)
    return {name: offset for name, offset in told if offset is not None}


MAX_TOPICS_A_REQUEST = 500
MAX_PARTITIONS_A_REQUEST = 5_000

MAX_OTHERS_ASKED = 3
"""Of the brokers that are not among the bootstrap servers, in one view."""

NO_LEADER = -1

_TOPIC_IDS_SINCE = 10
"""The first version of Metadata with them (KIP-516): Kafka 2.8. In it no topics are no topics, and
no longer all of them."""

_ENDED = (KafkaConnectionError, KafkaProtocolError, ssl.SSLEOFError, ConnectionResetError)
_NO_ERROR, _UNKNOWN_TOPIC_OR_PARTITION, _TOPIC_AUTHORIZATION_FAILED = 0, 3, 29
_TOPIC_RESOURCE = 2
_CLEANUP_POLICY = "cleanup.policy"


class KafkaAdmin:
    """Asks brokers of a cluster. A view connects anew, to one of them, and leaves no thread and no
    connection behind; so a broker that moved or came back is found by the next one. Thread-safe.

    Args:
        bootstrap_servers: HOST:PORT each. They are asked in any order, and after them some of the
            brokers that the answer before named, until one answers.
        timeout_s: of each request. A view takes as many as there are batches of topics, and up to
            broker_connection.CONNECT_TIMEOUT_S for each address that does not answer, and again for
            a TLS handshake.
        config_file: Kafka's client properties, read anew by each view, so that a password or a
            certificate may be changed; None: PLAINTEXT.
    """

    def __init__(
        self, bootstrap_servers: Sequence[str], timeout_s: float, config_file: Path | None = None
    ) -> None:
        self._bootstrap_servers = tuple(bootstrap_servers)
        self._config_file = config_file
        self._brokers: Mapping[int, str] = {}
        self._timeout_s = timeout_s

    def view(self, topics: Collection[str]) -> ClusterView:
        """As ClusterAdmin.view."""
        return self._first_answer(topics, with_policies=False).cluster

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        """As ClusterAdmin.cleanup_policies."""
        return self._first_answer(topics, with_policies=True)

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        """As ClusterAdmin.stable_offsets. The leader is asked where the view before said it is."""
        server = self._brokers.get(leader)
        if server is None:
            raise ClusterUnreachableError(f"broker {leader} is not one that the cluster names")
        security = self._security()
        try:
            with connected(server, security, self._timeout_s) as broker:
                answers = [
                    broker.ask(stable_offsets_of(some, epochs, self._timeout_s))
                    for some in batches(sorted(epochs), MAX_PARTITIONS_A_REQUEST)
                ]
        except Exception as e:  # what the library raises is written nowhere
            raise ClusterUnreachableError(f"{server}: {_reason(e, security)}") from e
        return stable_offsets(answers, epochs)

    def _first_answer(self, topics: Collection[str], *, with_policies: bool) -> PolicyView:
        security = self._security()
        failures = []
        for server in self._servers():
            try:
                answers, described = self._ask(
                    server, sorted(set(topics)), security, with_policies=with_policies
                )
                view = PolicyView(_view(answers), described)
            except Exception as e:  # noqa: BLE001 - what the library raises is written nowhere
                failures.append(f"{server}: {_reason(e, security)}")
                continue
            self._brokers = _addresses(answers[-1])
            return view
        raise ClusterUnreachableError("; ".join(failures))

    def _security(self) -> ClientSecurity:
        try:
            return client_security(self._config_file)
        except ClientConfigError as e:
            raise ClusterUnreachableError(f"RLM_KAFKA_CLIENT_CONFIG_FILE: {e}") from e

    def _servers(self) -> Iterator[str]:
        yield from random.sample(self._bootstrap_servers, len(self._bootstrap_servers))
        others = sorted({*self._brokers.values()} - {*self._bootstrap_servers})
        yield from random.sample(others, min(len(others), MAX_OTHERS_ASKED))

    def _ask(
        self, server: str, topics: Sequence[str], security: ClientSecurity, *, with_policies: bool
    ) -> tuple[list[Any], dict[str, str | NoPolicy]]:
        """Answers to Metadata, and the policies."""
        with connected(server, security, self._timeout_s) as broker:
            # Who names no topic is told of the cluster alone.
            asked = list(batches(topics, MAX_TOPICS_A_REQUEST)) or [()]
            answers = [broker.ask(_metadata_of(some)) for some in asked]
            for answer in answers:
                if answer.error_code:
                    raise for_code(answer.error_code)()
            # After Metadata: of the topics that were named there, or of later ones.
            described = [broker.ask(_policies_of(some)) for some in asked if with_policies and some]
        results = [result for answer in described for result in answer.results]
        return answers, {result.resource_name: cleanup_policy(result) for result in results}


def _metadata_of(topics: Sequence[str]) -> Any:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
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


def _reason(error: Exception, security: ClientSecurity) -> str:
    """What was raised, and where it tells of a connection that just ended, why that may be: brokers
    end it without a word where they are spoken to otherwise than they expect, or with an alert of
    TLS, which the library takes for a message of impossible size."""
    if isinstance(error, _ENDED):
        return (
            f"{error} (spoken to with security.protocol={security.protocol.value}; is that what "
            "this listener speaks, and must a client show a certificate?)"
        )
    return str(error)


def _view(answers: Sequence[Any]) -> ClusterView:
    """
    Raises:
        ClusterUnreachableError: the answers are not whole, or not of one cluster.
    """
    if not all(answer.brokers for answer in answers):
        # Not even of itself: what it says of topics is not yet what the cluster says.
        raise ClusterUnreachableError("the broker knows of no brokers; it is starting")
    cluster_ids = {answer.cluster_id for answer in answers}
    if len(cluster_ids) > 1:
        raise ClusterUnreachableError("brokers of two clusters answer")
    (cluster_id,) = cluster_ids
    if not cluster_id:
        raise ClusterUnreachableError("the cluster does not tell its id")
    topics = {topic.name: topic_view(topic) for answer in answers for topic in answer.topics}
    return ClusterView(cluster_id, topics)


def topic_view(answer: Any) -> TopicView | NoTopic:
    """What a MetadataResponseTopic says of the topic; FAILED where it has no id, as from a broker
    of before there were ids: that is not another id."""
    if answer.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return NoTopic.UNKNOWN
    if answer.error_code == _TOPIC_AUTHORIZATION_FAILED:
        return NoTopic.NOT_AUTHORIZED
    if answer.error_code != _NO_ERROR or answer.topic_id in (None, ZERO_UUID):
        return NoTopic.FAILED
    partitions = {p.partition_index: _partition(p) for p in answer.partitions}
    return TopicView(answer.topic_id, partitions)


def cleanup_policy(result: Any) -> str | NoPolicy:
    """What a DescribeConfigsResult says of a topic."""
    if result.error_code != _NO_ERROR:
        is_refused = result.error_code == _TOPIC_AUTHORIZATION_FAILED
        name = for_code(result.error_code).__name__
        return NoPolicy(f"{name}: {result.error_message or 'no reason'}", is_refused)
    for config in result.configs or ():
        if config.name == _CLEANUP_POLICY and config.value is not None:
            return str(config.value)
    return NoPolicy(f"the broker does not tell {_CLEANUP_POLICY}")


def _partition(answer: Any) -> PartitionView:
    replicas = frozenset(answer.replica_nodes)
    if answer.leader_id == NO_LEADER:
        return PartitionView(None, None, replicas)
    epoch = answer.leader_epoch
    return PartitionView(answer.leader_id, None if epoch < 0 else epoch, replicas)


def _addresses(answer: Any) -> dict[int, str]:
    """Of the brokers, by their ids."""
    return {
        broker.node_id: f"[{broker.host}]:{broker.port}"
        if ":" in broker.host
        else f"{broker.host}:{broker.port}"
        for broker in answer.brokers
    }


REQUEST_TIMEOUT_S = 10.0
_KAFKA_CLIENT = ("kafka", "javaproperties")


class KafkaClientMissingError(Exception):
    """The extra `kafka` is not installed."""


def connect_admin(
    bootstrap_servers: Sequence[str],
    config_file: Path | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> ClusterAdmin:
    """It connects when it is asked, each time anew and as `config_file` says then.

    Raises:
        KafkaClientMissingError: there is nothing to connect with.
        ClientConfigError: the file cannot be used as it is now.
    """
    if any(find_spec(name) is None for name in _KAFKA_CLIENT):
        raise KafkaClientMissingError(
            "this needs a Kafka client, which is not installed here: in Sediment's checkout, "
            f"{sys.executable} -m pip install -e '.[kafka]'"
        )
    client_security(config_file)
    return KafkaAdmin(bootstrap_servers, timeout_s, config_file)
