"""Stop one of two RSMs and of two RLMMs again and again while the plugin calls both: no call fails.

tests/deep/test_rolling_restarts.py does the same with the clients in Python.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from demos.kafka_broker import find_java
from services.local.stack import ServiceProcess, rlmm_settings, rsm_settings
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars
from tests.plugin.deployment import served_calls
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = [pytest.mark.plugin, pytest.mark.timeout(600)]

THREADS = 4
STOPS = 2
METHODS = ("FetchLogSegment", "AddRemoteLogSegmentMetadata")
ROUNDS_BETWEEN_STOPS = 40

Pair = tuple[ServiceProcess, ServiceProcess]


@dataclass(frozen=True)
class Counts:
    """What the caller has done so far.

    Attributes:
        rounds: a read of a log and an index, or a change with a look-up.
        failed_calls, repeats: by the plugin's figures in JMX.
    """

    rounds: int
    failed_rounds: int
    failed_calls: int
    repeats: int


class Caller:
    """The process of RollingCalls.java."""

    def __init__(self, jar: Path, rsm: str, rlmm: str, directory: Path) -> None:
        source = Path(__file__).with_name("RollingCalls.java")
        jars = os.pathsep.join([str(jar), f"{ensure_kafka_jars()}/*"])
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [find_java(), "-Xmx256m", quiet, "-cp", jars, str(source)]
        self.errors = directory / "errors.txt"
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, rsm, rlmm, str(THREADS), str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def counts(self) -> Counts:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        words = self._process.stdout.readline().split()
        assert len(words) == 4, self.errors.read_text()
        return Counts(*map(int, words))

    def wait_for_more(self) -> None:
        enough = self.counts().rounds + ROUNDS_BETWEEN_STOPS
        eventually(lambda: self.counts().rounds >= enough, DEADLINE_MS)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def two_of(name: str, settings: Mapping[str, str], directory: Path) -> Iterator[Pair]:
    """Run two processes of a service over the same data."""
    first, second = (ServiceProcess(name, settings, directory / f"{name}-{n}") for n in range(2))
    try:
        for service in (first, second):
            service.start()
        yield first, second
    finally:
        for service in (first, second):
            service.kill()


@pytest.fixture
def pairs(store: Store, tmp_path: Path) -> Iterator[tuple[Pair, Pair]]:
    """Two RSMs and two RLMMs of this test's own, for they are restarted here."""
    with (
        two_of("rsm", rsm_settings(store.s3, store.bucket, ""), tmp_path) as rsms,
        two_of("rlmm", rlmm_settings(store.database_url), tmp_path) as rlmms,
    ):
        yield rsms, rlmms


@pytest.fixture
def caller(jar: Path, pairs: tuple[Pair, Pair], tmp_path: Path) -> Iterator[Caller]:
    rsm, rlmm = ("ipv4:" + ",".join(service.address for service in pair) for pair in pairs)
    started = Caller(jar, rsm, rlmm, tmp_path)
    yield started
    started.end()


def test_no_call_of_the_plugin_fails(caller: Caller, pairs: tuple[Pair, Pair]) -> None:
    for number in range(STOPS):
        caller.wait_for_more()
        stopped = [pair[number % 2] for pair in pairs]
        with ThreadPoolExecutor() as pool:
            list(pool.map(ServiceProcess.stop, stopped))
            caller.wait_for_more()
            list(pool.map(ServiceProcess.start, stopped))
        # The others stop when clients are connected to these, as in a rolling restart.
        for service, method in zip(stopped, METHODS, strict=True):
            eventually(partial(served_calls, service, method), DEADLINE_MS)
    counts = caller.counts()
    assert (counts.failed_rounds, counts.failed_calls) == (0, 0), caller.errors.read_text()
    assert counts.repeats > 0
