"""RemoteLogMetadataManager over gRPC."""

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rpc.clients.rlmm.partition_changes import PartitionChangesClient
from services.rpc.clients.rlmm.partition_queries import PartitionQueriesClient
from services.rpc.clients.rlmm.segment_changes import SegmentChangesClient
from services.rpc.clients.rlmm.segment_queries import SegmentQueriesClient
from services.rpc.clients.rlmm.topic_configs import TopicConfigsClient


class RemoteLogMetadataManagerClient(
    SegmentChangesClient,
    SegmentQueriesClient,
    PartitionChangesClient,
    PartitionQueriesClient,
    TopicConfigsClient,
):
    """Satisfies services.api.remote_log_metadata_manager.RemoteLogMetadataManager; thread-safe."""


def _conforms(client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManager:
    return client
