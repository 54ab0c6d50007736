"""Run a consumer that reads one offset repeatedly, and record the times."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import Self

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient

_READ_BYTES = 64 * 1024
_AWAY = FetchError.TIERED_STORAGE_NOT_AVAILABLE


@dataclass(frozen=True)
class Read:
    """One read.

    Attributes:
        at_s: when it began, monotonic.
        took_s: the time until its response.
        answer: a FetchError's name, or the class of the error if RLM did not respond.
    """

    at_s: float
    took_s: float
    answer: str

    @property
    def is_good(self) -> bool:
        return self.answer == FetchError.NONE.name


class ReadLoop:
    """Reads inside `with`, over a channel of its own."""

    def __init__(
        self, address: str, name: TopicIdPartition, offset: int, interval_s: float
    ) -> None:
        self._address = address
        self._request = FetchRequest((FetchPartition(name, offset, _READ_BYTES),), _READ_BYTES)
        self._interval_s = interval_s
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.reads: list[Read] = []

    def between(self, begin_s: float, end_s: float) -> list[Read]:
        """Return the reads that began and ended in this time."""
        return [r for r in self.reads if begin_s <= r.at_s and r.at_s + r.took_s <= end_s]

    def is_well(self) -> bool:
        """Return whether the latest read returned records."""
        return bool(self.reads) and self.reads[-1].is_good

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with open_channel(self._address, PLAINTEXT) as channel:
            manager = RemoteLogManagerClient(channel, self._address)
            while not self._stopping.wait(self._interval_s):
                at_s = time.monotonic()
                try:
                    first = next(iter(manager.fetch(self._request)))
                    # Asked to come back, because the store has not answered in time.
                    is_late = not first.record_batches and first.throttle_time_ms > 0
                    answer = _AWAY.name if is_late else first.error.name
                except RemoteStorageError as e:
                    answer = type(e).__name__
                self.reads.append(Read(at_s, time.monotonic() - at_s, answer))


def took_at_most_s(reads: Sequence[Read], share: float) -> float:
    """Return the time of the slowest of the fastest `share` of the reads."""
    ordered = sorted(read.took_s for read in reads)
    return ordered[math.ceil(share * len(ordered)) - 1]


def p99_s(reads: Sequence[Read]) -> float:
    """Return the 99th percentile of the times."""
    return took_at_most_s(reads, 0.99)
