"""Measure two sides alternately, so that changes of the machine's speed affect both."""

import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

OUTPUT = Path("build/bench")
QUICK = os.environ.get("BENCH_QUICK") == "1"
"""Three short rounds, with less data if the data takes long: for work on the code."""
ROUNDS = 3 if QUICK else 9
MIB = 1024 * 1024


@dataclass
class Side:
    """One side of a ratio.

    Attributes:
        samples: the figure of each round, in the side's own unit.
        cpu_seconds: of all its processes together, one for each round.
        peak_rss_bytes: the largest peak of each of its processes, by name.
    """

    what: str
    samples: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)


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
) -> Result:
    """Measure both sides `rounds` times, alternately.

    Args:
        numerator, denominator: a name, and a function that measures once and returns the figure.
        numerator_pids: the processes that serve the numerator, by name, each with its children;
            this process counts to both.
        denominator_pids: the same of the denominator.
        beside: called once a round, and counted to neither side.
    """
    top, bottom = Side(numerator[0]), Side(denominator[0])
    for _ in track(range(rounds), description=name, console=Console(stderr=True)):
        _measure(top, numerator[1], numerator_pids)
        _measure(bottom, denominator[1], denominator_pids or {})
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


def _measure(side: Side, work: Callable[[], float], pids: Mapping[str, int]) -> None:
    before = _cpu_seconds(pids.values())
    side.samples.append(work())
    side.cpu_seconds.append(_cpu_seconds(pids.values()) - before)
    for name, pid in pids.items():
        side.peak_rss_bytes[name] = peak_rss_bytes(pid)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    side.peak_rss_bytes["benchmark"] = own


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of this process and of `pids` with their children.

    Ended children are not counted. (A database's connections are children, and stay.)
    """
    own = psutil.Process().cpu_times()
    return float(own.user + own.system) + sum(tree_cpu_seconds(pid) for pid in pids)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children since their start."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


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
    Console().print(result.conditions)


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
        kind = name.partition(" ")[0]
        largest[kind] = max(size, largest.get(kind, 0))
    return ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in largest.items())
