"""What a broker leads, follows and gives up, remote_log_manager.proto."""

from services.api.errors import InvalidRequestError
from services.api.partition_lifecycle import (
    LeadershipChange,
    LeadershipDelta,
    PartitionStops,
    StopPartition,
)
from services.api.validation import within
from services.rpc.converters.enums import partition_role, stop_reason
from services.rpc.converters.shared import (
    items_from_proto,
    require_set,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb


def delta_to_proto(delta: LeadershipDelta) -> pb.OnLeadershipChangeRequest:
    """
    Raises:
        InvalidRequestError: a change without a leader epoch, which the wire does not have.
    """
    return pb.OnLeadershipChangeRequest(changes=[_change_to_proto(c) for c in delta.changes])


def _change_to_proto(change: LeadershipChange) -> pb.LeadershipChange:
    if change.leader_epoch is None:
        raise InvalidRequestError("changes.leader_epoch: must be set")
    return pb.LeadershipChange(
        topic_id_partition=topic_id_partition_to_proto(change.topic_id_partition),
        leader_epoch=change.leader_epoch,
        role=partition_role.to_proto(change.role),
    )


def delta_from_proto(message: pb.OnLeadershipChangeRequest) -> LeadershipDelta:
    return LeadershipDelta(items_from_proto(message.changes, "changes", _change_from_proto))


def _change_from_proto(message: pb.LeadershipChange) -> LeadershipChange:
    require_set(message, "topic_id_partition")
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    role = partition_role.from_proto(message.role, "role")
    return LeadershipChange(tp, message.leader_epoch, role)


def stops_to_proto(stops: PartitionStops) -> pb.StopPartitionsRequest:
    return pb.StopPartitionsRequest(
        partitions=[
            pb.StopPartition(
                topic_id_partition=topic_id_partition_to_proto(stop.topic_id_partition),
                leader_epoch=stop.leader_epoch,
                reason=stop_reason.to_proto(stop.reason),
            )
            for stop in stops.partitions
        ]
    )


def stops_from_proto(message: pb.StopPartitionsRequest) -> PartitionStops:
    return PartitionStops(items_from_proto(message.partitions, "partitions", _stop_from_proto))


def _stop_from_proto(message: pb.StopPartition) -> StopPartition:
    require_set(message, "topic_id_partition")
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    leader_epoch = message.leader_epoch if message.HasField("leader_epoch") else None
    return StopPartition(tp, leader_epoch, stop_reason.from_proto(message.reason, "reason"))
