"""What may refuse a change that the state machine allows: expectations and the topic's settings.

Whoever asks holds the partition's lock. The settings are read in a statement of their own, after
the lock: services.rlmm.topic_configs locks every partition of the topic before it changes them, so
that they hold until this transaction ends, and what was read once need not be read again.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from services.api.calls import MutationContext
from services.api.errors import ConcurrentUpdateError, DeletionRefusedError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.topic_config import RetentionOwner, TopicConfig, topic_config
from services.rlmm.partition_view import PartitionView
from services.rlmm.tables import PartitionRow, TopicRow

_BEING_REMOVED = (
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED.value,
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED.value,
)
"""Nobody's retention any more. A mark alone may be taken back, and changes nothing."""


class Topic(Protocol):
    """The row itself, or what a statement read of it."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Mapping[str, str]: ...
    @property
    def config_revision(self) -> int: ...


def topic_of(session: Session, partition: PartitionView) -> TopicRow:
    """The topic of a locked partition; no second statement while the caller keeps the row."""
    return session.get_one(TopicRow, partition.topic_id)


def require_expected(session: Session, partition: PartitionView, context: MutationContext) -> None:
    """Refuse a change that was decided on another revision than the present one.

    Raises:
        ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
    """
    check_expected(
        partition.partition, partition.revision, lambda: topic_of(session, partition), context
    )


def check_expected(
    partition: int, revision: int, topic_of: Callable[[], Topic], context: MutationContext
) -> None:
    """require_expected, of a partition that has this revision and whose topic can be read."""
    if context.expected_revision not in (None, revision):
        raise ConcurrentUpdateError(
            f"context.expected_revision: partition {partition} of topic "
            f"{topic_of().name} has revision {revision}, "
            f"not {context.expected_revision}; read it again"
        )
    if context.expected_config_revision is None:
        return
    topic = topic_of()
    if context.expected_config_revision != topic.config_revision:
        raise ConcurrentUpdateError(
            f"context.expected_config_revision: the settings of topic {topic.name} have revision "
            f"{topic.config_revision}, not {context.expected_config_revision}; read them again"
        )


def require_may_delete(
    session: Session, partition: PartitionView, context: MutationContext
) -> None:
    """Refuse to delete what has been copied where the topic's settings forbid it.

    Raises:
        DeletionRefusedError: the topic is on hold; or the partition's removal has not begun, and
            the context's retention owner is not the topic's or is a sweep that is paused.
    """
    topic = topic_of(session, partition)
    caller = context.retention_owner
    check_may_delete(topic.name, topic_config(topic.config), partition.delete_state, caller)


def require_owner_may_delete(
    connection: Connection, tp: TopicIdPartition, owner: RetentionOwner
) -> None:
    """require_may_delete before anything is to be deleted; of a partition that is not known,
    nothing.

    Raises:
        DeletionRefusedError: as require_may_delete.
    """
    found = connection.execute(
        select(TopicRow.name, TopicRow.config, PartitionRow.delete_state)
        .join(PartitionRow, PartitionRow.topic_id == TopicRow.topic_id)
        .where(PartitionRow.topic_id == tp.topic_id, PartitionRow.partition == tp.partition)
    ).one_or_none()
    if found is not None:
        check_may_delete(found.name, topic_config(found.config), found.delete_state, owner)


def require_no_hold(session: Session, partition: PartitionView) -> None:
    """Raise DeletionRefusedError where the topic is on hold."""
    topic = topic_of(session, partition)
    _check_no_hold(topic.name, topic_config(topic.config))


def check_may_delete(
    topic: str, config: TopicConfig, delete_state: str | None, caller: RetentionOwner | None
) -> None:
    """require_may_delete, where the settings are at hand; a caller of None counts as the broker."""
    _check_no_hold(topic, config)
    if delete_state in _BEING_REMOVED:
        return
    caller = caller or RetentionOwner.BROKER
    if config.retention_owner not in (None, caller):
        raise DeletionRefusedError(
            f"topic {topic}: sediment.retention.owner is {config.retention_owner.value}, "
            f"not {caller.value}"
        )
    if caller is RetentionOwner.SWEEP and config.sweep_paused:
        raise DeletionRefusedError(f"topic {topic}: sediment.sweep.paused is set")


def _check_no_hold(topic: str, config: TopicConfig) -> None:
    if config.hold:
        raise DeletionRefusedError(f"topic {topic}: sediment.hold is set")
