"""What is set for a topic, remote_log_metadata_manager.proto."""

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.topic_config import StoredTopicConfig
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def topic_config_to_proto(stored: StoredTopicConfig) -> pb.TopicConfig:
    return pb.TopicConfig(
        topic_id=uuid_to_text(stored.topic_id),
        topic=stored.topic,
        entries=stored.entries,
        revision=stored.revision,
    )


def topic_config_from_proto(message: pb.TopicConfig) -> StoredTopicConfig:
    return StoredTopicConfig(
        topic_id=uuid_from_text(message.topic_id, "topic_id"),
        topic=message.topic,
        entries=dict(message.entries),
        revision=message.revision,
    )
