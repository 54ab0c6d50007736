"""Runs kafka_plugin/acceptance over services that are there, and reads what it reports."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from demos.kafka_broker import find_java
from tests.harness.kafka_broker import PLUGIN

PROJECT = PLUGIN / "acceptance"
_MAVEN_TIMEOUT_S = 900.0
_TAIL_CHARACTERS = 4096
_ANNOTATED = re.compile(r"@(?:Test|ParameterizedTest)\b.*?\bvoid (\w+)\(", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """One run of a test method.

    Attributes:
        run: what tells apart the runs of a method that has several: an index and parameters.
        outcome: passed, failure, error or skipped, as Surefire says.
        text: the stack trace of what did not pass.
    """

    class_name: str
    method: str
    run: str
    outcome: str
    seconds: float
    text: str

    @property
    def name(self) -> str:
        return f"{self.class_name}.{self.method}"

    def __str__(self) -> str:
        return f"{self.name}{self.run}: {self.outcome} after {self.seconds} s\n{self.text}"


def run_acceptance(broker_properties: Mapping[str, str], directory: Path) -> list[Case]:
    """Compile and run everything; all that is written goes below `directory`.

    Answers also what failed; that something ran at all is for the caller to check.
    """
    mvn = shutil.which("mvn")
    assert mvn is not None, "mvn is not on the PATH: it runs the acceptance tests of the plugin"
    find_java()
    properties = directory / "broker.properties"
    properties.write_text("".join(f"{k}={v}\n" for k, v in broker_properties.items()))
    command = [
        mvn,
        "-B",
        "-Dstyle.color=never",
        "--no-transfer-progress",
        f"--file={PROJECT / 'pom.xml'}",
        "test",
        f"-Doutput.directory={directory / 'output'}",
        f"-Dbroker.properties={properties}",
        "-Dmaven.test.failure.ignore=true",
    ]
    log = directory / "maven.log"
    with log.open("w") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, f"mvn failed:\n{log.read_text()[-_TAIL_CHARACTERS:]}"
    reports = sorted((directory / "output" / "surefire-reports").glob("TEST-*.xml"))
    elements = (each for report in reports for each in ElementTree.parse(report).iter("testcase"))
    return [_case(each) for each in elements]


def own_methods() -> set[str]:
    """Class.method of every test in our own classes, as their source has them."""
    return {
        f"{path.stem}.{method}"
        for path in PROJECT.rglob("src/test/java/**/*Acceptance.java")
        for method in _ANNOTATED.findall(path.read_text())
    }


def shown(cases: Sequence[Case]) -> str:
    """The cases for a person, cut to what can be read."""
    return "\n".join(str(case)[:_TAIL_CHARACTERS] for case in cases)


def _case(element: ElementTree.Element) -> Case:
    name = element.attrib["name"]
    method = re.split(r"\W", name, maxsplit=1)[0]
    trouble = [child for child in element if child.tag in ("failure", "error", "skipped")]
    return Case(
        class_name=element.attrib["classname"].rpartition(".")[2],
        method=method,
        run=name.removeprefix(method),
        outcome=trouble[0].tag if trouble else "passed",
        seconds=float(element.attrib["time"]),
        text=(trouble[0].text or "") if trouble else "",
    )
