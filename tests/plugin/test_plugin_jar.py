"""The jar meets nothing of the broker's class path, and the mapping that its documentation promises
is complete."""

import re
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

from services.api.errors import every_error_class
from tests.harness.kafka_broker import ROOT

pytestmark = pytest.mark.plugin

SIZE_BYTES_AT_MOST = 20 * 1024 * 1024
OURS = ("io/sediment/", "META-INF/")
PLUGINS = ("SedimentRemoteStorageManager", "SedimentRemoteLogMetadataManager")
SERVICES = "META-INF/services/"
REASON_ROW = re.compile(r"^\| *`([A-Z_]+)` *\|", re.MULTILINE)


@pytest.fixture(scope="module")
def names(jar: Path) -> list[str]:
    """Of all files in the jar."""
    with ZipFile(jar) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def test_every_file_is_below_a_folder_of_its_own(names: list[str]) -> None:
    """Above all no io/grpc, io/netty or com/google/protobuf: a broker may have its own."""
    assert [name for name in names if not name.startswith(OURS)] == []


def test_no_file_is_there_twice(names: list[str]) -> None:
    assert len(names) == len(set(names))


def test_nothing_in_it_is_for_one_platform_or_one_java(names: list[str]) -> None:
    kinds = {PurePosixPath(name).suffix for name in names}
    assert kinds.isdisjoint({".so", ".dll", ".jnilib", ".dylib", ".proto", ".java"})
    assert [name for name in names if name.startswith("META-INF/versions/")] == []
    assert "module-info.class" not in names


def test_jar_contains_no_classes_of_the_broker(names: list[str]) -> None:
    assert [name for name in names if "org/apache/kafka/" in name or "org/slf4j/" in name] == []


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_classes_that_a_brokers_settings_name_exist(names: list[str], plugin: str) -> None:
    assert f"io/sediment/kafka/{plugin}.class" in names


def test_every_provider_that_is_looked_up_by_name_is_there(jar: Path, names: list[str]) -> None:
    with ZipFile(jar) as archive:
        listed = {name: archive.read(name).decode() for name in names if name.startswith(SERVICES)}
    assert any(name.endswith("io.grpc.NameResolverProvider") for name in listed)
    for file, text in listed.items():
        providers = [line.partition("#")[0].strip() for line in text.splitlines()]
        for name in [file.removeprefix(SERVICES), *filter(None, providers)]:
            assert name.startswith("io.sediment."), file
            assert name.replace(".", "/") + ".class" in names, (file, name)


def test_jar_contains_the_licences_of_its_contents(names: list[str]) -> None:
    assert any(name.startswith("META-INF/LICENSE") for name in names)


def test_jar_is_small(jar: Path) -> None:
    assert jar.stat().st_size < SIZE_BYTES_AT_MOST


def test_the_mapping_names_every_reason_of_an_error() -> None:
    document = (ROOT / "docs" / "understand" / "spi-mapping.md").read_text()
    reasons = REASON_ROW.findall(document)
    assert sorted(reasons) == sorted(cls.reason for cls in every_error_class())
