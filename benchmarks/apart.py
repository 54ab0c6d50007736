"""Keep the processes of a benchmark apart: each group has its processors, and its share of them.

Groups are cgroups (version 1, as root). Where that is impossible they are affinities alone, and
`Apart.how` says so.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
MOST_SHARES = 262_144
"""Of this benchmark against all else on the machine; a process outside has 1,024."""


class Apart:
    """Groups by name, the first on the first processor, each next one on the next.

    When there are more groups than processors, those left share the last one: first those that are
    measured, which keep the priority that they were started with (`chrt -r 2`), then the others by
    their shares. The others lose a real-time priority, with which they would stop the measured ones
    for 100 ms at a time.

    Attributes:
        how: what keeps the groups apart, for a benchmark's conditions.
    """

    def __init__(self, shares: Mapping[str, int | None]) -> None:
        """Make the groups, all of them empty; a group that is measured has no shares."""
        cpus = sorted(os.sched_getaffinity(0))
        self._cpus = {name: cpus[min(n, len(cpus) - 1)] for n, name in enumerate(shares)}
        self._shares = shares
        self._placed: set[int] = set()
        own = f"sediment-bench-{os.getpid()}"
        self._parents = {each: CGROUPS / each / own for each in ("cpuset", "cpu")}
        policy = {os.SCHED_FIFO: "real time", os.SCHED_RR: "real time"}
        measured = policy.get(os.sched_getscheduler(0), "normal priority")
        placed = ", ".join(f"{name} on {cpu}" for name, cpu in self._cpus.items())
        try:
            self._make()
        except OSError as error:
            self.remove()
            self._parents = {}
            self.how = f"affinity without shares ({error.strerror}), {measured}: {placed}"
        else:
            self.how = f"cgroups, cpuset and cpu.shares, {measured}: {placed}"

    def place(self, group: str, pids: Iterable[int]) -> None:
        """Move processes, with their threads and children, into a group, unless they have one."""
        for pid in pids:
            for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                try:
                    if process.pid not in self._placed:
                        self._place(group, process)
                        self._placed.add(process.pid)
                except (ProcessLookupError, psutil.NoSuchProcess):
                    continue  # a child that has ended

    def remove(self) -> None:
        """Remove the groups; the processes in them go back to where all are."""
        for parent in self._parents.values():
            for group in (*parent.glob("*/"), parent):
                for pid in _pids(group):
                    (parent.parent / "cgroup.procs").write_text(str(pid))
                if group.exists():
                    group.rmdir()

    def _make(self) -> None:
        cpuset, cpu = self._parents["cpuset"], self._parents["cpu"]
        mems = (cpuset.parent / "cpuset.mems").read_text()
        every = ",".join(str(each) for each in set(self._cpus.values()))
        for group, cpus in {
            cpuset: every,
            **{cpuset / n: c for n, c in self._cpus.items()},
        }.items():
            group.mkdir()
            (group / "cpuset.cpus").write_text(str(cpus))
            (group / "cpuset.mems").write_text(mems)
        for group, share in {
            cpu: MOST_SHARES,
            **{cpu / n: s for n, s in self._shares.items()},
        }.items():
            if share is not None:
                group.mkdir()
                (group / "cpu.shares").write_text(str(share))

    def _place(self, group: str, process: psutil.Process) -> None:
        is_measured = self._shares[group] is None
        for thread in process.threads():
            if not is_measured:
                os.sched_setscheduler(thread.id, os.SCHED_OTHER, os.sched_param(0))
            if not self._parents:
                os.sched_setaffinity(thread.id, {self._cpus[group]})
        for controller, parent in self._parents.items():
            if controller == "cpuset" or not is_measured:
                (parent / group / "cgroup.procs").write_text(str(process.pid))


@contextmanager
def apart(shares: Mapping[str, int | None]) -> Iterator[Apart]:
    """Make groups for the processes of this one, and remove them at the end."""
    affinity = os.sched_getaffinity(0)
    groups = Apart(shares)
    try:
        yield groups
    finally:
        groups.remove()
        os.sched_setaffinity(0, affinity)


def _pids(group: Path) -> list[int]:
    procs = group / "cgroup.procs"
    return [int(line) for line in procs.read_text().split()] if procs.exists() else []
