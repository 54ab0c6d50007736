"""RLMM: who leads a partition, what its leader reports, and its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partition_state import PartitionReport, PartitionState
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.validation import require_int32

MAX_REPORTS = 100

MAX_CLUSTER_ID_LENGTH = 255
"""In characters; those that Kafka makes have 22."""


MAX_REPORTED_EPOCHS = 50_000
"""Of all reports of one call together: both messages stay well below 4 MiB."""


@dataclass(frozen=True, slots=True)
class PartitionLeadership:
    """A partition and the leader epoch of its present leader; None where the caller has none."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


ReportOutcome = AtRevision[PartitionState] | RemoteStorageError


class PartitionChanges(Protocol):
    """What changes partitions; a part of RemoteLogMetadataManager, which says what holds."""

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        """Tell of leadership; idempotent. Makes partitions known and raises the highest broker
        leader epoch of each where one is given; a lower one changes nothing.

        Args:
            cluster_id: Kafka's, of the broker's cluster; None: not told. Noted of the topics of
                which none is known; of the others another one changes nothing.

        Raises:
            InvalidRequestError: a topic id under another name; cluster_id is empty, or longer than
                MAX_CLUSTER_ID_LENGTH.
        """
        ...

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """The broker no longer has these replicas. Idempotent; touches no metadata."""
        ...

    def report_partition_state(self, reports: Sequence[PartitionReport]) -> list[ReportOutcome]:
        """Take up to MAX_REPORTS reports of leaders, with MAX_REPORTED_EPOCHS together; answers
        the state that each gives its partition, in order. An error is that item's and stops no
        other.

        Makes partitions known. A report joins the broker's leader epochs to the stored lineage
        (Lineage.merged_with_report, then from_offset of the log start), and raises the highest
        broker leader epoch. The partition's revision moves only where one of these does, or where
        the partition becomes known: figures are not events. Idempotent: the same report again is
        the same report, seen again now. When the call itself fails, some reports may be taken and
        others not.

        Raises:
            InvalidRequestError: no report, or too many.

        Items' errors:
            InvalidRequestError: a topic id under another name; too many leader epochs.
            FencedLeaderEpochError: its leader epoch is below the partition's highest.
            ConcurrentUpdateError: the stored report of that leader epoch has a larger number, or
                this number with another content; the message names the number.
            InvalidStateTransitionError: the partition was deleted.
        """
        ...

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Raise the tier's log start to at least `log_start_offset`; never lowers it, so that an
        offset at or below it is a repeat. The lineage is cut to it (Lineage.from_offset).

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidRangeError: above both the reported high watermark and the end of what has
                finished.
            FencedLeaderEpochError: an epoch below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: the topic is on hold; or the context's retention owner is not
                the topic's, or a sweep that is paused.
        """
        ...

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a partition's deletion to its next state: MARKED, STARTED, FINISHED, in this order.

        A state again, and MARKED in any later state, is a repeat. From MARKED on no segment may be
        added; a copy under way may finish. After FINISHED the partition is not known.

        Raises:
            RemoteResourceNotFoundError: the partition is not known (STARTED, FINISHED).
            InvalidStateTransitionError: out of order; FINISHED while segments remain.
            FencedLeaderEpochError: MARKED under an epoch below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: STARTED of a topic on hold; MARKED is not refused by it.
        """
        ...
