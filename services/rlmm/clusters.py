"""Which cluster a topic is of, as whoever announces it says."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Uuid, any_, literal, select, update
from sqlalchemy.orm import Session

from services.api.partition_changes import MAX_CLUSTER_ID_LENGTH
from services.api.validation import require
from services.rlmm.limits import check_text
from services.rlmm.tables import TopicRow


def check_cluster_id(cluster_id: str) -> None:
    """
    Raises:
        InvalidRequestError: no cluster has such an id.
    """
    length, most = len(cluster_id), MAX_CLUSTER_ID_LENGTH
    require(1 <= length <= most, "cluster_id", f"must be 1 to {most} characters, is {length}")
    check_text(cluster_id, "cluster_id")


def note_cluster(session: Session, topic_ids: Iterable[UUID], cluster_id: str) -> None:
    """Note the cluster of those of which none is known. What is known stays: the id of a cluster
    does not change, and whoever acts on it acts for the cluster that told it first.

    The caller has locked the topics' partitions; where nothing is new nothing is locked or written.
    """
    unknown = (
        select(TopicRow.topic_id)
        .where(_among(topic_ids), TopicRow.cluster_id.is_(None))
        .order_by(TopicRow.topic_id)
        .with_for_update(key_share=True)
    )
    found = session.scalars(unknown).all()
    if found:
        _set(session, found, cluster_id)


def forget_cluster(session: Session, topic_id: UUID) -> None:
    """The caller has called partitions.lock_topics before it locked a partition."""
    _set(session, [topic_id], None)


def _set(session: Session, topic_ids: Iterable[UUID], cluster_id: str | None) -> None:
    changed = update(TopicRow).where(_among(topic_ids)).values(cluster_id=cluster_id)
    session.execute(changed, execution_options={"synchronize_session": False})


def _among(topic_ids: Iterable[UUID]) -> ColumnElement[bool]:
    return TopicRow.topic_id == any_(literal(list(topic_ids), ARRAY(Uuid)))
