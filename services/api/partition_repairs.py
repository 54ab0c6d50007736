"""RLMM: what puts a partition right by hand, and what was lost for good."""

from typing import Protocol

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.offset_gaps import OffsetGap


class PartitionRepairs(Protocol):
    """What RLM records of losses, and administrators take back; a part of
    RemoteLogMetadataManager, which says what holds."""

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Record offsets that the tier will never have, of one of GAP_KINDS. A range within what
        is recorded is a repeat, and so is one below the log start, or below MAX_GAPS recorded
        gaps; a repeat is neither fenced nor held to expectations. Ranges that overlap or touch
        become one; of more than MAX_GAPS the lowest go.

        What lies in leader epochs after the one that the gap was recorded under (the context's, or
        the partition's highest; of ranges that became one the earliest) is dropped from it when a
        report tells of them: other records are there now.

        No promise that nothing comes: a copy may still finish there, as where a lost disk came
        back. Reads find what is finished, whatever is recorded.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            FencedLeaderEpochError: an epoch below the partition's highest.
            InvalidStateTransitionError: a finished segment, of whatever leader epochs, holds one
                of the offsets.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """
        ...

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Take DELETE_PARTITION_MARKED back: the partition is as it was before, with what has
        finished or was deleted meanwhile. One that is not being deleted is a repeat. Which cluster
        the topic is of is forgotten until it is told again: no RLM that starts later marks it
        because that cluster no longer has it.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidStateTransitionError: it is in DELETE_PARTITION_STARTED.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """
        ...

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Set the partition's highest broker leader epoch, also to a lower one; None: none is
        known. The epoch that it has is a repeat. The context's own broker_leader_epoch is not
        looked at.

        A stored report of a leader epoch above the new one is overruled for good: reads do not show
        it, whatever the epoch becomes later, and the next report takes its place, whatever its
        epoch and number. The lineage stays until then.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """
        ...
