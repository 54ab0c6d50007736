"""RLMM on the wire: what is set for a topic."""

import grpc

from services.api.ids import uuid_from_text
from services.api.validation import within
from services.rlmm.serving.serves_rlmm import ServesRlmm
from services.rpc.converters.shared import context_from_proto
from services.rpc.converters.topic_config import topic_config_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class TopicConfigsServicer(ServesRlmm):
    """Serves services.api.topic_configs.TopicConfigs."""

    def GetTopicConfig(
        self, request: pb.GetTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.GetTopicConfigResponse:
        stored = self._manager.topic_config(uuid_from_text(request.topic_id, "topic_id"))
        return pb.GetTopicConfigResponse(config=topic_config_to_proto(stored))

    def PutTopicConfig(
        self, request: pb.PutTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.PutTopicConfigResponse:
        with within("context"):
            why = context_from_proto(request.context)
        stored = self._manager.put_topic_config(
            uuid_from_text(request.topic_id, "topic_id"),
            dict(request.entries),
            request.expected_revision if request.HasField("expected_revision") else None,
            why,
        )
        return pb.PutTopicConfigResponse(config=topic_config_to_proto(stored))
