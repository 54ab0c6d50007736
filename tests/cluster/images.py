"""Build the images of the pods with buildah, each once for the content that it is built from.

No registry is needed: the base images that the Dockerfiles name are made here, under those names,
from Debian's packages and from this machine's Java.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.programs import ClusterUnavailableError, cache
from tests.harness.jars import run_to_end
from tests.helm.dockerfile import ROOT, arguments_of, copied_from_context, stages

PAUSE = "localhost/pause:1"
"""The image of the container that holds a pod's namespaces."""

_SUITE = "trixie"
"""The Debian whose Python is that of the Dockerfiles."""

_PYTHON_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS = Path("/etc/pip.conf")
_JAVA_FOLDERS = ("bin", "conf", "lib")
_TIMEOUT_S = 1_800.0
_PAUSE_C = """\
#include <signal.h>
#include <unistd.h>
static void end(int sign) { (void)sign; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""
_PAUSE_FILE = 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
# buildah's mounts and processes end with it, and it ends with this process, however that ends.
_ALONE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
_ALONE += ["--kill-child", "--mount-proc"]


def ensure_image(dockerfile: Path, name: str, arguments: Mapping[str, str] | None = None) -> Path:
    """Return an archive of the image that `dockerfile` builds from the work tree.

    Args:
        arguments: values of its ARGs.

    Raises:
        ClusterUnavailableError: the image is not in the cache, and cannot be built.
    """
    given = [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
    content = [*_content(dockerfile), *(option.encode() for option in given)]
    with _archive(name, content) as (archive, work):
        if work is not None:
            for base in sorted(_bases(dockerfile)):
                _build_base(work, base)
            _build(work, dockerfile, ROOT, name, *given)
            _push(work, name, archive)
    return archive


def ensure_pause() -> Path:
    """Return an archive of the image PAUSE."""
    with _archive(PAUSE, [_PAUSE_C.encode(), _PAUSE_FILE.encode()]) as (archive, work):
        if work is not None:
            context = work / "pause"
            context.mkdir()
            (context / "pause.c").write_text(_PAUSE_C)
            _run(["gcc", "-static", "-Os", "-o", "pause", "pause.c"], context)
            _build(work, _written(context, _PAUSE_FILE), context, PAUSE)
            _push(work, PAUSE, archive)
    return archive


@contextmanager
def _archive(name: str, content: Sequence[bytes]) -> Iterator[tuple[Path, Path | None]]:
    """Yield the path of an archive, and a directory to work in if the archive is to be made.

    An archive of other content under this name is removed.
    """
    digest = hashlib.sha256()
    for part in content:
        digest.update(hashlib.sha256(part).digest())
    prefix = name.rpartition("/")[2].replace(":", "-")
    archive = cache() / f"{prefix}-{digest.hexdigest()[:16]}.tar"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            yield archive, None
            return
        for killed in cache().glob("image-*/"):  # of a killed run
            shutil.rmtree(killed)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="image-") as work:
            yield archive, Path(work)
        for other in cache().glob(f"{prefix}-{'?' * 16}.tar"):
            if other != archive:
                other.unlink()


def _content(dockerfile: Path) -> list[bytes]:
    """List the bytes that an image depends on: names and contents of what is copied into it."""
    parts = [_SUITE.encode(), _PYTHON_PACKAGES.encode(), dockerfile.read_bytes()]
    for source, _ in copied_from_context(stages(dockerfile)[0]):
        path = ROOT / source
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                parts += [str(file.relative_to(ROOT)).encode(), file.read_bytes()]
    return parts


def _bases(dockerfile: Path) -> set[str]:
    """Return the images that the stages begin with or copy from."""
    parts = stages(dockerfile)
    begun = [text.split() for stage in parts for text in arguments_of(stage, "FROM")]
    own = {words[2] for words in begun if len(words) > 2}
    copies = [text for stage in parts for text in arguments_of(stage, "COPY")]
    copied = {text.split()[0].removeprefix("--from=") for text in copies if "--from=" in text}
    return ({words[0] for words in begun} | copied) - own


def _build_base(work: Path, name: str) -> None:
    context = work / "base"
    context.mkdir()
    if name.startswith("python:"):
        lines = ["ADD base.tar /", f"COPY ca.crt {_CERTIFICATES}"]
        os.link(_python_files(), context / "base.tar")
        shutil.copy(_CERTIFICATES, context / "ca.crt")
        if _PIP_SETTINGS.exists():
            shutil.copy(_PIP_SETTINGS, context / "pip.conf")
            lines.append(f"COPY pip.conf {_PIP_SETTINGS}")
    elif name.startswith("eclipse-temurin:"):
        version = name.removeprefix("eclipse-temurin:").partition("-")[0]
        home = _java_home(version)
        for part in _JAVA_FOLDERS:
            # Debian links some files to others in /etc, and its sources to nowhere.
            shutil.copytree(home / part, context / part, ignore_dangling_symlinks=True)
        shutil.copy(home / "release", context)
        lines = ["COPY . /opt/java/openjdk"]
    else:
        raise ClusterUnavailableError(f"cannot make the base image {name}: add it to {__file__}")
    file = _written(work, "\n".join(["FROM scratch", *lines, ""]))
    _build(work, file, context, f"docker.io/library/{name}")
    shutil.rmtree(context)


def _python_files() -> Path:
    """Return an archive of a Debian with Python, made once."""
    digest = hashlib.sha256(_PYTHON_PACKAGES.encode()).hexdigest()[:16]
    archive = cache() / f"python-{_SUITE}-{digest}.tar"
    if not archive.is_file():
        making = archive.with_suffix(".making.tar")
        options = ["--variant=minbase", f"--include={_PYTHON_PACKAGES}", _SUITE, str(making)]
        _run([*_ALONE, "mmdebstrap", "--quiet", *options, _debian_mirror()], cache())
        making.rename(archive)
    return archive


def _debian_mirror() -> str:
    """Return the mirror that this machine's own packages come from."""
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in lists:
        for line in path.read_text().splitlines() if path.is_file() else ():
            found = re.search(r"^(?:URIs:|deb)\s.*?(https?://\S+)", line)
            if found:
                return found[1]
    raise ClusterUnavailableError(
        "no mirror of Debian is in /etc/apt/sources.list*: name one there"
    )


def _java_home(version: str) -> Path:
    """Return where a Java of this version is on this machine."""
    homes = sorted(Path("/usr/lib/jvm").glob(f"java-{version}-*"))
    if not homes:
        how = f"apt-get install openjdk-{version}-jre-headless"
        raise ClusterUnavailableError(f"no Java {version} is in /usr/lib/jvm: {how}")
    return homes[0].resolve()


def _build(work: Path, file: Path, context: Path, name: str, *given: str) -> None:
    options = [*given, "--isolation", "chroot", "--network", "host", "--quiet"]
    _buildah(work, "build", *options, "--file", str(file), "--tag", name, str(context))


def _push(work: Path, name: str, archive: Path) -> None:
    """Write an image into an archive, which appears complete or not at all."""
    made = work / "image.tar"
    _buildah(
        work, "push", "--quiet", "--disable-compression", name, f"docker-archive:{made}:{name}"
    )
    made.rename(archive)


def _buildah(work: Path, *arguments: str) -> None:
    store = ["--root", str(work / "store"), "--runroot", str(work / "run")]
    own = ["env", f"TMPDIR={work}"]
    _run([*own, *_ALONE, "buildah", *store, "--storage-driver", "overlay", *arguments], work)


def _written(directory: Path, text: str) -> Path:
    file = directory / "Containerfile"
    file.write_text(text)
    return file


def _run(command: list[str], directory: Path) -> None:
    def failed(tail: str) -> ClusterUnavailableError:
        return ClusterUnavailableError(f"{' '.join(command)} failed:\n{tail}")

    run_to_end(command, failed, _TIMEOUT_S, directory)
