"""Keep the processes of a benchmark apart: each group has its processors, and its share of them.

Groups are cgroups (version 1, as root). Where that is impossible they are affinities alone, and
`Apart.how` says so.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpuset", "cpu")
MOST_SHARES = 262_144
"""Of this benchmark against all else on the machine; a process outside has 1,024."""


class Apart:
    """Groups by name, the first on the first processor, each next one on the next.

    When there are more groups than processors, those left share the last one, by their shares.

    Attributes:
        how: what keeps the groups apart, for a benchmark's conditions.
    """

    def __init__(self, shares: Mapping[str, int]) -> None:
        """Make the groups, with these shares of a processor that several have.

        All are empty; this process goes before all else on the machine, on all processors.
        """
        cpus = sorted(os.sched_getaffinity(0))
        self._cpus = {name: cpus[min(n, len(cpus) - 1)] for n, name in enumerate(shares)}
        self._parents = [CGROUPS / each / f"sediment-bench-{os.getpid()}" for each in CONTROLLERS]
        placed = ", ".join(f"{name} on {cpu}" for name, cpu in self._cpus.items())
        try:
            self._make(shares)
        except OSError as error:
            self.remove()
            self._parents = []
            self.how = f"affinity alone, without shares ({error.strerror}): {placed}"
        else:
            self.how = f"cgroups, cpuset and cpu.shares: {placed}"

    def place(self, group: str, pids: Iterable[int]) -> None:
        """Move processes into a group, with all of their threads and children."""
        for pid in pids:
            for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                self._place(group, process)

    def remove(self) -> None:
        """Remove the groups; the processes in them go back to where all are."""
        for parent in self._parents:
            for group in (*parent.glob("*/"), parent):
                for pid in _pids(group):
                    (parent.parent / "cgroup.procs").write_text(str(pid))
                if group.exists():
                    group.rmdir()

    def _make(self, shares: Mapping[str, int]) -> None:
        cpuset, cpu = self._parents
        mems = (cpuset.parent / "cpuset.mems").read_text()
        for parent in self._parents:
            parent.mkdir()
        (cpu / "cpu.shares").write_text(str(MOST_SHARES))
        every = ",".join(str(each) for each in set(self._cpus.values()))
        for group, cpus in {
            cpuset: every,
            **{cpuset / n: c for n, c in self._cpus.items()},
        }.items():
            group.mkdir(exist_ok=True)
            (group / "cpuset.cpus").write_text(str(cpus))
            (group / "cpuset.mems").write_text(mems)
        for name, share in shares.items():
            (cpu / name).mkdir()
            (cpu / name / "cpu.shares").write_text(str(share))
        for parent in self._parents:
            (parent / "cgroup.procs").write_text(str(os.getpid()))

    def _place(self, group: str, process: psutil.Process) -> None:
        try:
            for parent in self._parents:
                (parent / group / "cgroup.procs").write_text(str(process.pid))
            if not self._parents:
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, {self._cpus[group]})
        except (ProcessLookupError, psutil.NoSuchProcess):
            return  # a child that has ended


@contextmanager
def apart(shares: Mapping[str, int]) -> Iterator[Apart]:
    """Make groups for the processes of this one, and remove them at the end.

    A real-time thread keeps a processor for 100 ms, so that none is one here.
    """
    for thread in psutil.Process().threads():
        os.sched_setscheduler(thread.id, os.SCHED_OTHER, os.sched_param(0))
    affinity: Sequence[int] = sorted(os.sched_getaffinity(0))
    groups = Apart(shares)
    try:
        yield groups
    finally:
        groups.remove()
        os.sched_setaffinity(0, affinity)


def _pids(group: Path) -> list[int]:
    procs = group / "cgroup.procs"
    return [int(line) for line in procs.read_text().split()] if procs.exists() else []
