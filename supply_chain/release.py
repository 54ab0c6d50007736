"""Build what a release has, from the last commit, into a folder: `make release`.

    python -m supply_chain.release build/release
    python -m supply_chain.release --check build/release     # builds twice, compares

Everything is built in a copy of the commit, with the commit's time as SOURCE_DATE_EPOCH, so that
two builds give the same bytes. Needs the tools of `make install-dev`, Java 17 and Maven.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
NOTES = "RELEASE_NOTES.md"


@dataclass(frozen=True, slots=True)
class Versions:
    """The version of this tree, as each file has it."""

    package: str
    chart: str
    images: str
    plugin: str

    @property
    def release(self) -> str:
        """Return the version without what marks a tree before its release."""
        return re.sub(r"\.dev\d+$", "", self.package)

    def problems(self) -> list[str]:
        """Return what does not agree with pyproject.toml."""
        expected = {
            "helm/Chart.yaml: version": (self.chart, self.release),
            "helm/Chart.yaml: appVersion": (self.images, self.package),
            "kafka_plugin/pom.xml: version": (self.plugin, self.release),
        }
        return [
            f"{where} is {found}, but pyproject.toml has {self.package}: make it {wanted}"
            for where, (found, wanted) in expected.items()
            if found != wanted
        ]


def versions(root: Path = ROOT) -> Versions:
    """Read the versions of a tree."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    chart = (root / "helm" / "Chart.yaml").read_text()
    pom = (root / "kafka_plugin" / "pom.xml").read_text()
    return Versions(
        project["version"],
        _found(r"(?m)^version: (\S+)$", chart, "helm/Chart.yaml has no version"),
        _found(r"(?m)^appVersion: (\S+)$", chart, "helm/Chart.yaml has no appVersion"),
        _found(r"(?m)^  <version>(\S+)</version>$", pom, "kafka_plugin/pom.xml has no version"),
    )


def _found(pattern: str, text: str, problem: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"release: {problem}")
    return match[1]


def notes(changelog: str, version: str) -> str:
    """Return the section of CHANGELOG.md about a version."""
    heading = rf"(?m)^## {re.escape(version)}(?: .*)?\n"
    match = re.search(heading + r"(?s:(.*?))(?=^## |\Z)", changelog)
    if match is None:
        raise SystemExit(f"release: CHANGELOG.md has no section {version}; add it")
    return f"# Sediment {version}\n\n{match[1].strip()}\n"


def archive(target: Path, files: Iterable[tuple[str, Path]], time_s: int) -> None:
    """Write a .tar.gz of files under given names: same files, same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mtime = time_s
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def chart_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield what `helm package` puts into the chart's archive."""
    ignored = (root / "helm" / ".helmignore").read_text().split()
    yield from _below(root / "helm", "sediment", ignored)


def image_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the context of `docker build`: both Dockerfiles, and what .dockerignore lets in."""
    lines = (root / ".dockerignore").read_text().splitlines()
    for path in ["docker", ".dockerignore", *(line[1:] for line in lines if line[:1] == "!")]:
        yield from _below(root / path, path, ["__pycache__/"])


def _below(path: Path, name: str, ignored: Iterable[str]) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield name, path
        return
    folders = {each.rstrip("/") for each in ignored}
    for file in path.rglob("*"):
        of_it = file.relative_to(path)
        if file.is_file() and not folders & {*of_it.parts}:
            yield f"{name}/{of_it}", file


def build(target: Path) -> None:
    """Build everything into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # A path of its own would get into bills of materials: both builds of a check have the same.
    work = Path(tempfile.gettempdir()) / f"sediment-release-{os.getuid()}"
    shutil.rmtree(work, ignore_errors=True)
    try:
        _build(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(work: Path, target: Path) -> None:
    time_s = int(_output("git", "log", "-1", "--format=%ct"))
    work.mkdir(mode=0o700)
    commit = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(commit.stdout)) as tar:
        tar.extractall(work, filter="data")
    found = versions(work)
    if problems := found.problems():
        raise SystemExit("release: " + "\nrelease: ".join(problems))
    version, images = found.release, found.package
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(time_s),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }

    def run(what: str, *command: str) -> None:
        sys.stderr.write(f"release: {what}\n")
        subprocess.run(command, cwd=work, env=environment, check=True, stdout=sys.stderr)

    # The wheel has what the console's page loads, and Git has not.
    run("charting library", "python", "-m", "supply_chain.npm")
    run("wheel and sdist", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(target))
    at = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    maven = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", "kafka_plugin/pom.xml"]
    skipped = ["-Dmaven.test.skip=true", f"-Dproject.build.outputTimestamp={at}"]
    run("plugin", *maven, *skipped, "package")
    plugin = f"sediment-kafka-plugin-{version}"
    shutil.copy(work / "kafka_plugin" / "target" / f"{plugin}.jar", target)
    shutil.copy(work / "kafka_plugin" / "target" / "bom.json", target / f"{plugin}.sbom.json")
    archive(target / f"sediment-chart-{version}.tgz", chart_files(work), time_s)
    archive(target / f"sediment-images-{images}.tar.gz", image_files(work), time_s)
    for name, extras in (("sediment", []), ("sediment-spark", ["spark"])):
        image = work / "image"
        sets = ["services", "tracing", "console", *extras]
        run(f"bill of {name}", "supply_chain/install", str(image), *sets)
        shutil.move(image / "sbom.json", target / f"{name}-{images}.sbom.json")
        shutil.rmtree(image)
    (target / NOTES).write_text(notes((work / "CHANGELOG.md").read_text(), version))
    (target / SUMS).write_text("".join(f"{sum_}  {name}\n" for name, sum_ in sums(target).items()))


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file but SHA256SUMS, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    }


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build what a release has, from the last commit.")
    parser.add_argument("target", type=Path)
    parser.add_argument("--check", action="store_true", help="build twice and compare")
    options = parser.parse_args()
    target: Path = options.target.resolve()
    if changes := _output("git", "status", "--porcelain"):
        count = len(changes.splitlines())
        sys.stderr.write(f"release: {count} changed files are not in it: commit them first\n")
    build(target)
    if options.check:
        again = target.with_name(f"{target.name}-again")
        build(again)
        first, second = sums(target), sums(again)
        different = sorted(name for name in first | second if first.get(name) != second.get(name))
        if different:
            raise SystemExit(f"release: not the same bytes in two builds: {', '.join(different)}")
        shutil.rmtree(again)
        sys.stderr.write(f"release: two builds gave the same bytes of {len(first)} files\n")
    sys.stdout.write((target / SUMS).read_text())


if __name__ == "__main__":
    main()
