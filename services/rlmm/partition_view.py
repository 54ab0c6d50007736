"""A locked partition, as those who judge and write changes see it."""

from typing import Protocol
from uuid import UUID


class PartitionView(Protocol):
    """The row itself, which the session writes; or one of a batch, which writes many at once."""

    topic_id: UUID
    partition: int
    revision: int
    highest_broker_leader_epoch: int | None
    delete_state: str | None
