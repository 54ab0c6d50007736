"""RemoteLogMetadataManager on the wire: convert, one call, reply."""

from services.rlmm.serving.anomalies import AnomaliesServicer
from services.rlmm.serving.copy_leases import CopyLeasesServicer
from services.rlmm.serving.partition_changes import PartitionChangesServicer
from services.rlmm.serving.partition_queries import PartitionQueriesServicer
from services.rlmm.serving.partition_repairs import PartitionRepairsServicer
from services.rlmm.serving.segment_changes import SegmentChangesServicer
from services.rlmm.serving.segment_imports import SegmentImportsServicer
from services.rlmm.serving.segment_queries import SegmentQueriesServicer
from services.rlmm.serving.topic_configs import TopicConfigsServicer


class RemoteLogMetadataManagerServicer(
    SegmentChangesServicer,
    CopyLeasesServicer,
    SegmentQueriesServicer,
    SegmentImportsServicer,
    PartitionChangesServicer,
    PartitionQueriesServicer,
    PartitionRepairsServicer,
    TopicConfigsServicer,
    AnomaliesServicer,
):
    """Serves any RemoteLogMetadataManager."""
