"""Check which packages import which (docs/understand/architecture.md), by the import statements."""

import subprocess
import sys

import pytest

from tools.shape import (
    ROOT,
    every_import_of,
    lines_of,
    modules,
)

# Package -> the packages of ours that it may import. Each may import itself.
CORE = {"services.api", "services.common"}
ALLOWED = {
    "services.api": set[str](),
    "services.common": {"services.api"},
    "services.records": CORE,
    "services.workflows": CORE | {"services.records"},
    "services.rpc": CORE | {"tieredstorage"},
    "services.rsm": CORE | {"services.records", "services.rpc", "tieredstorage"},
    "services.rlmm": CORE | {"services.rpc", "tieredstorage"},
    "services.rlm": CORE
    | {"services.records", "services.rpc", "services.workflows", "tieredstorage"},
    "services.client": CORE | {"services.records", "services.rpc"},
    "services.local": CORE,
    "services.cli": CORE
    | {
        "services.workflows",
        "services.client",
        "services.records",
        "services.rpc",
        "services.rsm",
        "services.rlmm",
        "services.rlm",
        "services.interop",
        "services.local",
        "services.views",
        "spark_jobs",
    },
    "services.interop": CORE,
    "services.views": CORE | {"services.rpc", "services.rlm", "services.workflows"},
    "services.console": CORE | {"services.views", "services.local", "services.rpc", "services.rsm"},
    "spark_jobs": CORE
    | {"services.rpc", "services.workflows", "services.records", "services.local"},
}
# The modules of a service that may know of the wire; its domain code does not.
WIRE_MODULES = ("servicer", "settings", "__main__")
NO_IO = (
    "grpc",
    "tieredstorage",
    "socket",
    "os",
    "pathlib",
    "threading",
    "concurrent",
    "sqlalchemy",
)


# A reader takes in a module at once. These list the methods of one contract, in one order.
LONGEST_LINES = 600
LONGER = {"services.api.remote_log_metadata_manager"}


def owner_of(name: str) -> str | None:
    """Return the entry of ALLOWED that a dotted name belongs to, "tieredstorage", or None."""
    for package in (*ALLOWED, "tieredstorage"):
        if name == package or name.startswith(package + "."):
            return package
    return None


@pytest.mark.deep
def test_packages_import_only_allowed_packages() -> None:
    broken = []
    for name in modules():
        inside = owner_of(name)
        if inside is None:
            continue
        for wanted in every_import_of(name):
            package = owner_of(wanted)
            if package and package != inside and package not in ALLOWED[inside]:
                broken.append(f"{name} imports {wanted}")
    assert broken == []


def test_only_servicers_settings_and_mains_of_services_know_the_wire() -> None:
    broken = [
        f"{name} imports {wanted}"
        for name in modules()
        if name.startswith(("services.rsm.", "services.rlmm.", "services.rlm."))
        and name.rsplit(".", 1)[1] not in WIRE_MODULES
        for wanted in every_import_of(name)
        if wanted.startswith(("services.rpc", "tieredstorage", "grpc"))
    ]
    assert broken == []


def test_the_contract_does_no_input_or_output() -> None:
    broken = [
        f"{name} imports {wanted}"
        for name in modules()
        if name.startswith("services.api")
        for wanted in every_import_of(name)
        if wanted.split(".")[0] in NO_IO
    ]
    assert broken == []


def test_only_the_suite_of_stores_imports_pytest_and_nothing_imports_it() -> None:
    suite = "services.rsm.backends.contract"
    importing = {name: every_import_of(name) for name in modules()}
    assert [name for name, wanted in importing.items() if "pytest" in wanted] == [suite]
    assert [name for name, wanted in importing.items() if suite in wanted] == []


def test_the_product_never_imports_its_demos_or_tests() -> None:
    broken = [
        f"{name} imports {wanted}"
        for name in modules()
        for wanted in every_import_of(name)
        if wanted.split(".")[0] in ("demos", "tests", "benchmarks")
    ]
    assert broken == []


def test_only_one_file_of_the_product_decompresses() -> None:
    """Its limit holds for all: nothing else imports a codec, and one file decodes records."""
    codecs = ("gzip", "zlib", "bz2", "lzma", "lz4", "snappy", "zstandard", "cramjam", "kafka.codec")
    found = {
        name
        for name in modules()
        for wanted in every_import_of(name)
        if wanted.startswith((*codecs, "kafka.record"))
    }
    product = {name for name in found if name.startswith(("services.", "spark_jobs."))}
    assert product == {"services.common.inflate"}


def test_the_rules_cover_every_package() -> None:
    packages = {f"services.{p.parent.name}" for p in (ROOT / "services").glob("*/__init__.py")}
    assert packages <= set(ALLOWED)


# Of which only commands and scans know: Arrow alone is some 36 MiB of each process.
NOT_AT_START = {"alembic", "mako", "pyarrow", "rich"}


@pytest.mark.parametrize("service", ["rsm", "rlmm", "rlm"])
def test_service_starts_without_what_only_commands_and_scans_need(service: str) -> None:
    program = f"import services.{service}.__main__, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert f"services.{service}.__main__" in loaded
    # minio's package imports its admin API; only RSM pays for it.
    forbidden = NOT_AT_START if service == "rsm" else NOT_AT_START | {"minio", "argon2", "Crypto"}
    assert loaded & forbidden == set()


def test_no_module_is_too_long_to_read_at_once() -> None:
    assert {name for name in modules() if lines_of(name) > LONGEST_LINES} == LONGER
