"""Judge whether what a process holds stays flat: the rule of `make soak`."""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

MIB = 1024 * 1024
ALLOWED_SHARE = 0.10
ALLOWED = {"rss_bytes": 16 * MIB, "threads": 4, "descriptors": 16, "connections": 8}
"""What may come on top of the share, by figure: pools and caches still fill a little."""


@dataclass(frozen=True)
class Growth:
    """How a figure changed: its median in the second and in the last third of the run."""

    process: str
    figure: str
    before: float
    after: float

    @property
    def is_flat(self) -> bool:
        """Return whether the last third is at most a tenth and ALLOWED above the second one.

        The first third is left out: caches and pools fill.
        """
        return self.after <= self.before * (1 + ALLOWED_SHARE) + ALLOWED[self.figure]


def sampled(pid: int) -> dict[str, float]:
    """Return what a process and its children hold now."""
    totals = dict.fromkeys(ALLOWED, 0.0)
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            totals["rss_bytes"] += process.memory_info().rss
            totals["threads"] += process.num_threads()
            totals["descriptors"] += process.num_fds()
            totals["connections"] += len(process.net_connections("tcp"))
    return totals


def growths(process: str, samples: Sequence[dict[str, float]]) -> list[Growth]:
    """Compare the thirds of a run; it needs at least three samples."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    return [
        Growth(process, figure, _median(middle, figure), _median(last, figure))
        for figure in ALLOWED
    ]


def _median(samples: Sequence[dict[str, float]], figure: str) -> float:
    return statistics.median(sample[figure] for sample in samples)
