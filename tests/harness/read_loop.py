"""Read one offset repeatedly, or only what is in the tier, and record the times."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Self
from urllib.request import urlopen

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.kafka_log.log_dir import find_partitions
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.ship_stack import bytes_of, fetch, lose_rolled_segments
from tests.harness.world import World

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

    def __exit__(self, *_: object) -> None:
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


PREFIX = "sediment_rlm_index_cache_"
# So that files are read, and not the memory, which then holds nothing.
NO_MEMORY = {"RLM_REMOTE_LOG_INDEX_CACHE_MEMORY_BYTES": "1"}


@dataclass
class CachedReads:
    """Reads all partitions through an RLM with an index cache.

    Attributes:
        logs: the first offsets of the segments and the bytes, as their broker had them, of the
            partitions that begin with a whole segment.
    """

    rlm: ServiceProcess
    logs: Mapping[TopicIdPartition, tuple[list[int], bytes]] = field(repr=False)

    def read_all(self) -> None:
        """Read each partition from its first byte to its last, whatever the cache does.

        Read also from within each segment, because its first offset needs no index.
        """
        with open_channel(self.rlm.address, PLAINTEXT) as channel:
            client = RemoteLogManagerClient(channel, self.rlm.address)
            for name, (starts, log) in self.logs.items():
                for start_offset in starts:
                    fetch(client, start_offset + 1, name, max_bytes=1)
                parts = fetch(client, starts[0], name)
                assert parts[0].error is FetchError.NONE, f"{name}: {parts[0].error_message}"
                assert b"".join(part.record_batches for part in parts) == log

    def counted(self) -> dict[str, float]:
        """Return the metrics of the index cache, by their names without the common prefix."""
        with urlopen(f"http://{self.rlm.announcement.metrics}/metrics", timeout=60) as answer:
            lines = str(answer.read(), "utf-8").splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(PREFIX))
        return {name.removeprefix(PREFIX): float(value) for name, _, value in found}

    def log_lines(self) -> list[str]:
        """Return the warnings of the index cache."""
        text = self.rlm.process.log_path.read_text()
        return [line for line in text.splitlines() if '"WARNING"' in line and "index cache" in line]


@contextmanager
def cached_reads(
    world: World, directory: Path, index_dir: Path, **settings: str
) -> Iterator[CachedReads]:
    """Ship the world's log, delete it from the disk, and prepare an RLM for it without starting
    it.
    """
    found = find_partitions([world.log_dir]).partitions
    logs = {
        name: (starts, log)
        for name, folder in found.items()
        for starts, log in [_log_in(folder.path)]
        if folder.log_start_offset in (None, starts[0])
    }
    assert len(logs) > 1
    world.ship()
    lose_rolled_segments(world.log_dir)
    addresses = world.rsm.address, world.rlmm.address
    reported = rlm_settings(*addresses, [world.log_dir], 200, index_dir)
    rlm = ServiceProcess("rlm", {**reported, **NO_MEMORY, **settings}, directory)
    try:
        yield CachedReads(rlm, logs)
    finally:
        rlm.kill()


def _log_in(folder: Path) -> tuple[list[int], bytes]:
    return sorted(int(log.stem) for log in folder.glob("*.log")), bytes_of(folder)
