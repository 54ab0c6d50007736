"""A standalone Spark cluster: a master and workers as processes, each worker with its own disk."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.eventually import eventually
from tests.spark.bare_environment import BareEnvironment

_DEPLOY = "org.apache.spark.deploy"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Registering worker"


@dataclass(frozen=True)
class StandaloneCluster:
    """A running cluster.

    Attributes:
        master: its URL.
        private: the directory of which each worker sees an empty one of its own.
        read_only: a directory that workers cannot write to.
    """

    master: str
    private: Path
    read_only: Path


@contextmanager
def standalone_cluster(
    environment: BareEnvironment, directory: Path, workers: int = 2
) -> Iterator[StandaloneCluster]:
    """Run a master and workers of one core each, which have some directories of their own."""
    private, read_only = directory / "private", directory / "read-only"
    with ExitStack() as stack:
        log = directory / "master.log"
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(_process(environment, ["master.Master", *arguments], log))
        found = eventually(lambda: _MASTER_URL.search(log.read_text()), deadline_ms=300_000)
        assert found is not None
        for number in range(workers):
            arguments = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
            arguments += ["--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
            main = ["worker.Worker", *arguments, found[1]]
            own = directory / f"worker-{number}.log"
            stack.enter_context(_process(environment, main, own, _with_own(private, read_only)))
        eventually(
            lambda: log.read_text().count(_REGISTERED) == workers or None, deadline_ms=300_000
        )
        yield StandaloneCluster(found[1], private, read_only)


def _with_own(private: Path, read_only: Path) -> Sequence[str]:
    """Return the beginning of a command that gives its process directories of its own."""
    for directory in (private, read_only):
        directory.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mounts = 'mount -t tmpfs none "$0" && mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
    return [*namespace, "sh", "-c", mounts, str(private), str(read_only)]


@contextmanager
def _process(
    environment: BareEnvironment, main: Sequence[str], log: Path, prefix: Sequence[str] = ()
) -> Iterator[None]:
    start = str(environment.spark_home / "bin" / "spark-class")
    argv = [*prefix, start, f"{_DEPLOY}.{main[0]}", *main[1:]]
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env=environment.variables({"SPARK_DAEMON_MEMORY": "256m"}),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
