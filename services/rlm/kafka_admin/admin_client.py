"""The admin API through confluent-kafka, which is the extra `kafka`: imported where a setting asks
for it only.

Its describe_topics answers by name, not by id, and without leader epochs. A topic keeps its name,
so what is said of the name is said of the id; and the epoch that a leader leads under comes with
the latest offset, from the leader itself (docs/adr/0034).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import LatestSpec, OffsetSpec
from confluent_kafka.admin._topic import TopicDescription

from services.api.ids import ZERO_UUID, uuid_from_text
from services.rlm.batches import batches
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    NoTopic,
    PartitionView,
    TopicView,
)

MAX_TOPICS_A_REQUEST = 500
MAX_PARTITIONS_A_REQUEST = 2_000
NO_LEADER = -1
_ANSWERED_AFTER_S = 2.0
_LATEST: OffsetSpec = LatestSpec()  # type: ignore[no-untyped-call]  # the library's
_URL_SAFE = str.maketrans("+/", "-_", "=")
_CLIENT: dict[str, str | int | float] = {
    "client.id": "sediment-rlm",
    "log_level": 0,  # what goes wrong is said by the call that it goes wrong in
}
T = TypeVar("T")
_Place = tuple[str, int]
"""A topic's name and a partition."""


class KafkaAdmin:
    """A client of a cluster, for one thread at a time. It connects when it is asked first.

    Args:
        bootstrap_servers: HOST:PORT, separated by commas.
        timeout_s: of each request; a view takes several.
    """

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        self._client = AdminClient({**_CLIENT, "bootstrap.servers": bootstrap_servers})
        self._servers = bootstrap_servers
        self._timeout_s = timeout_s

    def view(self, topics: Collection[str], broker_id: int) -> ClusterView:
        """As ClusterAdmin.view."""
        try:
            cluster_id = self._cluster_id()
            found = self._describe(topics)
            self._add_leader_epochs(found, broker_id)
            if self._cluster_id() != cluster_id:
                raise ClusterUnreachableError(f"{self._servers}: brokers of two clusters answer")
        except KafkaException as e:
            raise ClusterUnreachableError(f"{self._servers}: {_error_of(e).str()}") from e
        return ClusterView(cluster_id, found)

    def _cluster_id(self) -> str:
        cluster = self._answer(self._client.describe_cluster(request_timeout=self._timeout_s))
        if not cluster.cluster_id:
            raise ClusterUnreachableError(f"{self._servers}: the cluster does not tell its id")
        return str(cluster.cluster_id)

    def _describe(self, topics: Collection[str]) -> dict[str, TopicView | NoTopic]:
        found: dict[str, TopicView | NoTopic] = {}
        for batch in batches(sorted(topics), MAX_TOPICS_A_REQUEST):
            asked = TopicCollection(list(batch))
            answers = self._client.describe_topics(asked, request_timeout=self._timeout_s)
            for name, answer in answers.items():
                found[name] = self._topic(answer)
        return found

    def _topic(self, answer: "Future[TopicDescription]") -> TopicView | NoTopic:
        try:
            return topic_view(self._answer(answer))
        except KafkaException as e:
            return no_topic(e)

    def _add_leader_epochs(self, found: dict[str, TopicView | NoTopic], broker_id: int) -> None:
        """Of the partitions that this broker leads. One whose leader changes meanwhile is left
        without: whose epoch it is, is not known then."""
        epochs = dict(self._leader_epochs(list(_led(found, broker_id))))
        still_led = set(_led(self._describe({name for name, _ in epochs}), broker_id))
        for name, topic in found.items():
            if isinstance(topic, TopicView):
                partitions = {
                    number: replace(partition, leader_epoch=epochs.get((name, number)))
                    for number, partition in topic.partitions.items()
                    if (name, number) in still_led
                }
                found[name] = replace(topic, partitions={**topic.partitions, **partitions})

    def _leader_epochs(self, led: Sequence[_Place]) -> Iterator[tuple[_Place, int]]:
        for batch in batches(led, MAX_PARTITIONS_A_REQUEST):
            asked = {TopicPartition(topic, p): _LATEST for topic, p in batch}
            answers = self._client.list_offsets(asked, request_timeout=self._timeout_s)
            for partition, answer in answers.items():
                try:
                    epoch = self._answer(answer).leader_epoch
                except KafkaException:
                    continue  # of one that has just changed its leader; the next poll asks again
                if epoch is not None and epoch >= 0:
                    yield (partition.topic, partition.partition), epoch

    def _answer(self, answer: "Future[T]") -> T:
        try:
            return answer.result(self._timeout_s + _ANSWERED_AFTER_S)
        except TimeoutError as e:
            raise ClusterUnreachableError(
                f"{self._servers}: no answer within {self._timeout_s:g} s"
            ) from e


def _led(topics: Mapping[str, TopicView | NoTopic], broker_id: int) -> Iterator[_Place]:
    for name, topic in topics.items():
        if isinstance(topic, TopicView):
            for number, partition in topic.partitions.items():
                if partition.leader == broker_id:
                    yield name, number


def topic_view(description: TopicDescription) -> TopicView | NoTopic:
    """What is described; FAILED where it has no id, as from a broker of before there were ids:
    that is not another id."""
    topic_id = _uuid(description.topic_id)
    if topic_id == ZERO_UUID:
        return NoTopic.FAILED
    return TopicView(topic_id, {p.id: _partition(p) for p in description.partitions})


def _partition(info: TopicPartitionInfo) -> PartitionView:
    leader: int = getattr(info.leader, "id", NO_LEADER)  # declared as if there always were one
    replicas = frozenset(node.id for node in info.replicas)
    return PartitionView(None if leader == NO_LEADER else leader, None, replicas)


def no_topic(error: KafkaException) -> NoTopic:
    """What an error says of the topic.

    Raises:
        KafkaException: this one, where it is not of the topic but of the client: no answer.
    """
    code = _error_of(error).code()
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return NoTopic.UNKNOWN
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NoTopic.NOT_AUTHORIZED
    if code < 0:
        raise error
    return NoTopic.FAILED


def _uuid(topic_id: Uuid) -> UUID:
    """Its text is that of Kafka, but for two characters of the alphabet."""
    return uuid_from_text(str(topic_id).translate(_URL_SAFE), "topic_id")


def _error_of(error: KafkaException) -> KafkaError:
    """The client library raises every error with one of these."""
    (told,) = error.args
    assert isinstance(told, KafkaError)
    return told
