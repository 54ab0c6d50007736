"""Compiles protos/ into the ignored folder gen/: on every install, and for `make protos`."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"
GEN = ROOT / "gen"


def compile_protos() -> None:
    """Replace gen/ by what protos/ says now; a deleted proto leaves no module behind."""
    shutil.rmtree(GEN, ignore_errors=True)
    GEN.mkdir()
    outs = [f"--{kind}_out={GEN}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    includes = [f"-I{PROTOS}", f"-I{google_protos()}"]
    sources = sorted(map(str, PROTOS.rglob("*.proto")))
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, *outs, *sources]
    # The plugins that write the type stubs are console scripts beside the interpreter.
    subprocess.run(command, check=True, env=_path_with_scripts())
    # Python imports no package without this file from a zip, which a wheel in --py-files is.
    for folder in {path.parent for path in GEN.rglob("*.py")} | {GEN / "tieredstorage"}:
        (folder / "__init__.py").touch()


def google_protos() -> Path:
    """The include root of google/rpc/*.proto, as googleapis-common-protos installs it."""
    spec = importlib.util.find_spec("google.rpc")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("googleapis-common-protos is not installed")
    return Path(spec.submodule_search_locations[0]).parent.parent


def _path_with_scripts() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")])}


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_protos()


if __name__ == "__main__":
    compile_protos()
