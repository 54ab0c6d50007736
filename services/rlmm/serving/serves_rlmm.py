"""What every part of the servicer works on."""

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.validation import within
from services.rpc.converters.shared import topic_id_partition_from_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb


class ServesRlmm(pb_grpc.RemoteLogMetadataManagerServicer):
    """A part of the servicer of any RemoteLogMetadataManager."""

    def __init__(self, manager: RemoteLogMetadataManager) -> None:
        self._manager = manager


def partition_of(message: segment_pb.TopicIdPartition) -> TopicIdPartition:
    """Of a request's field topic_id_partition."""
    with within("topic_id_partition"):
        return topic_id_partition_from_proto(message)
