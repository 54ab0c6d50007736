"""Check what `make release` builds by itself, and that one version stands everywhere."""

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from hatch_build import ROOT
from supply_chain.release import archive, chart_files, image_files, notes, versions


def test_one_version_stands_everywhere() -> None:
    found = versions()
    assert found.problems() == []
    command = [sys.executable, "-m", "services.cli", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == f"sediment {found.package}"


def test_a_version_that_differs_is_named_with_its_place() -> None:
    changed = replace(versions(), plugin="9.9.9")
    (problem,) = changed.problems()
    assert problem.startswith("kafka_plugin/pom.xml: version is 9.9.9")


def test_the_changelog_has_notes_for_this_release() -> None:
    text = notes((ROOT / "CHANGELOG.md").read_text(), versions().release)
    assert text.startswith(f"# Sediment {versions().release}\n")
    assert "## Added" in text


def test_notes_are_those_of_one_version() -> None:
    changelog = "# Changelog\n\n## 0.2.0\n\n- b\n\n## 0.1.0 (2026)\n\n### Added\n\n- a\n"
    assert notes(changelog, "0.1.0") == "# Sediment 0.1.0\n\n### Added\n\n- a\n"
    assert notes(changelog, "0.2.0") == "# Sediment 0.2.0\n\n- b\n"
    with pytest.raises(SystemExit, match=r"no section 0\.3\.0"):
        notes(changelog, "0.3.0")


def test_archives_depend_on_nothing_but_the_files(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("a")
    archive(tmp_path / "first", [("x/b", file), ("x/a", file)], 1_700_000_000)
    file.touch()
    archive(tmp_path / "second", [("x/a", file), ("x/b", file)], 1_700_000_000)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    with tarfile.open(tmp_path / "first") as tar:
        entries = [(entry.name, entry.mtime, entry.uid) for entry in tar]
    assert entries == [("x/a", 1_700_000_000, 0), ("x/b", 1_700_000_000, 0)]


def test_archives_have_what_helm_and_docker_need() -> None:
    chart = dict(chart_files(ROOT))
    assert {"sediment/Chart.yaml", "sediment/templates/workload.yaml"} <= chart.keys()
    assert not [name for name in chart if name.startswith("sediment/ci/")]
    image = dict(image_files(ROOT))
    needed = {"docker/Dockerfile", ".dockerignore", "requirements.lock", "services/__init__.py"}
    assert needed <= image.keys()
    assert not [name for name in image if "__pycache__" in name or name.startswith("tests/")]
