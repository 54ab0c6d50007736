"""RemoteLogMetadataManager over gRPC."""

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rpc.clients.rlmm.anomalies import AnomaliesClient
from services.rpc.clients.rlmm.copy_leases import CopyLeasesClient
from services.rpc.clients.rlmm.partition_changes import PartitionChangesClient
from services.rpc.clients.rlmm.partition_queries import PartitionQueriesClient
from services.rpc.clients.rlmm.partition_repairs import PartitionRepairsClient
from services.rpc.clients.rlmm.segment_changes import SegmentChangesClient
from services.rpc.clients.rlmm.segment_imports import SegmentImportsClient
from services.rpc.clients.rlmm.segment_queries import SegmentQueriesClient
from services.rpc.clients.rlmm.topic_configs import TopicConfigsClient


class RemoteLogMetadataManagerClient(
    SegmentChangesClient,
    CopyLeasesClient,
    SegmentQueriesClient,
    SegmentImportsClient,
    PartitionChangesClient,
    PartitionQueriesClient,
    PartitionRepairsClient,
    TopicConfigsClient,
    AnomaliesClient,
):
    """Satisfies services.api.remote_log_metadata_manager.RemoteLogMetadataManager; thread-safe."""


def _conforms(client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManager:
    return client
