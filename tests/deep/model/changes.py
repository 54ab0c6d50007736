"""What every change of the model goes through."""

from collections.abc import Callable
from dataclasses import replace

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.validation import require
from tests.deep.model.partition import Event, Partition
from tests.deep.model.reads import ReferenceReads


class ReferenceChanges(ReferenceReads):
    """Request ids, and the audit trail."""

    def partition_there(self, tp: TopicIdPartition) -> Partition:
        """For changes that make no partition known; one that was deleted is there still."""
        partition = self.partition(tp)
        if partition.revision == 0:
            raise RemoteResourceNotFoundError(f"partition {tp} is not known")
        require(partition.topic.name == tp.topic, "topic", "the topic id has another name")
        return partition

    def partition_to_make_known(self, tp: TopicIdPartition) -> Partition:
        partition = self.partition(tp)
        require(partition.topic.name == tp.topic, "topic", "the topic id has another name")
        return partition

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        """A request id stands for one change of a partition; a refusal is not remembered, and the
        expectations may differ from call to call."""
        why = replace(
            context, request_id=None, expected_revision=None, expected_config_revision=None
        )
        if context.request_id in partition.requests:
            asked_before, revision = partition.requests[context.request_id]
            same = asked_before == (body, why)
            require(same, "context.request_id", "came with another body before")
            return MutationOutcome(True, revision)
        outcome = change()
        if outcome.applied and context.request_id is not None:
            partition.requests[context.request_id] = ((body, why), outcome.revision)
        return outcome

    def record(self, tp: TopicIdPartition, partition: Partition, event: Event) -> int:
        """The change was made: from now on the partition is there, one revision later."""
        self._topics.setdefault(tp.topic_id, partition.topic)
        self._partitions[tp.topic_id, tp.partition] = partition
        partition.trail.append(event)
        return partition.revision
