"""The Dockerfiles, as far as one can tell without a container engine: what they copy is there, and
what they run makes an installation that has every command of the chart."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from services.local.stack import PROCESS_VARIABLES
from supply_chain.bill_of_materials import canonical, licence_of
from supply_chain.requirements import locked
from tests.cluster.guide import blocks, builds
from tests.helm.chart import minimal, pod_spec, render, values_files
from tests.helm.dockerfile import (
    ROOT,
    allowed_by_dockerignore,
    arguments_of,
    copied_from_context,
    instructions,
    stages,
)
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

# That of the plugin has a jar alone, and runs nothing.
DOCKERFILES = {name: ROOT / "docker" / name for name in ("Dockerfile", "Dockerfile.spark")}
SERVICES = DOCKERFILES["Dockerfile"]
SPARK = DOCKERFILES["Dockerfile.spark"]
IN_THE_IMAGE = "/opt/sediment"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)
"""


@pytest.mark.parametrize("name", DOCKERFILES)
def test_all_that_is_copied_is_there_and_not_ignored(name: str) -> None:
    copied = {source for source, _ in copied_from_context(stages(DOCKERFILES[name])[0])}
    assert all((ROOT / source).exists() for source in copied)
    assert copied == allowed_by_dockerignore()


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_image_runs_as_the_user_that_the_chart_names(name: str) -> None:
    final = stages(DOCKERFILES[name])[-1]
    deployment = render(minimal()).one("Deployment", "sediment-rsm")
    context = pod_spec(deployment)["securityContext"]
    user, group = context["runAsUser"], context["runAsGroup"]
    assert arguments_of(final, "USER") == [f"{user}:{group}"]
    # With a name, without which Hadoop does not start.
    (made,) = arguments_of(final, "RUN")
    assert f"useradd --uid {user} --gid {group} " in made


def test_image_chart_and_local_stack_set_the_same_process_variables() -> None:
    of_the_image = arguments_of(stages(SERVICES)[-1], "ENV")[-1]
    assert dict(pair.split("=") for pair in of_the_image.split()) == PROCESS_VARIABLES
    (container,) = pod_spec(render(minimal()).one("Deployment", "sediment-rsm"))["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    assert env == PROCESS_VARIABLES


def test_the_spark_image_is_the_services_image_and_more() -> None:
    services, spark = stages(SERVICES), stages(SPARK)
    assert arguments_of(spark[0], "COPY") == arguments_of(services[0], "COPY")
    install = arguments_of(services[0], "RUN")[-1]
    assert arguments_of(spark[0], "RUN")[-1] == f"{install} spark"
    assert set(arguments_of(services[-1], "COPY")) < set(arguments_of(spark[-1], "COPY"))
    bases = [text.split()[0] for stage in services + spark for text in arguments_of(stage, "FROM")]
    assert len(set(bases)) == 1


def test_the_guide_builds_the_trials_image_with_the_servers_of_a_trial() -> None:
    (build,) = builds(blocks("To try it", "sh")[0])
    assert build.dockerfile == SERVICES.name
    install = arguments_of(stages(SERVICES)[0], "RUN")[-1]
    assert arguments_of(stages(SERVICES, build.arguments)[0], "RUN")[-1] == f"{install} embedded"


def test_the_spark_image_starts_executors_as_the_chart_does() -> None:
    final = stages(SPARK)[-1]
    data = render(values_files()["executors"]).one("ConfigMap", "sediment-sweep-executor")["data"]
    (container,) = yaml.safe_load(data["pod.yaml"])["spec"]["containers"]
    assert [json.loads(text) for text in arguments_of(final, "ENTRYPOINT")] == [
        container["command"]
    ]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_build_asks_a_registry_for_base_images_alone(name: str) -> None:
    lines = DOCKERFILES[name].read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert [line for line in comments if line.lstrip("# ").startswith("syntax=")] == []


def test_instructions_that_these_tests_do_not_read_are_not_used() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    used = {found.name for path in DOCKERFILES.values() for found in instructions(path)}
    assert used <= known


@pytest.mark.timeout(2_400)
def test_the_image_that_is_built_has_every_command_of_the_chart(
    tmp_path: Path, record_property: Record
) -> None:
    environment = _built(tmp_path)
    for command in _service_commands():
        done = _run_in(environment, command, tmp_path)
        # As far as a service comes without settings: it was found, and its imports were.
        sentence = done.stderr.strip().splitlines()[-1]
        assert sentence.endswith(": is required"), done.stderr
    for command in _sediment_commands():
        done = _run_in(environment, [*command, "--help"], tmp_path)
        assert done.returncode == 0, done.stderr
    _check_bill_of_materials(environment)
    record_property("image", SERVICES.name)


def _check_bill_of_materials(environment: Path) -> None:
    """Check that the image's own list is valid CycloneDX and names each locked package."""
    path = environment / "sbom.json"
    # In a process of its own: it takes ten seconds.
    _run([sys.executable, "-c", VALIDATE, str(path)], environment, environment / "bin")
    bill = json.loads(path.read_text())
    listed = {canonical(each["name"]): each for each in bill["components"]}
    versions = {name: each["version"] for name, each in listed.items()}
    needed = {
        entry.name: entry.version
        for entry in locked("services", "tracing", "console")
        if ";" not in entry.text
    }
    assert versions == versions | needed
    # No pip, no build tool: nothing that is not locked for the services.
    assert set(versions) <= {entry.name for entry in locked("services", "tracing", "console")}
    assert bill["metadata"]["component"]["name"] == "sediment"
    for component in listed.values():
        assert licence_of(component) != ""
        assert component["licenses"]
        assert component["purl"].startswith("pkg:pypi/")


def _built(directory: Path) -> Path:
    """Do what the build stage does, in a directory that has only what it copies; answer the
    virtual environment."""
    stage = stages(SERVICES)[0]
    context, environment = directory / "build", directory / "environment"
    context.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for source, target in copied_from_context(stage):
        place = context / target / (source if target == "./" else "")
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=ignored)
        else:
            shutil.copy(ROOT / source, place)
    for text in arguments_of(stage, "RUN"):
        here = text.replace(IN_THE_IMAGE, str(environment))
        _run(shlex.split(here), context, Path(sys.executable).parent)
    return environment


def _service_commands() -> list[list[str]]:
    rendered = render(values_files()["full"])
    workloads = rendered.of_kind("Deployment", "DaemonSet")
    return [pod_spec(workload)["containers"][0]["command"] for workload in workloads]


def _sediment_commands() -> list[list[str]]:
    jobs = render(minimal()).of_kind("Job", "CronJob")
    return [pod_spec(job)["containers"][0]["command"] for job in jobs]


def _run_in(
    environment: Path, command: Sequence[str], directory: Path
) -> subprocess.CompletedProcess[str]:
    argv = [str(environment / "bin" / command[0]), *command[1:]]
    return subprocess.run(
        argv, env={}, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def _run(command: Sequence[str], directory: Path, first_on_path: Path) -> None:
    path = os.pathsep.join([str(first_on_path), os.environ["PATH"]])
    subprocess.run(command, cwd=directory, env={**os.environ, "PATH": path}, check=True)


def test_an_executor_without_sparks_variables_names_them() -> None:
    """Needs Spark: an image without it says so before."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.entry_point", "executor"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("executor: Spark sets SPARK_DRIVER_URL, SPARK_EXECUTOR_ID, ")
