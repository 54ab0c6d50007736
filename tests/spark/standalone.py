"""A standalone Spark cluster: a master and workers as processes, each worker with its own disk."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.eventually import eventually

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
    spark_home: Path,
    variables: Mapping[str, str],
    directory: Path,
    hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"),
) -> Iterator[StandaloneCluster]:
    """Run a master and workers of one core each, which have some directories of their own.

    Args:
        variables: the environment of its processes.
        hosts: addresses of the workers. Spark starts no second copy of a task on the same host.
    """
    private, read_only = directory / "private", directory / "read-only"
    with ExitStack() as stack:
        log = directory / "master.log"
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        start = [str(spark_home / "bin" / "spark-class")]
        environment = {**variables, "SPARK_DAEMON_MEMORY": "256m"}
        main = [*start, f"{_DEPLOY}.master.Master", *arguments]
        stack.enter_context(_process(main, environment, log))
        found = eventually(lambda: _MASTER_URL.search(log.read_text()), deadline_ms=300_000)
        assert found is not None
        for number, host in enumerate(hosts):
            arguments = ["--host", host, "--webui-port", "0", "--cores", "1"]
            arguments += ["--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
            main = [*start, f"{_DEPLOY}.worker.Worker", *arguments, found[1]]
            own = directory / f"worker-{number}.log"
            stack.enter_context(_process([*_with_own(private, read_only), *main], environment, own))
        eventually(lambda: log.read_text().count(_REGISTERED) == len(hosts), deadline_ms=300_000)
        yield StandaloneCluster(found[1], private, read_only)


def _with_own(private: Path, read_only: Path) -> Sequence[str]:
    """Return the beginning of a command that gives its process directories of its own."""
    for directory in (private, read_only):
        directory.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mounts = 'mount -t tmpfs none "$0" && mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
    return [*namespace, "sh", "-c", mounts, str(private), str(read_only)]


@contextmanager
def _process(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env=environment,
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
