"""The contract of RLMM, which knows every copied segment (KIP-405: RemoteLogMetadataManager).

The in-process manager (services/rlmm) and the gRPC client (services/rpc) both satisfy it; one
suite, tests/contract, runs over both.
"""

from typing import Protocol

from services.api.anomalies import Anomalies
from services.api.copy_leases import CopyLeases
from services.api.partition_changes import PartitionChanges
from services.api.partition_queries import PartitionQueries
from services.api.partition_repairs import PartitionRepairs
from services.api.segment_changes import SegmentChanges
from services.api.segment_imports import SegmentImports
from services.api.segment_queries import SegmentQueries
from services.api.topic_configs import TopicConfigs


class RemoteLogMetadataManager(
    SegmentChanges,
    CopyLeases,
    SegmentQueries,
    SegmentImports,
    PartitionChanges,
    PartitionQueries,
    PartitionRepairs,
    TopicConfigs,
    Anomalies,
    Protocol,
):
    """Knows which segments exist. Thread-safe and strongly consistent: a mutation's return means
    committed, and every later read by anyone sees it.

    Which query sees which state (Kafka: RemoteLogMetadataCache):

        state                    by epoch and offset   highest offset   lists, size
        COPY_SEGMENT_STARTED     no                    no               yes
        COPY_SEGMENT_FINISHED    yes                   yes              yes
        DELETE_SEGMENT_STARTED   no                    stays            yes
        DELETE_SEGMENT_FINISHED  no                    stays            no

    A partition is known from on_partition_leadership_changes, add or DELETE_PARTITION_MARKED on,
    until DELETE_PARTITION_FINISHED. Every read of one that is not known raises
    RemoteResourceNotFoundError. Every method raises RetriableRemoteStorageError where the database
    cannot be reached.

    A topic id has one name for ever: another name under the same id is an InvalidRequestError.
    """
