"""Run a Kubernetes of one node in namespaces of its own, and end it however this process ends."""

import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.cluster.programs import check_machine, ensure_programs
from tests.harness.eventually import eventually

NODE_IP = "192.168.77.2"

_HERE = Path(__file__).parent
_START_DEADLINE_MS = 240_000
_STOP_TIMEOUT_S = 120.0
_RUN_TIMEOUT_S = 600.0
_TAIL_CHARACTERS = 3_000


class CommandFailedError(AssertionError):
    """A command in the cluster failed; the message has what it printed."""


class Cluster:
    """A node with its control plane; commands run on it with `run`. Not thread-safe."""

    def __init__(self) -> None:
        check_machine()
        self._programs = ensure_programs()
        # Not /tmp, which may be memory. Others may enter: PostgreSQL has a user of its own.
        self.directory = Path(tempfile.mkdtemp(prefix="sediment-cluster-", dir="/var/tmp"))
        self.directory.chmod(0o711)
        self._cgroup = f"/sediment-cluster-{uuid.uuid4().hex[:12]}"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the node and wait until pods can run on it."""
        arguments = [str(self.directory), str(self._programs), self._cgroup]
        # The keeper ends the node when this pipe ends, so also if this process is killed.
        self._keeper = subprocess.Popen(
            [str(_HERE / "keeper.sh"), *arguments], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            eventually(self._is_started, _START_DEADLINE_MS, poll_ms=200)
            self._pid = int((self.directory / "pid").read_text())
            eventually(self._is_ready, _START_DEADLINE_MS, poll_ms=200)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the node; nothing of it is left."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.wait(_STOP_TIMEOUT_S)

    def load(self, archive: Path) -> None:
        """Give an image to the node, in place of a registry."""
        socket = "/run/containerd/containerd.sock"
        self.run(["ctr", "--namespace", "k8s.io", "--address", socket, "images", "import", archive])

    def kubectl(self, *arguments: str, stdin: str | bytes = "") -> str:
        """Run kubectl and return what it prints."""
        return self.run(["kubectl", *arguments], stdin=stdin)

    def get(self, *arguments: str) -> Any:
        """Return what `kubectl get` finds, as JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def run(
        self,
        command: Sequence[str | Path],
        directory: Path | None = None,
        stdin: str | bytes = "",
        timeout_s: float = _RUN_TIMEOUT_S,
    ) -> str:
        """Run a command on the node and return what it prints.

        Raises:
            CommandFailedError: it ended with another exit code than 0.
        """
        done = subprocess.run(
            self.inside(command, directory),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        printed, complaint = done.stdout.decode(), done.stderr.decode()
        if done.returncode != 0:
            text = " ".join(str(word) for word in command)
            tail = (printed + complaint)[-_TAIL_CHARACTERS:]
            raise CommandFailedError(f"exit code {done.returncode} of {text}:\n{tail}")
        return printed

    def inside(self, command: Sequence[str | Path], directory: Path | None = None) -> list[str]:
        """Return the command that runs `command` in the namespaces of the node."""
        variables = [
            f"PATH={self._programs}:{os.environ['PATH']}:/usr/sbin:/sbin",
            f"KUBECONFIG={self.directory / 'pki' / 'admin.kubeconfig'}",
            f"HOME={self.directory}",
        ]
        enter = ["nsenter", f"--target={self._pid}", "--net", "--mount", "--pid", "--uts", "--"]
        where = ["env", f"--chdir={directory or self.directory}", *variables]
        return [*enter, *where, *(str(word) for word in command)]

    def _is_started(self) -> bool:
        assert self._keeper is not None
        if self._keeper.poll() is not None:
            raise RuntimeError("the node ended while it started")
        pid = self.directory / "pid"
        if (
            pid.exists()
            and pid.read_text()
            and not Path(f"/proc/{pid.read_text().strip()}").exists()
        ):
            raise RuntimeError(f"the node did not start:\n{self._log()}")
        return (self.directory / "started").exists()

    def _is_ready(self) -> bool:
        nodes = self.get("nodes")["items"]
        conditions = [c for node in nodes for c in node["status"].get("conditions", ())]
        # Pods wait for the account that the controllers make.
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready and bool(self.get("serviceaccounts", "--namespace=default")["items"])

    def _log(self) -> str:
        files = [self.directory / "node.log", *(self.directory / "logs").glob("*.log")]
        return "\n".join(f"{file.name}: {file.read_text()[-500:]}" for file in files)
