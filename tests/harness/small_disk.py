"""Provide a real file system that is soon full: a tmpfs in a mount namespace of its own.

No root is needed where users may have namespaces; it ends with the process that holds it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
