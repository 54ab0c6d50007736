"""Run the workflow of a tag dry: its steps, on the files that `make release` makes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hatch_build import ROOT
from supply_chain import publish
from supply_chain.release import versions

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with the names that supply_chain/release.py writes."""
    known = versions()
    version, package = known.release, known.package
    folder = tmp_path / "release"
    folder.mkdir()
    for name in (
        f"sediment-{package}-py3-none-any.whl",
        f"sediment-{package}.tar.gz",
        f"sediment-kafka-plugin-{version}.jar",
        f"sediment-kafka-plugin-{version}.sbom.json",
        f"sediment-chart-{version}.tgz",
        f"sediment-images-{package}.tar.gz",
        f"sediment-{package}.sbom.json",
        f"sediment-spark-{package}.sbom.json",
        "RELEASE_NOTES.md",
        "SHA256SUMS",
    ):
        (folder / name).touch()
    return folder


def steps() -> list[str]:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_the_steps_are_those_that_the_tests_run() -> None:
    build, published, wheel = steps()
    assert build == "make release"
    assert published == 'python -m supply_chain.publish build/release "$REGISTRY"'
    assert wheel.startswith("mkdir dist && cp build/release/*.whl")


def test_a_dry_run_names_files_that_are_there_and_signs_what_it_pushes(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish.main(["--dry-run", str(release), "ghcr.io/owner"])
    lines = capsys.readouterr().out.splitlines()
    named = {word for line in lines for word in line.split() if word.startswith(str(release))}
    made = {f"{release}/SHA256SUMS.sigstore.json"}
    assert all(Path(word).exists() for word in named - made)
    assert named - made == {str(path) for path in release.iterdir()}
    pushed = {tag for line in lines for tag in re.findall(r"--tag (\S+)", line)}
    signed = {line.split()[-1] for line in lines if line.startswith("cosign sign ")}
    version = versions().release
    assert pushed == {
        f"ghcr.io/owner/{name}:{version}"
        for name in ("sediment", "sediment-spark", "sediment-kafka-plugin")
    }
    assert signed == pushed | {f"ghcr.io/owner/charts/sediment:{version}"}
    dockerfiles = re.findall(r"/docker/(\S+)", "\n".join(lines))
    assert all((ROOT / "docker" / name).is_file() for name in dockerfiles)


def test_the_wheel_and_the_source_go_to_the_index_alone(release: Path) -> None:
    work = release.parent
    (work / "build").mkdir()
    release.rename(work / "build" / "release")
    subprocess.run(["bash", "-euc", steps()[2]], cwd=work, check=True)
    package = versions().package
    assert {path.name for path in (work / "dist").iterdir()} == {
        f"sediment-{package}-py3-none-any.whl",
        f"sediment-{package}.tar.gz",
    }


def test_the_module_runs_as_the_workflow_calls_it(release: Path) -> None:
    command = [sys.executable, "-m", "supply_chain.publish", "--dry-run", str(release), "ghcr.io/o"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.startswith("tar -xzf ")
    assert "gh release create" in printed
