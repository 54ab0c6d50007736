"""What becomes of a topic's part of the tier when its settings disable its tiering, for people."""

from services.api.topic_config import TopicConfig
from services.rlm.lifecycle.tier_deletion import kept_because


def disabled_text(config: TopicConfig) -> str | None:
    """None: these settings alone delete nothing of it."""
    if config.remote_storage_enable is not False or kept_because(config):
        return None
    return (
        "remote.storage.enable=false, remote.log.delete.on.disable=true: its leader's RLM deletes "
        "all of it, by these settings or when StopPartitions says so (docs/retention.md), whatever "
        "retention says; before that remote.storage.enable=true takes it back, sediment.hold keeps "
        "it"
    )
