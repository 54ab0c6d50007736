"""Reads records that were acknowledged, all the while, wherever they lie by then."""

import random
from collections import Counter
from collections.abc import Callable, Mapping

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RemoteLogManager,
)
from tests.harness.eventually import Background
from tests.harness.kafka_client import Record
from tests.kafka.read_log import records_of

Choose = Callable[[random.Random], tuple[int, Record] | None]
AWAY = (FetchError.TIERED_STORAGE_NOT_AVAILABLE, FetchError.NOT_LEADER_OR_FOLLOWER)
_PAUSE_S = 0.02
_SHOWN = 5


class ConstantReader(Background):
    """Reads while it is entered, with an RLM that may be away, but may not say anything wrong.

    Attributes:
        served: records that came as they were sent, by where they were read.
        away: reads that RLM was not there for, or the tier.
        early: reads of what the broker had not written down yet as settled.
        failures: a sentence for each other answer, the first few.
    """

    def __init__(
        self, rlm: RemoteLogManager, choices: Mapping[TopicIdPartition, Choose], seed: int
    ) -> None:
        super().__init__()
        self._rlm = rlm
        self._choices = choices
        self._random = random.Random(seed)
        self.served: Counter[str] = Counter()
        self.away = self.early = 0
        self.failures: list[str] = []

    def run(self) -> None:
        names = list(self._choices)
        while not self.wait(_PAUSE_S) and len(self.failures) < _SHOWN:
            name = self._random.choice(names)
            chosen = self._choices[name](self._random)
            if chosen is not None:
                self._read(name, *chosen)

    def _read(self, name: TopicIdPartition, offset: int, expected: Record) -> None:
        try:
            # The first batch comes whole, however small the limit is.
            request = FetchRequest((FetchPartition(name, offset, 1),), 1)
            parts = list(self._rlm.fetch(request))
        except RemoteStorageError:
            self.away += 1
            return
        if parts[0].error in AWAY:
            self.away += 1
            return
        if parts[0].error is not FetchError.NONE:
            said = f"{parts[0].error.value}: {parts[0].error_message}"
            self.failures.append(f"{name.topic} at {offset}: {said}")
            return
        data = b"".join(part.record_batches for part in parts)
        if not data and parts[0].throttle_time_ms:
            self.away += 1
            return
        if not data and offset >= parts[0].high_watermark:
            self.early += 1
            return
        if dict(records_of(data)).get(offset) != expected:
            self.failures.append(f"{name.topic} at {offset}: is not as it was sent")
            return
        source = parts[0].source
        self.served[source.value if source else "nowhere"] += 1
