"""Read and set topics' retention at the brokers, and delete the local records of one broker."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any

from kafka.errors import for_code
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import OffsetFetchRequest

from services.api.ids import TopicIdPartition
from services.common.batches import batches
from services.common.failpoints import failpoint
from services.rlm.kafka_admin.client import (
    MAX_PARTITIONS_A_REQUEST,
    BrokerConnection,
    KafkaAdmin,
    cluster_view,
    metadata_of,
)
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError, ClusterView

_TOPIC_RESOURCE = 2
_OWN_VALUE = 1
"""The source of a setting that the topic itself has, and not its broker or Kafka."""
_SET, _DELETE = 0, 1
_NO_ERROR, _REQUEST_TIMED_OUT = 0, 7
_DELETION_TIMEOUT_MS = 5_000
"""Less than a connection waits for its answer."""

_ONE_GROUP_A_REQUEST = 7
"""The last version of OffsetFetch that is of one group; brokers from 2.5 to 4.x have it."""
_NO_OFFSET = -1

RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
_KEYS = (RETENTION_MS, RETENTION_BYTES, "remote.storage.enable", "cleanup.policy")
_MS_OF_UNIT = {"hours": 3_600_000, "minutes": 60_000}
_Topic = DeleteRecordsRequest.DeleteRecordsTopic
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


class Right(IntEnum):
    """A right at a topic, by its number in Kafka (AclOperation)."""

    DELETE = 6
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """A topic's settings at the brokers that decide what they delete.

    Attributes:
        ms, size_bytes: in force, of the topic or its broker; -1: no limit.
        own_ms, own_bytes: the topic's own; None if it has none.
        default_ms, default_bytes: of the broker, in force without the topic's own.
        is_tiered: remote.storage.enable.
    """

    ms: int
    size_bytes: int
    own_ms: int | None
    own_bytes: int | None
    default_ms: int
    default_bytes: int
    is_tiered: bool
    cleanup_policy: str

    @property
    def deletes(self) -> bool:
        return (self.ms, self.size_bytes) != (-1, -1)


class Refused(Exception):
    """The error if a broker refuses a request about a topic; the message has its reason.

    Attributes:
        is_perhaps_done: it ran out of time, and the broker may do it all the same.
    """

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.is_perhaps_done = code == _REQUEST_TIMED_OUT


@dataclass(frozen=True, slots=True)
class Cut:
    """The records to delete at the broker that leads a partition under this epoch."""

    leader_epoch: int
    before_offset: int


class LocalRecordsAdmin:
    """Change what the brokers of one cluster keep. Thread-safe.

    Args:
        admin: makes the connections.
        cluster_id: of the cluster; answers of another one are refused.
    """

    def __init__(self, admin: KafkaAdmin, cluster_id: str) -> None:
        self.brokers = admin
        self._cluster_id = cluster_id

    def view(self, topics: Sequence[str]) -> ClusterView:
        """Request topics as ClusterAdmin.view."""
        return self._ours(self.brokers.view(topics))

    def _ours(self, view: ClusterView) -> ClusterView:
        if view.cluster_id != self._cluster_id:
            raise ClusterUnreachableError(
                f"the brokers are of cluster {view.cluster_id}, not {self._cluster_id}"
            )
        return view

    def retentions(
        self, broker_id: int, topics: Sequence[str]
    ) -> dict[str, TopicRetention | Refused]:
        """Read topics' retention from one broker of the last view.

        Raises:
            ClusterUnreachableError: if the broker does not answer.
        """
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(_KEYS)
            )
            for name in topics
        ]
        request = DescribeConfigsRequest(
            resources=resources, include_synonyms=True, include_documentation=False
        )
        with self.brokers.connected_to(broker_id) as broker:
            results = broker.call(request).results
        return {result.resource_name: _retention_of(result) for result in results}

    def missing_rights(self, broker_id: int, topic: str) -> list[Right]:
        """List the rights that RLM's user lacks to look after the topic."""
        with self.brokers.connected_to(broker_id) as broker:
            answer = broker.call(metadata_of([topic], with_rights=True))
        (described,) = answer.topics
        granted = described.authorized_operations or ()
        return [right for right in Right if right not in granted]

    def alter_retention(
        self, broker_id: int, topic: str, values: Mapping[str, int | None], *, only_check: bool
    ) -> None:
        """Set the topic's own retention; None removes a value, so that the broker's is in force.

        Raises:
            Refused: if the broker refuses it; nothing changed.
            ClusterUnreachableError: if the broker does not answer; it may have changed.
        """
        configs = [
            _Resource.AlterableConfig(
                name=name,
                config_operation=_DELETE if value is None else _SET,
                value=None if value is None else str(value),
            )
            for name, value in values.items()
        ]
        resource = _Resource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=only_check)
        with self.brokers.connected_to(broker_id) as broker:
            (result,) = broker.call(request).responses
        if result.error_code != _NO_ERROR:
            raise _refused(result.error_code, result.error_message)

    def committed_offsets(
        self, topic: str, partitions: Sequence[int]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield group, partition and committed offset of all groups that the brokers show."""
        for broker_id in self.brokers.broker_ids:
            with self.brokers.connected_to(broker_id) as broker:
                for listed in broker.call(ListGroupsRequest()).groups:
                    yield from _committed(broker, listed.group_id, topic, partitions)

    def delete_records(
        self,
        broker_id: int,
        cuts: Mapping[TopicIdPartition, Cut],
        holds_now: Callable[[TopicIdPartition], bool],
    ) -> dict[TopicIdPartition, int | Refused]:
        """Delete records of one broker's own logs; return where its logs begin now, or why not.

        The request is sent to this broker only and never to another leader. On the same connection
        the broker first answers which topics and leader epochs it has: a partition that it does not
        lead under the epoch of its cut is left out.

        Args:
            holds_now: is called for each partition directly before the request; False leaves it
                out.

        Raises:
            ClusterUnreachableError: if the broker does not answer; it may have deleted them.
        """
        answered: dict[TopicIdPartition, int | Refused] = {}
        with self.brokers.connected_to(broker_id) as broker:
            topics = sorted({name.topic for name in cuts})
            view = self._ours(cluster_view([broker.call(metadata_of(topics))]))
            led = [name for name in sorted(cuts) if _leads(view, broker_id, name, cuts[name])]
            for some in batches(led, MAX_PARTITIONS_A_REQUEST):
                sent = {name: cuts[name] for name in some if holds_now(name)}
                if sent:
                    failpoint("trim.checked")
                    answered |= _deleted(sent, broker.call(_deletion_of(sent)))
        return answered


def _leads(view: ClusterView, broker_id: int, name: TopicIdPartition, cut: Cut) -> bool:
    topic = view.topic(name.topic_id, name.topic)
    found = None if topic is None else topic.partitions.get(name.partition)
    return found is not None and (found.leader, found.leader_epoch) == (broker_id, cut.leader_epoch)


def _deletion_of(cuts: Mapping[TopicIdPartition, Cut]) -> Any:
    topics = [
        _Topic(
            name=topic,
            partitions=[
                _Topic.DeleteRecordsPartition(
                    partition_index=name.partition, offset=cuts[name].before_offset
                )
                for name in some
            ],
        )
        for topic, some in groupby(cuts, lambda name: name.topic)
    ]
    # Followers that are in sync delete as well, before the broker answers.
    return DeleteRecordsRequest(topics=topics, timeout_ms=_DELETION_TIMEOUT_MS)


def _deleted(
    cuts: Mapping[TopicIdPartition, Cut], answer: Any
) -> dict[TopicIdPartition, int | Refused]:
    found = {
        (topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }
    answered: dict[TopicIdPartition, int | Refused] = {}
    for name, cut in cuts.items():
        result = found[name.topic, name.partition]
        if result.error_code == _NO_ERROR:
            # The low watermark is the lowest start of all replicas: one may lag behind.
            answered[name] = cut.before_offset
        else:
            answered[name] = _refused(result.error_code, None)
    return answered


def _retention_of(result: Any) -> TopicRetention | Refused:
    if result.error_code != _NO_ERROR:
        return _refused(result.error_code, result.error_message)
    found = {config.name: config for config in result.configs}
    ms, size_bytes = found[RETENTION_MS], found[RETENTION_BYTES]
    tiered = found.get("remote.storage.enable")  # Brokers before 3.0 do not have it.
    return TopicRetention(
        int(ms.value),
        int(size_bytes.value),
        _own(ms),
        _own(size_bytes),
        _default(ms),
        _default(size_bytes),
        tiered is not None and tiered.value == "true",
        found["cleanup.policy"].value or "",
    )


def _own(config: Any) -> int | None:
    return int(config.value) if config.config_source == _OWN_VALUE else None


def _default(config: Any) -> int:
    """Read what is in force without the topic's own value: log.retention.hours, for example."""
    for synonym in config.synonyms:
        if synonym.source != _OWN_VALUE and synonym.value is not None:
            return int(synonym.value) * _MS_OF_UNIT.get(synonym.name.rpartition(".")[2], 1)
    return int(config.value)


def _committed(
    broker: BrokerConnection, group: str, topic: str, partitions: Sequence[int]
) -> Iterator[tuple[str, int, int]]:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopic(
        name=topic, partition_indexes=list(partitions)
    )
    request = OffsetFetchRequest(
        group_id=group, topics=[wanted], require_stable=False, max_version=_ONE_GROUP_A_REQUEST
    )
    for found in broker.call(request).topics:
        for each in found.partitions:
            if each.error_code == _NO_ERROR and each.committed_offset != _NO_OFFSET:
                yield group, each.partition_index, each.committed_offset


def _refused(code: int, message: str | None) -> Refused:
    name = for_code(code).__name__.removesuffix("Error")
    return Refused(f"{name}: {message}" if message else name, code)
