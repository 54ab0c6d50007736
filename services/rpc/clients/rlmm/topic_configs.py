"""RLMM over gRPC: what is set for a topic."""

from collections.abc import Mapping
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.ids import uuid_to_text
from services.api.topic_config import StoredTopicConfig
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import CallsRlmm
from services.rpc.converters.shared import context_to_proto
from services.rpc.converters.topic_config import topic_config_from_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class TopicConfigsClient(CallsRlmm):
    """Satisfies services.api.topic_configs.TopicConfigs."""

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        request = pb.GetTopicConfigRequest(topic_id=uuid_to_text(topic_id))
        reply = call_once(self._stub.GetTopicConfig, request, self._peer)
        return topic_config_from_proto(reply.config)

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        request = pb.PutTopicConfigRequest(
            topic_id=uuid_to_text(topic_id),
            entries=entries,
            expected_revision=expected_revision,
            context=context_to_proto(context),
        )
        reply = call_once(self._stub.PutTopicConfig, request, self._peer)
        return topic_config_from_proto(reply.config)
