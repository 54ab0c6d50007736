"""Fetch the console's charting library from npm: one version, by its hash; axe for its tests.

    python -m supply_chain.npm

Writes the files that the page loads, and their licence, into services/console/static/vendor/, which
Git ignores. Uses the standard library alone.
"""

import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "services" / "console" / "static" / "vendor"
MAX_BYTES = 4 * 1024 * 1024
_TIMEOUT_S = 60


@dataclass(frozen=True)
class NpmPackage:
    """One version of a package.

    Attributes:
        sha512: of its archive, as npm has it in `dist.integrity`.
        files: name within the package to name here.
    """

    name: str
    version: str
    licence: str
    sha512: str
    files: dict[str, str]

    @property
    def url(self) -> str:
        return f"https://registry.npmjs.org/{self.name}/-/{self.name}-{self.version}.tgz"


UPLOT = NpmPackage(
    name="uplot",
    version="1.6.32",
    licence="MIT",
    sha512="KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
    files={
        "dist/uPlot.esm.js": "uPlot.esm.js",
        "dist/uPlot.min.css": "uPlot.min.css",
        "LICENSE": "uPlot.LICENSE",
    },
)


AXE = NpmPackage(
    name="axe-core",
    version="4.14.1",
    licence="MPL-2.0",
    sha512="FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    files={"axe.min.js": "axe.min.js"},
)
"""Checks the page's accessibility in tests; no part of any release."""


def files_of(package: NpmPackage, archive: bytes) -> dict[str, bytes]:
    """Return the wanted files of an archive.

    Raises:
        ValueError: the archive is not that of the package, or lacks a file.
    """
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != package.sha512:
        raise ValueError(
            f"{package.url} has the sha512 {found}, not {package.sha512}: the registry sent "
            "another file than the one that was reviewed"
        )
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for name, ours in package.files.items():
            member = tar.extractfile(f"package/{name}")
            if member is None:
                raise ValueError(f"{package.url} has no file {name}")
            contents[ours] = member.read(MAX_BYTES)
    return contents


def fetch(package: NpmPackage, folder: Path) -> None:
    """Download a package and write its files."""
    with urllib.request.urlopen(package.url, timeout=_TIMEOUT_S) as answer:
        archive = answer.read(MAX_BYTES)
    folder.mkdir(exist_ok=True)
    for name, content in files_of(package, archive).items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    try:
        fetch(UPLOT, VENDOR)
    except (OSError, ValueError) as e:
        sys.exit(f"the console's charting library cannot be fetched: {e}")
