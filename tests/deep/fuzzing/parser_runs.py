"""Run the guided fuzzing of one parser in a process of its own, and count what it did."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.deep.fuzzing.progress import Progress

_RUN = re.compile(r"^#(\d+)\s", re.MULTILINE)
_DONE = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+)", re.MULTILINE)
_TAIL_BYTES = 4_096
_GRACE_S = 300
"""To import the services with instruments and to read the corpus, on a busy machine."""


@dataclass(frozen=True)
class ParserRun:
    """What one run did.

    Attributes:
        runs: inputs that the parser was given.
        edges, features: libFuzzer's measures of the code that they reached.
        findings: one line for each place that raised what is not documented.
        failure: the end of the output if the process failed.
    """

    name: str
    runs: int
    edges: int
    features: int
    findings: tuple[str, ...]
    failure: str

    @property
    def is_clean(self) -> bool:
        return not self.findings and not self.failure

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.runs:,} runs, {self.edges} edges, {self.features} features, "
            f"{len(self.findings)} findings"
        )


def run_parser(name: str, seed: int, seconds: int) -> ParserRun:
    """Fuzz a parser for some seconds; print how far it is every few seconds."""
    command = [sys.executable, "-m", "tests.deep.fuzzing.guided", name]
    with tempfile.NamedTemporaryFile(prefix="sediment-fuzzing-", suffix=f".{name}.log") as log:
        path = Path(log.name)
        with Progress(lambda: f"{name}: {_runs_so_far(path):,} runs so far"):
            try:
                code = subprocess.run(
                    [*command, "--seconds", str(seconds), "--seed", str(seed)],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    timeout=seconds + _GRACE_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = 1
        output = path.read_text(errors="replace")
    done = _DONE.search(output)
    runs, edges, features = map(int, done.groups()) if done else (0, 0, 0)
    found = tuple(line for line in output.splitlines() if line.startswith("FOUND"))
    failed = done is None or (code != 0 and not found)
    return ParserRun(name, runs, edges, features, found, output[-2_000:] if failed else "")


def _runs_so_far(log: Path) -> int:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        numbers = _RUN.findall(file.read().decode(errors="replace"))
    return int(numbers[-1]) if numbers else 0
