"""Check the messages of `python -m demos kafka` if a part that it needs is missing."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from demos.needs import require_needs
from services.cli.output import EXIT_FAILED, EXIT_USAGE, CommandError
from services.local.installation import how_to_install

PLUGIN_CLASS = "io/sediment/kafka/SedimentRemoteStorageManager.class"


def jar(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def kafka_jars(directory: Path, version: str) -> Path:
    directory.mkdir()
    for name in (f"kafka-clients-{version}.jar", f"kafka_2.13-{version}.jar"):
        (directory / name).touch()
    return directory


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return jar(tmp_path / "plugin.jar", PLUGIN_CLASS)


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    return kafka_jars(tmp_path / "libs", "4.4.0")


@pytest.fixture(autouse=True)
def java_17(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put only this program on the PATH, so that no test depends on the machine's Java."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(java.parent))
    return java


def refusal(plugin: Path, kafka: Path) -> CommandError:
    with pytest.raises(CommandError) as caught:
        require_needs(plugin, kafka)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("version", ["4.3.1", "4.4.0", "5.0.0", "10.1.0-rc1"])
def test_the_version_is_that_of_the_jars(plugin: Path, tmp_path: Path, version: str) -> None:
    assert require_needs(plugin, kafka_jars(tmp_path / "other", version)) == version


def test_a_jar_that_is_not_there(tmp_path: Path, kafka: Path) -> None:
    error = refusal(tmp_path / "no.jar", kafka)
    assert (
        str(error) == f"--plugin {tmp_path / 'no.jar'}: no such file; `make plugin` builds the jar"
    )
    assert error.exit_code == EXIT_USAGE


def test_a_file_that_is_no_jar(tmp_path: Path, kafka: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("nothing")
    assert "cannot be read as a jar" in str(refusal(other, kafka))


def test_a_jar_of_something_else(tmp_path: Path, kafka: Path) -> None:
    other = jar(tmp_path / "other.jar", "org/example/Main.class")
    assert "not the plugin's jar" in str(refusal(other, kafka))


def test_a_directory_that_is_not_there(plugin: Path, tmp_path: Path) -> None:
    assert f"--kafka {tmp_path / 'no'}: no such directory" in str(refusal(plugin, tmp_path / "no"))


def test_a_directory_without_a_broker(plugin: Path, kafka: Path) -> None:
    (kafka / "kafka_2.13-4.4.0.jar").unlink()
    assert "has no jars of a Kafka broker" in str(refusal(plugin, kafka))


@pytest.mark.parametrize("version", ["3.9.1", "4.2.0"])
def test_a_kafka_that_is_too_old(plugin: Path, tmp_path: Path, version: str) -> None:
    error = refusal(plugin, kafka_jars(tmp_path / "old", version))
    assert f"is Kafka {version}; the plugin needs 4.3 or newer" in str(error)


def test_no_java(plugin: Path, kafka: Path, java_17: Path) -> None:
    java_17.unlink()
    error = refusal(plugin, kafka)
    assert "java is not on the PATH" in str(error)
    assert error.exit_code == EXIT_FAILED


def test_no_kafka_client(plugin: Path, kafka: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    error = refusal(plugin, kafka)
    assert f"not installed; {how_to_install('kafka-demo', 'install-kafka')}" in str(error)


@pytest.mark.deep
def test_the_command_says_so_in_a_line(tmp_path: Path, kafka: Path) -> None:
    arguments = ["--plugin", str(tmp_path / "no.jar"), "--kafka", str(kafka)]
    done = subprocess.run(
        [sys.executable, "-m", "demos", "kafka", *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_USAGE
    assert done.stdout == ""
    assert done.stderr.startswith("sediment: --plugin ")
    assert done.stderr.count("\n") == 1
