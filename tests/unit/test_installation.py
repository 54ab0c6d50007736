"""Test that a missing package is named with what installs it, for each kind of installation."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.output import EXIT_FAILED
from services.local import installation
from services.local.installation import how_to_install
from supply_chain.requirements import ROOT, sets
from tests.harness.sediment_command import sediment

ADVICES = {
    "spark": "install-spark",
    "kafka-demo": "install-kafka",
    "console": "install-console",
    "embedded": "install",
}


@pytest.mark.parametrize("sweep", ["retention", "removal"])
def test_sweep_without_spark_names_what_to_install(
    sweep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "spark_jobs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    options = ["--grace", "0"] if sweep == "removal" else []
    done = sediment("sweep", sweep, "--engine", "spark", *options)
    assert f"not installed; {how_to_install('spark', 'install-spark')}" in done.stderr
    assert (ROOT / done.stderr.strip().rpartition("the image of ")[2]).is_file()
    assert done.returncode == EXIT_FAILED


@pytest.mark.deep
@pytest.mark.parametrize(("extra", "target"), ADVICES.items())
def test_in_a_checkouts_own_environment_make_installs(
    extra: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert how_to_install(extra, target) == f"run `make -C {ROOT} {target}`"
    command = ["make", "-C", str(ROOT), "--always-make", "--dry-run", target]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (sets_of_target,) = re.findall(r"supply_chain.requirements (services .*?) >", done.stdout)[-1:]
    assert extra in sets_of_target.split()


@pytest.mark.parametrize("extra", ADVICES)
def test_in_another_environment_the_installer_makes_a_new_one(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    advice = how_to_install(extra, ADVICES[extra])
    run = f"run `supply_chain/install ENVIRONMENT services {extra}` in "
    assert advice.startswith(f"{run}{ROOT}, and use")
    assert extra in sets()
    # In an image or another installed wheel there is no installer beside the packages.
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert how_to_install(extra, ADVICES[extra]).startswith(f"{run}Sediment's checkout, and use")


def test_the_console_is_refused_before_it_says_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.console.CHART_LIBRARY", tmp_path / "uPlot.esm.js")
    done = sediment("console", "--rlmm", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("sediment: the console is not installed; run `")
