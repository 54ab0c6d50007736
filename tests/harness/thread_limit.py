"""Keep a running process from starting a thread: a full node, or a limit of a container."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_V1 = Path("/sys/fs/cgroup/pids")
_V2 = Path("/sys/fs/cgroup")


@contextmanager
def no_further_threads(pid: int) -> Iterator[None]:
    """Let the kernel refuse each further thread of a process while the block runs.

    Root is not bound by a limit of its processes, and gets a group of processes instead.
    """
    if os.geteuid() != 0:
        _, most = resource.prlimit(pid, resource.RLIMIT_NPROC)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (1, most))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))
        return
    before, group = _group_of(pid)
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("1")
        yield
        (group / "pids.max").write_text("max")
    finally:
        if Path(f"/proc/{pid}").exists():
            (before / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _group_of(pid: int) -> tuple[Path, Path]:
    """Return the present group of a process, and one below it that is yet to be made."""
    name = f"sediment-{uuid4().hex[:8]}"
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "pids":
            present = _V1 / path.strip("/")
            return present, present / name
    # In version 2 a group that has processes has no groups with limits below it, except the root.
    (_V2 / "cgroup.subtree_control").write_text("+pids")
    present = _V2 / line.split(":", 2)[2].strip("/")
    return present, _V2 / name
