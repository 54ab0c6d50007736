"""Telling RLMM who leads a partition: once for each role and leader epoch, before anything else."""

from dataclasses import replace

from services.api.partition_changes import PartitionLeadership
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlm.leadership import Leadership
from services.rlm.partition import Partition


def announce(
    rlmm: RemoteLogMetadataManager,
    partition: Partition,
    leadership: Leadership,
    epoch: int | None,
    broker_id: int,
) -> None:
    """Tell of a role under `epoch` unless it was told. Makes the partition known, of its cluster,
    and fences leaders of lower epochs.

    Raises:
        RemoteStorageError: RLMM did not take it.
    """
    told = replace(leadership, leader_epoch=epoch)
    if partition.announced == told:
        return
    this = [PartitionLeadership(partition.topic_id_partition, epoch)]
    leaders, followers = (this, []) if leadership.is_leader else ([], this)
    rlmm.on_partition_leadership_changes(leaders, followers, broker_id, partition.cluster_id)
    partition.announced = told
