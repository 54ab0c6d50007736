"""RLMM on SQL: what is set for a topic."""

from collections.abc import Mapping
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.topic_config import StoredTopicConfig, topic_config
from services.api.validation import require, require_int64
from services.rlmm import topic_configs
from services.rlmm.limits import check_storable
from services.rlmm.managing.database import OnDatabase


class SqlTopicConfigs(OnDatabase):
    """Satisfies services.api.topic_configs.TopicConfigs."""

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        return self._transactions.read(lambda connection: topic_configs.read(connection, topic_id))

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        topic_config(entries)  # refuses what cannot be stored, NUL and long texts among it
        check_storable(context)
        only_reason = context == MutationContext(reason=context.reason)
        require(only_reason, "context", "of its fields only reason may be set here")
        if expected_revision is not None:
            require_int64(expected_revision, "expected_revision")
        return self._transactions.change(
            lambda session: topic_configs.put(
                session, topic_id, entries, expected_revision, context
            )
        )
