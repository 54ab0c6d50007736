"""A standalone Spark cluster: a master and workers as processes, each worker with its own disk."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.eventually import eventually

_DEPLOY = "org.apache.spark.deploy"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Registering worker"


@dataclass
class Worker:
    """A worker of a cluster, which may be killed and started again."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.started[-1]

    def start(self) -> None:
        self.started.append(_start(self.argv, self.environment, self.log))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@dataclass(frozen=True)
class StandaloneCluster:
    """A running cluster.

    Attributes:
        master: its URL.
        private: the directory of which each worker sees an empty one of its own.
        read_only: a directory that workers cannot write to.
        workers: its workers.
        log: of its master.
    """

    master: str
    private: Path
    read_only: Path
    workers: Sequence[Worker]
    log: Path

    def start_again(self, worker: Worker) -> None:
        """Start a worker that was killed, and wait until it has registered."""
        worker.process.wait(60)
        before = self._registrations()
        worker.start()
        eventually(lambda: self._registrations() > before, deadline_ms=300_000)

    def wait_for_all(self) -> None:
        eventually(lambda: self._registrations() == len(self.workers), deadline_ms=300_000)

    def _registrations(self) -> int:
        return self.log.read_text().count(_REGISTERED)


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
    log = directory / "master.log"
    arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    start = [str(spark_home / "bin" / "spark-class")]
    environment = {**variables, "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:
        master = _start([*start, f"{_DEPLOY}.master.Master", *arguments], environment, log)
        stack.callback(master.wait, 60)
        stack.callback(master.terminate)
        found = eventually(lambda: _MASTER_URL.search(log.read_text()), deadline_ms=300_000)
        assert found is not None
        workers = []
        for number, host in enumerate(hosts):
            arguments = ["--host", host, "--webui-port", "0", "--cores", "1"]
            arguments += ["--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
            main = [*start, f"{_DEPLOY}.worker.Worker", *arguments, found[1]]
            argv = [*_with_own(private, read_only), *main]
            worker = Worker(argv, environment, directory / f"worker-{number}.log")
            worker.start()
            stack.callback(worker.stop)
            workers.append(worker)
        cluster = StandaloneCluster(found[1], private, read_only, workers, log)
        cluster.wait_for_all()
        yield cluster


def _with_own(private: Path, read_only: Path) -> Sequence[str]:
    """Return the beginning of a command that gives its process directories of its own."""
    for directory in (private, read_only):
        directory.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mounts = 'mount -t tmpfs none "$0" && mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
    return [*namespace, "sh", "-c", mounts, str(private), str(read_only)]


def _start(
    argv: Sequence[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
