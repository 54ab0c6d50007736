"""Who may import whom (docs/architecture.md): read from the import statements themselves."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import services

ROOT = Path(services.__file__).parent.parent

# Package -> the packages of ours that it may import. Each may import itself.
ALLOWED = {
    "services.api": set[str](),
    "services.rpc": {"services.api", "tieredstorage"},
    "services.rsm": {"services.api", "services.rpc", "tieredstorage"},
    "services.rlmm": {"services.api", "services.rpc", "tieredstorage"},
    "services.rlm": {"services.api", "services.rpc", "tieredstorage"},
    "services.local": set[str](),
    "services.cli": {
        "services.api",
        "services.rpc",
        "services.rsm",
        "services.rlmm",
        "services.rlm",
        "services.local",
        "spark_jobs",
    },
    "spark_jobs": {"services.api", "services.rpc"},
}
# Generated code is for the converters, the clients, the servicers and those who run them.
GENERATED_FOR = ("services/rpc/", "services/rlmm/serving/", "servicer.py", "__main__.py")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources() -> list[Path]:
    return sorted([*(ROOT / "services").rglob("*.py"), *(ROOT / "spark_jobs").rglob("*.py")])


def package_of(name: str) -> str | None:
    """The entry of ALLOWED that a dotted name belongs to, "tieredstorage", or None: not ours."""
    for package in (*ALLOWED, "tieredstorage"):
        if name == package or name.startswith(package + "."):
            return package
    return None


def test_packages_import_only_what_they_may() -> None:
    broken = []
    for path in sources():
        inside = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if inside is None:
            continue
        for name in imports_of(path):
            wanted = package_of(name)
            if wanted and wanted != inside and wanted not in ALLOWED[inside]:
                broken.append(f"{path.relative_to(ROOT)} imports {name}")
    assert broken == []


def test_only_converters_clients_and_servicers_see_generated_code() -> None:
    broken = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not any(part in str(path.relative_to(ROOT)) for part in GENERATED_FOR)
        and any(package_of(name) == "tieredstorage" for name in imports_of(path))
    ]
    assert broken == []


def test_the_rules_cover_every_package() -> None:
    packages = {f"services.{p.parent.name}" for p in (ROOT / "services").glob("*/__init__.py")}
    assert packages <= set(ALLOWED)


def test_rlmm_starts_without_arrow() -> None:
    """Some 36 MiB of each process, of which only scans know."""
    program = "import services.rlmm.__main__, sys; print('pyarrow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
