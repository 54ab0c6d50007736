"""`make soak`: run everything under a steady load, and see that no process holds more and more.

Produce, roll, copy, read and expire, in the tier and on the broker's disk. A sample of each process
is taken every five seconds; tests/soak/flatness.py has the rule.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import FetchPartition, FetchRequest, all_descriptions
from services.common.client_security import PLAINTEXT
from services.local.stack import EmbeddedStack
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.harness.eventually import Background
from tests.harness.rolling_broker import RollingBroker
from tests.harness.synthetic_log import make_log_dir
from tests.soak.flatness import MIB, Growth, growths, sampled

_PARTITIONS = 8
_SEGMENT_BYTES = 256 * 1024
_ROLLS_PER_S = 4.0
_TIER_BYTES = 8 * MIB
_LOCAL_SEGMENTS = 32
_SAMPLE_EVERY_S = 5.0
_READ_EVERY_S = 0.1
_READS_A_CHANNEL = 50
_JUDGED = ("rsm", "rlmm", "rlm")
_SETTINGS = {
    # Small enough to be full in minutes.
    "RLM_REMOTE_LOG_CHUNK_CACHE_MEMORY_BYTES": str(16 * MIB),
    "RLM_REMOTE_LOG_INDEX_CACHE_MEMORY_BYTES": str(MIB),
}


class Reader(Background):
    """Reads at random offsets, and connects again now and then."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self.answers: Counter[str] = Counter()

    def run(self) -> None:
        while not self.wait(0):
            with open_channel(self._address, PLAINTEXT) as channel:
                manager = RemoteLogManagerClient(channel, self._address)
                for _ in range(_READS_A_CHANNEL):
                    if self.wait(_READ_EVERY_S):
                        return
                    try:
                        self.answers[self._read(manager)] += 1
                    except RemoteStorageError as e:
                        self.answers[type(e).__name__] += 1

    def _read(self, manager: RemoteLogManagerClient) -> str:
        found = random.choice(list(all_descriptions(manager)))
        offset = random.randint(found.log_start_offset, found.log_end_offset)
        of = FetchPartition(found.topic_id_partition, offset, _SEGMENT_BYTES)
        first, *_ = manager.fetch(FetchRequest((of,), _SEGMENT_BYTES))
        return first.error.name


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    lasts_s = parser.parse_args(arguments).minutes * 60
    with tempfile.TemporaryDirectory(prefix="sediment-soak-") as name, ExitStack() as running:
        directory = Path(name)
        directory.chmod(0o711)
        log_dir = directory / "log"
        make_log_dir(log_dir, _PARTITIONS, 1, _SEGMENT_BYTES, "soak")
        stack = running.enter_context(
            EmbeddedStack(
                directory / "data", log_dirs=[log_dir], task_interval_ms=1_000, settings=_SETTINGS
            )
        )
        _expire(stack.endpoints.rlmm, stack.endpoints.rlm)
        broker = RollingBroker(
            sorted(log_dir.glob("soak-*")), _SEGMENT_BYTES, _ROLLS_PER_S, _LOCAL_SEGMENTS
        )
        readers = [Reader(stack.endpoints.rlm) for _ in range(2)]
        running.enter_context(broker)
        for reader in readers:
            running.enter_context(reader)
        samples = _samples(stack.endpoints.pids, lasts_s)
        answers = sum((reader.answers for reader in readers), Counter[str]())
        print(f"{broker.rolled} segments rolled; reads: {dict(answers)}")
        with open_channel(stack.endpoints.rlm, PLAINTEXT) as channel:
            lag = RemoteLogManagerClient(channel, stack.endpoints.rlm).copy_lag()
        print(f"{lag.lag_segments} segments of lag")
    found = [growth for name, taken in samples.items() for growth in growths(name, taken)]
    for growth in found:
        print(_text(growth))
    # Not the servers': PostgreSQL's processes each count the shared buffers that they touched.
    growing = [growth for growth in found if growth.process in _JUDGED and not growth.is_flat]
    for growth in growing:
        print(f"soak: {growth.process} holds more and more: {growth.figure}", file=sys.stderr)
    return 1 if growing else 0


def _expire(rlmm: str, rlm: str) -> None:
    """Let the topic expire, once RLMM knows it."""
    with open_channel(rlm, PLAINTEXT) as to_rlm, open_channel(rlmm, PLAINTEXT) as to_rlmm:
        (first, *_) = all_descriptions(RemoteLogManagerClient(to_rlm, rlm))
        RemoteLogMetadataManagerClient(to_rlmm, rlmm).put_topic_config(
            first.topic_id_partition.topic_id, {"retention.bytes": str(_TIER_BYTES)}, now=True
        )


def _samples(pids: dict[str, int], lasts_s: float) -> dict[str, list[dict[str, float]]]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in pids}
    until_s = time.monotonic() + lasts_s
    while time.monotonic() < until_s:
        for name, pid in pids.items():
            taken[name].append(sampled(pid))
        Event().wait(_SAMPLE_EVERY_S)
    return taken


def _text(growth: Growth) -> str:
    unit = MIB if growth.figure == "rss_bytes" else 1
    figure = "RSS, MiB" if growth.figure == "rss_bytes" else growth.figure
    state = "" if growth.is_flat or growth.process not in _JUDGED else "  GROWS"
    return (
        f"{growth.process:9} {figure:12} {growth.before / unit:8.1f} -> "
        f"{growth.after / unit:8.1f}{state}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
