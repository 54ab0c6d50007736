"""Limit what a process has: a small disk, no further thread.

No root is needed where users may have namespaces; it ends with the process that holds it.
"""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

# A remount with the options of the mount, which is mount's default, is refused to an ordinary user:
# they name a user and a group that the namespace does not have.
_HOLD = """
mount -t tmpfs -o "size=$1" tmpfs "$0" && echo mounted || exit 1
while read options; do
  mount --options-mode ignore -o "remount,$options" "$0" && echo done || echo failed
done
"""
_NAMESPACES = (["unshare", "--user", "--map-root-user", "--mount"], ["unshare", "--mount"])
_FILLER = "filler"


@dataclass
class SmallDisk:
    """A small file system.

    Attributes:
        path: its path from outside of its namespace.
    """

    path: Path
    holder: "subprocess.Popen[str]"

    def fill(self) -> None:
        """Fill the file system to the last byte."""
        fd = os.open(self.path / _FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(fd, bytes(4096))
        except OSError:
            pass
        finally:
            os.close(fd)

    def free(self) -> None:
        (self.path / _FILLER).unlink()

    def make_read_only(self) -> None:
        self._remount("ro")

    def make_writable(self) -> None:
        self._remount("rw")

    def _remount(self, options: str) -> None:
        assert self.holder.stdin is not None
        assert self.holder.stdout is not None
        self.holder.stdin.write(f"{options}\n")
        self.holder.stdin.flush()
        assert self.holder.stdout.readline() == "done\n"


@contextmanager
def small_disk(mount_point: Path, size_bytes: int) -> Iterator[SmallDisk]:
    mount_point.mkdir()
    holder = _mounted(mount_point, size_bytes)
    try:
        yield SmallDisk(Path(f"/proc/{holder.pid}/root{mount_point}"), holder)
    finally:
        holder.kill()
        holder.communicate()


def _mounted(mount_point: Path, size_bytes: int) -> "subprocess.Popen[str]":
    for namespace in _NAMESPACES:
        holder = subprocess.Popen(
            [*namespace, "sh", "-c", _HOLD, str(mount_point), str(size_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        if holder.stdout.readline() == "mounted\n":
            return holder
        holder.communicate()
    raise AssertionError(
        "neither user nor mount namespaces may be made here: a container needs "
        "--security-opt seccomp=unconfined or --cap-add SYS_ADMIN for the tests of full disks"
    )


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
