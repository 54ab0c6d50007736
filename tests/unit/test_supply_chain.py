"""Check the lock, what installs from it, and the licences of what it names."""

import base64
import hashlib
import io
import re
import tarfile
import tomllib
from dataclasses import replace

import pytest

from hatch_build import ROOT
from supply_chain.bill_of_materials import check_allowed, complete, licence_of
from supply_chain.npm import UPLOT, files_of
from supply_chain.requirements import EXPORT_LOCK, LOCK, locked, sets
from tools.licences import SETS, installed, packages

PAGE = ROOT / "docs" / "reference" / "licences.md"
EXPORT_POM = ROOT / "supply_chain" / "export" / "pom.xml"
PIP = re.compile(r"pip\S* (?:--python \S+ )?(?:install|wheel) .*")


def names(*of: str) -> set[str]:
    return {entry.name for entry in locked(*of)}


def test_every_locked_package_has_hashes() -> None:
    entries = locked(*sets())
    assert [entry.name for entry in entries if "--hash=sha256:" not in entry.text] == []
    # Every entry of the lock is found again: neither its text nor an annotation was misread.
    assert "".join(entry.text for entry in entries) == LOCK.read_text().split("\n", 2)[2]


def test_package_set_has_only_the_needed_packages() -> None:
    assert {"grpcio", "pydantic-core", "psycopg-binary", "zstandard"} <= names("services")
    assert names("spark") >= {"pyspark", "py4j", "pandas", "numpy"}
    tools = {"pytest", "mypy", "grpcio-tools", "cyclonedx-bom", "setuptools", "pyspark"}
    assert names("services", "embedded") & tools == set()


def test_the_build_tools_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = set(project["build-system"]["requires"])
    assert wanted <= {f"{entry.name}=={entry.version}" for entry in locked("build")}


def test_the_lock_of_exports_differs_in_spark_alone() -> None:
    needed = ("services", "spark", "build")
    own = {entry.name: entry.version for entry in locked(*needed, lock=EXPORT_LOCK)}
    ours = {entry.name: entry.version for entry in locked(*needed)}
    assert {name for name in own | ours if own.get(name) != ours.get(name)} == {"pyspark"}
    assert EXPORT_LOCK.read_text().count("--hash=sha256:") > len(own)
    made_for = re.search(r"<artifactId>delta-spark_([\d.]+)_", EXPORT_POM.read_text())
    assert made_for is not None
    assert own["pyspark"].startswith(f"{made_for[1]}.")


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(LookupError, match=r"no extra 'sparks'; it has .*spark"):
        locked("sparks")


@pytest.mark.parametrize("path", ["Makefile", ".ci/run", "supply_chain/install"])
def test_pip_downloads_nothing_without_a_hash(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", " ")
    commands = [
        found.group()
        for line in text.splitlines()
        if not line.lstrip().startswith("#") and (found := PIP.search(line))
    ]
    assert commands
    for command in commands:
        of_the_project = {"--no-build-isolation", "--no-deps"} <= set(command.split())
        assert "--require-hashes" in command or "--no-index" in command or of_the_project, command
        builds = "--no-index" in command or "--no-build-isolation" in command
        assert builds or "go.lock" in command or "tools.txt" in command, command


def test_only_the_known_files_call_pip() -> None:
    files = [ROOT / "Makefile", *ROOT.glob("docker/*"), *ROOT.glob(".ci/*")]
    files += [ROOT / "supply_chain" / "install"]
    callers = [path for path in files if PIP.search(path.read_text().replace("\\\n", " "))]
    assert {str(path.relative_to(ROOT)) for path in callers} == {
        "Makefile",
        ".ci/run",
        "supply_chain/install",
    }


def test_page_of_licences_lists_the_locked_packages() -> None:
    rows = _rows("Python packages")
    listed = [(name, version, purpose) for name, version, _, purpose in rows]
    assert listed == list(packages()), "run `make licences`"


@pytest.mark.deep
def test_the_page_names_the_licences_of_the_packages_and_all_are_allowed() -> None:
    listed = {name: licence for name, _, licence, _ in _rows("Python packages")}
    found = installed()
    everywhere = {e.name for e in locked("services", "embedded", "dev") if " ; " not in e.text}
    assert found.keys() >= everywhere
    assert {name: listed[name] for name in found} == found, "run `make licences`"
    stated = [*listed.values(), *(licence for _, _, licence in _rows("In the jar"))]
    for licence in stated:
        check_allowed({"name": "x", "version": "1", "licenses": [{"expression": licence}]})


def test_every_set_of_the_lock_has_a_purpose_on_the_page() -> None:
    assert set(SETS) == set(sets())


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("(GPL-3.0-only OR MIT) AND BSD-3-Clause", True),
        ("GPL-3.0-only", False),
        ("MIT AND AGPL-3.0-or-later", False),
        ("BUSL-1.1 OR GPL-3.0-only", False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_refused(expression: str, is_allowed: bool) -> None:
    component = {"name": "x", "version": "1", "licenses": [{"expression": expression}]}
    if is_allowed:
        check_allowed(component)
        return
    with pytest.raises(ValueError, match=re.escape(f"x 1 has the licence {expression}")):
        check_allowed(component)


def test_a_component_without_a_licence_is_refused() -> None:
    with pytest.raises(LookupError, match="x 1 states no SPDX licence"):
        licence_of({"name": "x", "version": "1", "licenses": [{"license": {"name": "Custom"}}]})


def test_a_completed_bill_states_licence_and_package_url() -> None:
    wheel = {"type": "distribution", "url": "file:///tmp/w/lz4-1.whl"}
    apache = "License :: OSI Approved :: Apache Software License"
    bill = {
        "components": [
            {"name": "lz4", "version": "1", "externalReferences": [wheel]},
            {
                "name": "Snappy_Py",
                "version": "2",
                "licenses": [{"license": {"name": apache}}],
            },
        ]
    }
    lz4, other = complete(bill)["components"]
    concluded = {"id": "BSD-3-Clause", "acknowledgement": "concluded"}
    assert lz4["licenses"] == [{"license": concluded}]
    assert lz4["purl"] == "pkg:pypi/lz4@1"
    assert lz4["externalReferences"][0]["url"] == "lz4-1.whl"
    assert other["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert other["purl"] == "pkg:pypi/snappy-py@2"


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading that begins so."""
    section = re.split(rf"^## {heading}.*$", PAGE.read_text(), flags=re.MULTILINE)[1]
    lines = section.partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def _npm_archive(contents: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def test_the_charting_library_is_taken_by_its_hash_alone() -> None:
    archive = _npm_archive({name: name.encode() for name in UPLOT.files})
    with pytest.raises(ValueError, match=r"uplot-1\.6\.32\.tgz has the sha512 .*, not KIMVnG68"):
        files_of(UPLOT, archive)
    sha512 = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    found = files_of(replace(UPLOT, sha512=sha512), archive)
    assert found["uPlot.LICENSE"] == b"LICENSE"
    assert set(found) == set(UPLOT.files.values())
