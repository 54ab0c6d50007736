"""Define the tests that every RemoteLogMetadataManager must pass, in process and over gRPC.

    class TestMine(RemoteLogMetadataManagerContract):
        @pytest.fixture
        def rlmm(self) -> RemoteLogMetadataManager: ...

The tables are those of Kafka's own tests. Two rows of table F no API can reach:
tests.contract.rlmm.look_ups.UNREACHABLE_ROWS_OF_TABLE_F.
"""

from collections import Counter

from tests.contract.rlmm.additions import AdditionBatches
from tests.contract.rlmm.anomalies import AnomalyLists, ObjectDeletions, ReportedAnomalies
from tests.contract.rlmm.audit_trails import AuditTrails
from tests.contract.rlmm.batches import UpdateBatches
from tests.contract.rlmm.bulk_reads import (
    EarliestOffsets,
    LookupBatches,
    PartitionRevisions,
    SegmentsById,
)
from tests.contract.rlmm.clusters import ClustersOfTopics
from tests.contract.rlmm.copy_leases import (
    CopyLeaseAdditions,
    CopyLeaseGuards,
    CopyLeaseReads,
    CopyLeaseRenewals,
)
from tests.contract.rlmm.deletion_guards import (
    Expectations,
    Holds,
    ListsForDeletion,
    RetentionOwners,
)
from tests.contract.rlmm.export_positions import ExportPositions
from tests.contract.rlmm.gaps import GapRefusals, RecordedGaps
from tests.contract.rlmm.lists import (
    Filters,
    Pages,
    PartitionFilters,
    Partitions,
    Revisions,
    TableB,
    TableC,
    TableE,
)
from tests.contract.rlmm.log_start import LogStartBounds, LogStartGuards, LogStarts
from tests.contract.rlmm.look_ups import (
    EpochsWithoutOffsets,
    LookUpInput,
    OverlapsBeyondKafka,
    TableA,
    TableF,
    TableG,
)
from tests.contract.rlmm.partition_deletion import AfterDeletion, DeletionOrder, TableD
from tests.contract.rlmm.partition_states import ReportedLineage, Reports
from tests.contract.rlmm.rebuilds import Freezes
from tests.contract.rlmm.repairs import LeaderEpochResets, Undeletion
from tests.contract.rlmm.request_ids import RequestIds
from tests.contract.rlmm.scans import Scans
from tests.contract.rlmm.segment_bins import Bins
from tests.contract.rlmm.segment_imports import ImportRefusals, SegmentImports
from tests.contract.rlmm.sweep_runs import SweepRuns
from tests.contract.rlmm.topic_configs import TopicConfigs
from tests.contract.rlmm.transitions import BadSegments, Fences, Leadership, Repeats, TableH
from tests.contract.rlmm.verifications import VerificationLists, Verifications
from tests.contract.rlmm.watches import PartitionWatches


class RemoteLogMetadataManagerContract(
    TableA,
    TableB,
    TableC,
    TableD,
    TableE,
    TableF,
    TableG,
    TableH,
    OverlapsBeyondKafka,
    EpochsWithoutOffsets,
    LookUpInput,
    Filters,
    Revisions,
    Pages,
    Partitions,
    PartitionFilters,
    Repeats,
    BadSegments,
    Fences,
    Leadership,
    ClustersOfTopics,
    DeletionOrder,
    AfterDeletion,
    RequestIds,
    TopicConfigs,
    Holds,
    ListsForDeletion,
    RetentionOwners,
    Expectations,
    Reports,
    ReportedLineage,
    LogStarts,
    LogStartBounds,
    LogStartGuards,
    UpdateBatches,
    AdditionBatches,
    LookupBatches,
    SegmentsById,
    EarliestOffsets,
    CopyLeaseReads,
    CopyLeaseGuards,
    CopyLeaseAdditions,
    CopyLeaseRenewals,
    PartitionRevisions,
    PartitionWatches,
    AuditTrails,
    ExportPositions,
    RecordedGaps,
    SweepRuns,
    GapRefusals,
    Freezes,
    Undeletion,
    LeaderEpochResets,
    ReportedAnomalies,
    AnomalyLists,
    ObjectDeletions,
    Verifications,
    VerificationLists,
    Scans,
    Bins,
    SegmentImports,
    ImportRefusals,
):
    """Collects all parts of the contract."""

    def test_no_part_of_the_contract_hides_a_test_of_another(self) -> None:
        names = Counter(
            name
            for part in RemoteLogMetadataManagerContract.__bases__
            for name in vars(part)
            if name.startswith("test_")
        )
        assert [name for name, count in names.items() if count > 1] == []
