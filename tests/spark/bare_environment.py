"""An environment with Spark and the locked dependencies, but without Sediment, and its wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from services.local.stack import own_environment
from supply_chain.requirements import locked
from tests.harness.tier import Tier
from tests.spark.commands import TIMEOUT_S, Swept
from tools.shape import ROOT

MAIN = "main.py"


@dataclass(frozen=True)
class BareEnvironment:
    """What a machine of a Spark cluster has.

    Attributes:
        python: of the environment; cannot import Sediment.
        wheel, main: the two files that are submitted.
    """

    python: Path
    wheel: Path
    main: Path

    @property
    def spark_home(self) -> Path:
        [home] = self.python.parents[1].glob("lib/python*/site-packages/pyspark")
        return home

    def variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment variables of a shell of such a machine."""
        own = {"SPARK_HOME": str(self.spark_home), "PYSPARK_PYTHON": str(self.python)}
        inherited = own_environment({**own, **(more or {})})
        return {k: v for k, v in inherited.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def submit(
        self, tier: Tier, job: str, spark: tuple[str, ...], *options: str, cwd: Path
    ) -> Swept:
        """Run spark-submit to its end; `spark` are its own options, `options` those of the job.

        It prints both outputs of the job to its standard output: `Swept.stderr` has all of it.
        """
        written = cwd / "report.json"
        addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
        options = (*addresses, *options, "--report", str(written))
        done = self.spark_submit(spark, self.main, job, *options, cwd=cwd)
        report = json.loads(written.read_text()) if written.exists() else {}
        return Swept(done.returncode, report, done.stdout + done.stderr)

    def spark_submit(
        self, spark: tuple[str, ...], program: Path, *arguments: str, cwd: Path
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program with the wheel in --py-files to its end."""
        argv = [str(self.spark_home / "bin" / "spark-submit"), *spark]
        argv += ["--py-files", str(self.wheel), str(program), *arguments]
        return subprocess.run(
            argv,
            env=self.variables(),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def make_bare_environment(directory: Path, installed: Path | None = None) -> BareEnvironment:
    """Make an environment of links to what is installed here, and build the wheel.

    Args:
        installed: the site-packages to link instead of this process's own, without Sediment.
    """
    files = _locked_files() if installed is None else _files_without_sediment(installed)
    python = _environment(directory / "environment", files)
    # No hooks: they compile gen/ again, which other tests are reading.
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        env={**os.environ, "HATCH_BUILD_NO_HOOKS": "true"},
        check=True,
        capture_output=True,
    )
    [wheel] = directory.glob("sediment-*.whl")
    main = shutil.copy(ROOT / "spark_jobs" / MAIN, directory)
    return BareEnvironment(python, wheel, Path(main))


def _environment(directory: Path, files: Iterable[Path]) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for path in files:
        link = packages / path.name
        if not link.exists():
            link.symlink_to(path)
    return directory / "bin" / "python"


def _locked_files() -> Iterator[Path]:
    """Yield what the locked packages put into site-packages of this process."""
    for entry in locked("services", "spark"):
        yield from _top_level_files(entry.name)


def _files_without_sediment(packages: Path) -> Iterator[Path]:
    """Yield what is in site-packages, but for the links to this repository."""
    return (path for path in packages.iterdir() if "sediment" not in path.name)


def _top_level_files(name: str) -> set[Path]:
    """Return what a distribution puts into site-packages; nothing if it is not for this machine."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return set()
    inside = [file for file in files if not re.match(r"\.\.|__pycache__", str(file))]
    return {
        Path(str(file.locate())).parents[len(file.parts) - 2]
        if len(file.parts) > 1
        else Path(str(file.locate()))
        for file in inside
    }
