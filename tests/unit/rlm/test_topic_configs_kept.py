"""Test settings that are read once for all partitions of a topic."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from services.api.topic_config import StoredTopicConfig
from services.rlm.topic_configs import TopicConfigs

A, B = UUID(int=1), UUID(int=2)


class Asked:
    """The part of an RLMM that these tests call."""

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


def test_partitions_that_ask_at_the_same_time_cause_one_request() -> None:
    asked, answered = threading.Event(), threading.Event()

    class Slow(Asked):
        def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
            asked.set()
            assert answered.wait(10.0)
            return super().topic_config(topic_id)

    rlmm: Any = Slow()
    configs = TopicConfigs(rlmm, 30.0)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(configs.of, A)
        assert asked.wait(10.0)
        others = [pool.submit(configs.of, A) for _ in range(3)]
        answered.set()
        assert {each.result(10.0).revision for each in (first, *others)} == {1}
    assert rlmm.ids == [A]
