"""The audit trail: what gives a partition its next revision is written down, gap-free."""

from sqlalchemy import update
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, current_call
from services.rlmm.tables import EventRow, PartitionRow

NO_BROKER = -1
"""Broker id of what no broker did."""


def record(
    session: Session, partition: PartitionRow, event: EventRow, context: MutationContext
) -> int:
    """Give the locked partition its next revision, carried by `event`, and answer it.

    The caller says in `event` what changed; who, why and when are filled in here.
    """
    partition.revision += 1
    event.topic_id = partition.topic_id
    event.partition = partition.partition
    event.revision = partition.revision
    call = current_call()
    event.actor = call.actor
    event.call_id = call.request_id
    event.request_id = context.request_id
    event.reason = context.reason
    event.rule_detail = context.rule_detail
    event.plan_id = context.plan_id
    session.add(event)
    return partition.revision


def count_repeat(session: Session, partition: PartitionRow, revision: int) -> None:
    """A further call asked for what the event of `revision` had done."""
    session.execute(
        update(EventRow)
        .where(
            EventRow.topic_id == partition.topic_id,
            EventRow.partition == partition.partition,
            EventRow.revision == revision,
        )
        .values(repeat_count=EventRow.repeat_count + 1)
        .execution_options(synchronize_session=False)
    )
