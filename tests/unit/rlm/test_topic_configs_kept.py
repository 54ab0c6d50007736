"""Settings read once for all partitions of a topic."""

from typing import Any
from uuid import UUID

from services.api.topic_config import StoredTopicConfig
from services.rlm.topic_configs import TopicConfigs

A, B = UUID(int=1), UUID(int=2)


class Asked:
    """What of an RLMM is asked here."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        self.ids.append(topic_id)
        return StoredTopicConfig(topic_id, "t", revision=len(self.ids))


def test_settings_are_read_again_when_they_are_too_old_or_forgotten() -> None:
    now_s = [0.0]
    rlmm: Any = Asked()
    configs = TopicConfigs(rlmm, 30.0, lambda: now_s[0])
    for now_s[0] in (0.0, 10.0, 29.0):
        assert configs.of(A).revision == 1
    assert configs.of(B).revision == 2
    now_s[0] = 30.0
    assert configs.of(A).revision == 3
    assert configs.of(B).revision == 2
    configs.forget(B)
    assert configs.of(B).revision == 4
    configs.forget(B)
    configs.forget(B)
