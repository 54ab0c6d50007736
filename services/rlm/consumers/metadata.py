"""Make answers to Metadata: the nodes of a cluster of RLMs, and the leaders of partitions."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataResponse

from services.api.ids import TopicIdPartition
from services.rlm.consumers.catalog import Topic
from services.rlm.consumers.cluster import ReaderCluster
from services.rlm.partition_readers import Leader

_NONE, _LEADER_NOT_AVAILABLE, _NO_LEADER, _NO_EPOCH = 0, 5, -1, -1
_MetadataTopic = MetadataResponse.MetadataResponseTopic


def metadata_response(cluster: ReaderCluster, topics: Sequence[Any]) -> Any:
    """Describe topics, of which some may be answers of `no_topic`."""
    served = [p for topic in topics if isinstance(topic, Topic) for p in topic.partitions]
    leaders = cluster.leaders_of(served)
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port)
            for node in cluster.nodes()
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.own.id,
        topics=[_topic(each, leaders) if isinstance(each, Topic) else each for each in topics],
    )


def no_topic(name: str | None, topic_id: UUID, error_code: int) -> Any:
    return _MetadataTopic(
        error_code=error_code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _topic(topic: Topic, leaders: Mapping[TopicIdPartition, Leader]) -> Any:
    partitions = [each.topic_id_partition for each in topic.partitions]
    return _MetadataTopic(
        error_code=_NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=False,
        partitions=[_partition(tp, leaders[tp]) for tp in partitions],
    )


def _partition(tp: TopicIdPartition, leader: Leader) -> Any:
    nodes = [] if leader.node_id is None else [leader.node_id]
    return _MetadataTopic.MetadataResponsePartition(
        error_code=_NONE if nodes else _LEADER_NOT_AVAILABLE,
        partition_index=tp.partition,
        leader_id=_NO_LEADER if leader.node_id is None else leader.node_id,
        leader_epoch=_NO_EPOCH if leader.leader_epoch is None else leader.leader_epoch,
        replica_nodes=nodes,
        isr_nodes=nodes,
        offline_replicas=[],
    )
