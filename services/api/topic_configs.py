"""RLMM: what is set for a topic."""

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.topic_config import StoredTopicConfig


class TopicConfigs(Protocol):
    """What is set for topics; a part of RemoteLogMetadataManager, which says what holds for all."""

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        """What is set for a topic; of a known topic for which nothing was ever put, revision 0.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
        """
        ...

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        """Replace all that is set for a topic; answers what is stored then.

        Strong: when it returns, nothing that the new settings forbid begins any more. Idempotent:
        the entries that are stored already change nothing.

        Args:
            entries: Kafka's names and texts, services.api.topic_config.
            expected_revision: of the topic's settings before; None: whatever they are.
            context: of its fields only `reason` may be set.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
            InvalidRequestError: an unknown name, a bad value, a contradiction; names the setting.
            ConcurrentUpdateError: the settings have another revision.
        """
        ...
