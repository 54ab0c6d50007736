"""Measure two sides alternately, so that changes of the machine's speed affect both."""

import json
import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.counts import ROUND, Counted
from benchmarks.counts import tree_cpu_seconds as tree_cpu_seconds

OUTPUT = Path("build/bench")
QUICK = os.environ.get("BENCH_QUICK") == "1"
"""Three short rounds, with less data if the data takes long: for work on the code."""
ROUNDS = 3 if QUICK else 9
MIB = 1024 * 1024
TOOK = "took, s"
"""The condition that says how long a whole benchmark took."""


@dataclass
class Side:
    """One side of a ratio.

    Attributes:
        samples: the figure of each round, in the side's own unit.
        cpu_seconds: of all its processes together, one for each round.
        peak_rss_bytes: the largest peak of each of its processes, by name.
        operation: what `counts` are for one of; the mean over all rounds.
        counts: CPU time by process, calls, requests, statements, bytes copied.
    """

    what: str
    samples: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    operation: str = "round"
    counts: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """A figure of quality.md.

    Attributes:
        value: the median of `samples`; None, without samples, if the run gave no result.
        samples: numerator over denominator, round by round.
    """

    name: str
    unit: str
    value: float | None
    samples: list[float]
    numerator: Side
    denominator: Side
    conditions: dict[str, object]


def ratio(
    name: str,
    rounds: int,
    numerator: tuple[str, Callable[[], float]],
    denominator: tuple[str, Callable[[], float]],
    numerator_pids: Mapping[str, int],
    conditions: Mapping[str, object],
    denominator_pids: Mapping[str, int] | None = None,
    beside: Callable[[], object] | None = None,
    counted: Counted = ROUND,
    denominator_counted: Counted = ROUND,
) -> Result:
    """Measure both sides `rounds` times, alternately.

    Args:
        numerator, denominator: a name, and a function that measures once and returns the figure.
        numerator_pids: the processes that serve the numerator, by name, each with its children;
            this process counts to both.
        denominator_pids: the same of the denominator.
        beside: called once a round, and counted to neither side.
        counted, denominator_counted: what else to count, and for each of what.
    """
    of_top = Meter(numerator[0], numerator_pids, counted)
    of_bottom = Meter(denominator[0], denominator_pids or {}, denominator_counted)
    top, bottom = of_top.side, of_bottom.side
    for _ in counted_rounds(name, rounds):
        of_top.measure(numerator[1])
        of_bottom.measure(denominator[1])
        if beside is not None:
            beside()
    samples = [a / b for a, b in zip(top.samples, bottom.samples, strict=True)]
    return Result(
        name,
        "ratio",
        statistics.median(samples),
        samples,
        top,
        bottom,
        {"rounds": rounds, "cores": os.cpu_count(), **conditions},
    )


def counted_rounds(name: str, count: int) -> Iterator[int]:
    """Yield the numbers of the rounds, and say after each how long it took."""
    for number in range(count):
        began_s = time.monotonic()
        yield number
        say(f"{name}: round {number + 1} of {count} took {time.monotonic() - began_s:.0f} s")


def say(text: str) -> None:
    """Say how far a benchmark is: one that is silent for minutes looks as if it hung."""
    Console(stderr=True).print(text)


class Meter:
    """Measure one side, round by round.

    Attributes:
        side: what was measured so far.
    """

    def __init__(self, what: str, pids: Mapping[str, int], counted: Counted = ROUND) -> None:
        """Describe a side whose processes are `pids`, with their children, and this one."""
        self.side = Side(what, operation=counted.operation)
        self._pids = pids
        self._counted = counted
        self._operations = 0.0
        self._totals = defaultdict[str, float](float)

    def measure(self, work: Callable[[], float]) -> None:
        """Do the work of a round, which returns the round's figure."""
        counts, cpu_s = self._counted.counters.read(), self._cpu_seconds()
        self.side.samples.append(work())
        cpu_s = _rise(cpu_s, self._cpu_seconds())
        counts = _rise(counts, self._counted.counters.read())
        self.side.cpu_seconds.append(sum(cpu_s.values()))
        operations = self._counted.operations
        self._operations += counts[operations] if isinstance(operations, str) else operations
        counts |= {f"CPU ms, {name}": 1000 * used_s for name, used_s in cpu_s.items()}
        for name, count in counts.items():
            self._totals[name] += count
        self.side.counts = {
            name: total / self._operations for name, total in self._totals.items() if total
        }
        for name, pid in self._pids.items():
            self.side.peak_rss_bytes[name] = peak_rss_bytes(pid)
        own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.side.peak_rss_bytes["benchmark"] = own_bytes

    def _cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of this process and of the side's, each with its children.

        Ended children are not counted. (A database's connections are children, and stay.)
        """
        own = psutil.Process().cpu_times()
        used_s = defaultdict[str, float](float, benchmark=own.user + own.system)
        for name, pid in self._pids.items():
            used_s[_kind(name)] += tree_cpu_seconds(pid)
        return dict(used_s)


def _kind(process: str) -> str:
    """Return the name that alike processes share, such as "clients 4711"."""
    return process.partition(" ")[0]


def _rise(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def peak_rss_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory (VmHWM; else the present value)."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return int(psutil.Process(pid).memory_info().rss)
    lines = (line.split() for line in status.read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")


def mib_per_s(size_bytes: int, work: Callable[[], object]) -> float:
    """Return the speed of `work`, which moves so many bytes."""
    started = time.perf_counter()
    work()
    return size_bytes / MIB / (time.perf_counter() - started)


Row = Sequence[str | float | None]


def print_table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print a table with one decimal of each figure; None is an empty cell."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*("" if c is None else c if isinstance(c, str) else f"{c:.1f}" for c in row))
    Console().print(table)


def report(result: Result) -> None:
    """Print the table and write build/bench/<name>.json."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{result.name}.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    table = Table(title=result.name, title_justify="left")
    for column in ("", "median", "spread", "CPU s a round", "peak RSS"):
        table.add_column(column)
    for side in (result.numerator, result.denominator):
        if side.samples:
            table.add_row(side.what, *_figures(side.samples), _cpu(side), _memory(side))
    table.add_row(result.unit, *_figures(result.samples), "", "", style="bold")
    Console().print(table)
    _print_counts(result)
    Console().print(result.conditions)


def _print_counts(result: Result) -> None:
    sides = [side for side in (result.numerator, result.denominator) if side.counts]
    if not sides:
        return
    table = Table(title="counts", title_justify="left")
    table.add_column("")
    for side in sides:
        table.add_column(f"{side.what}, each {side.operation}", justify="right")
    for name in dict.fromkeys(name for side in sides for name in side.counts):
        found = (side.counts.get(name) for side in sides)
        table.add_row(name, *("" if count is None else f"{count:.4g}" for count in found))
    Console().print(table)


def _figures(samples: Sequence[float]) -> tuple[str, str]:
    if not samples:
        return "no result", ""
    return f"{statistics.median(samples):.2f}", f"{min(samples):.2f} - {max(samples):.2f}"


def _cpu(side: Side) -> str:
    return f"{statistics.median(side.cpu_seconds):.2f}" if side.cpu_seconds else ""


def _memory(side: Side) -> str:
    # For several similar processes, such as "clients 4711", the largest.
    largest: dict[str, int] = {}
    for name, size in sorted(side.peak_rss_bytes.items()):
        kind = _kind(name)
        largest[kind] = max(size, largest.get(kind, 0))
    return ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in largest.items())
