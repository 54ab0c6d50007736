"""Answer a repeated request id with its first outcome."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.api.validation import require
from services.rlmm.audit import count_repeat
from services.rlmm.gaps import GapRecord
from services.rlmm.partition_states import LogStartRaise
from services.rlmm.repairs import LeaderEpochReset, Undeletion
from services.rlmm.tables import NOW, PartitionRow, RequestOutcomeRow

REMEMBERED_FOR = timedelta(days=1)

Body = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata
    | LogStartRaise
    | GapRecord
    | Undeletion
    | LeaderEpochReset
)


def applied_once(
    session: Session,
    partition: PartitionRow,
    body: Body,
    context: MutationContext,
    apply: Callable[[], MutationOutcome],
    *,
    counts_repeats: bool = True,
) -> MutationOutcome:
    """The remembered outcome of the call's request id, or that of `apply()`.

    A refusal leaves through an exception, which undoes the transaction: it is not remembered.

    Args:
        counts_repeats: a repeat's revision is that of the event which it repeats.

    Raises:
        InvalidRequestError: the request id came with another body before.
    """
    digest = body_digest(body, context)
    revision = _remembered(session, partition, context, digest)
    if revision is not None:
        count_repeat(session, partition, revision)
        return MutationOutcome(applied=True, revision=revision)
    outcome = apply()
    if not outcome.applied:
        if counts_repeats:
            count_repeat(session, partition, outcome.revision)
    elif context.request_id is not None:
        _remember(session, partition, context.request_id, digest, outcome.revision)
    return outcome


def body_digest(body: Body, context: MutationContext) -> bytes:
    """Of all that the caller said but the request id and the expectations.

    Expectations say when a change may be made, not which change it is: who lost the answer and
    reads the present revision before it asks again still asks for the same.
    """
    why = replace(context, request_id=None, expected_revision=None, expected_config_revision=None)
    return hashlib.sha256(repr((body, why)).encode()).digest()


def require_same_body(request_id: str, remembered_digest: bytes, digest: bytes) -> None:
    same = remembered_digest == digest
    require(same, "context.request_id", f"{request_id!r} came with another body before")


def _remembered(
    session: Session, partition: PartitionRow, context: MutationContext, digest: bytes
) -> int | None:
    if context.request_id is None:
        return None
    row = session.execute(
        select(RequestOutcomeRow.body_digest, RequestOutcomeRow.revision).where(
            RequestOutcomeRow.topic_id == partition.topic_id,
            RequestOutcomeRow.partition == partition.partition,
            RequestOutcomeRow.request_id == context.request_id,
            RequestOutcomeRow.at > func.now() - REMEMBERED_FOR,
        )
    ).one_or_none()
    if row is None:
        return None
    require_same_body(context.request_id, row.body_digest, digest)
    revision: int = row.revision
    return revision


def _remember(
    session: Session, partition: PartitionRow, request_id: str, digest: bytes, revision: int
) -> None:
    outcome = insert(RequestOutcomeRow).values(
        topic_id=partition.topic_id,
        partition=partition.partition,
        request_id=request_id,
        body_digest=digest,
        revision=revision,
    )
    # A row with this id can only be one that is older than a day.
    session.execute(
        outcome.on_conflict_do_update(
            index_elements=["topic_id", "partition", "request_id"],
            set_={"body_digest": digest, "revision": revision, "at": NOW},
        )
    )
