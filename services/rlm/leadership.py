"""What a broker is to a partition, and since when."""

from dataclasses import dataclass

from services.api.lineage import Lineage
from services.api.partition_lifecycle import PartitionRole


@dataclass(frozen=True, slots=True)
class Leadership:
    """A role and the leader epoch that it was told with. A pass reads it once: what it began in one
    role it never goes on with under the epoch of another.

    Attributes:
        leader_epoch: None: the latest of the log's own.
    """

    role: PartitionRole
    leader_epoch: int | None

    @property
    def is_leader(self) -> bool:
        return self.role is PartitionRole.LEADER

    def epoch_of(self, lineage: Lineage) -> int | None:
        """The leader epoch to act under; None: the log does not tell."""
        return lineage.latest_epoch if self.leader_epoch is None else self.leader_epoch

    def is_overtaken(self, lineage: Lineage) -> bool:
        """The log has records of a later leader than was told of: what this broker is to the
        partition now it is still to be told."""
        latest = lineage.latest_epoch
        return self.leader_epoch is not None and latest is not None and latest > self.leader_epoch


LED_BY_LOG = Leadership(PartitionRole.LEADER, None)
"""Led here, under the epoch that its log tells."""
