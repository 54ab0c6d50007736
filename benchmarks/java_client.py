"""Run Kafka's Java clients, and read the heap of a JVM."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from benchmarks.measure import MIB
from demos.kafka_broker import find_java
from tests.harness.jars import ensure_kafka_jars

_JCMD_TIMEOUT_S = 120.0
_USED = re.compile(r"garbage-first heap .*?used (\d+)K")


class JavaClient:
    """A Java program in one warm process, which prints a line for each line of its input."""

    def __init__(self, source: str, *jvm_options: str) -> None:
        """Start the program of this file name."""
        self._source = Path(__file__).with_name(source)
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        java = [find_java(), "-Xmx512m", *jvm_options, quiet, "-cp", f"{ensure_kafka_jars()}/*"]
        self._process = subprocess.Popen(
            [*java, str(self._source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *words: object) -> list[str]:
        """Return the words of the program's answer to a line of these words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"{self._source.name} has failed; its output is above")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


class Consumer(JavaClient):
    """Kafka's Java consumer, whose code is warm for all sides alike."""

    def __init__(self) -> None:
        super().__init__("CatchUp.java")

    def read(
        self, bootstrap: str, topic: str, isolation: str, ends: Sequence[int]
    ) -> tuple[int, float, float]:
        """Return the bytes read, and the seconds to the first record and to the last."""
        size, first_s, all_s = self.ask(bootstrap, topic, isolation, *ends)
        return int(size), float(first_s), float(all_s)


def heap_after_gc_mib(pid: int) -> float:
    """Collect the garbage of a JVM with G1, and return the MiB of its heap in use."""
    _jcmd(pid, "GC.run")
    shown = _jcmd(pid, "GC.heap_info")
    used = _USED.search(shown)
    if used is None:
        raise RuntimeError(f"no heap of G1 in the output of jcmd {pid} GC.heap_info:\n{shown}")
    return int(used[1]) * 1024 / MIB


def _jcmd(pid: int, command: str) -> str:
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        raise RuntimeError("jcmd is not on the PATH; install a JDK to measure a broker's heap")
    done = subprocess.run(
        [jcmd, str(pid), command],
        capture_output=True,
        text=True,
        timeout=_JCMD_TIMEOUT_S,
        check=True,
    )
    return done.stdout
