"""RemoteLogMetadataManager on the wire: convert, one call, reply."""

from services.rlmm.not_served_servicer import NotServed
from services.rlmm.serving.partition_changes import PartitionChangesServicer
from services.rlmm.serving.partition_queries import PartitionQueriesServicer
from services.rlmm.serving.segment_changes import SegmentChangesServicer
from services.rlmm.serving.segment_queries import SegmentQueriesServicer
from services.rlmm.serving.topic_configs import TopicConfigsServicer


class RemoteLogMetadataManagerServicer(
    SegmentChangesServicer,
    SegmentQueriesServicer,
    PartitionChangesServicer,
    PartitionQueriesServicer,
    TopicConfigsServicer,
    NotServed,
):
    """Serves any RemoteLogMetadataManager."""
