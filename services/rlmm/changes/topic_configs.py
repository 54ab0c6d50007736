"""Store a topic's settings: always the whole set, with one revision for each version."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, current_call
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.topic_config import StoredTopicConfig, check_change, topic_config
from services.rlmm.changes.locked_partitions import lock_all_of_topic
from services.rlmm.database.rows import AnyRow
from services.rlmm.database.tables import TopicConfigEventRow, TopicRow


def read(connection: Connection, topic_id: UUID) -> StoredTopicConfig:
    """Read the topic's settings; see RemoteLogMetadataManager.topic_config.

    The request has no name of the topic: the stored one decides whether the caller may read it.
    """
    columns = TopicRow.__table__.columns
    row = connection.execute(select(*columns).where(TopicRow.topic_id == topic_id)).one_or_none()
    if row is None:
        raise _unknown_topic(topic_id)
    current_call().require_topic(row.name)
    return _stored(row)


def put(
    session: Session,
    topic_id: UUID,
    entries: Mapping[str, str],
    expected_revision: int | None,
    context: MutationContext,
) -> StoredTopicConfig:
    """Replace the topic's settings; see RemoteLogMetadataManager.put_topic_config.

    Every partition of the topic is locked. When this returns, each change that was checked against
    the old settings has committed, and each later change reads the new settings. The topic's own
    lock comes first: a new partition waits for it in its foreign key.
    """
    topic = session.get(TopicRow, topic_id, with_for_update=True)
    if topic is None:
        raise _unknown_topic(topic_id)
    current_call().require_topic(topic.name)
    if topic.config == dict(entries):
        return _stored(topic)
    if expected_revision not in (None, topic.config_revision):
        raise ConcurrentUpdateError(
            f"expected_revision: the settings of topic {topic.name} have revision "
            f"{topic.config_revision}, not {expected_revision}; read them again"
        )
    check_change(topic_config(topic.config), topic_config(entries))
    lock_all_of_topic(session, topic_id)
    topic.config = dict(entries)
    topic.config_revision += 1
    call = current_call()
    version = TopicConfigEventRow(
        topic_id=topic_id,
        revision=topic.config_revision,
        config=topic.config,
        actor=call.actor,
        call_id=call.request_id,
        reason=context.reason,
    )
    session.add(version)
    return _stored(topic)


def _stored(row: TopicRow | AnyRow) -> StoredTopicConfig:
    return StoredTopicConfig(row.topic_id, row.name, row.config, row.config_revision)


def _unknown_topic(topic_id: UUID) -> RemoteResourceNotFoundError:
    return RemoteResourceNotFoundError(f"topic id {uuid_to_text(topic_id)} is not known")
