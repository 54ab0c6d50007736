"""Provide Kafka brokers of a release, their classes ready to be mapped, and the plugin's jar.

Java calls it class data sharing. An archive of another Java or class path is ignored.
"""

import fcntl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from demos.kafka_broker import SMALL_JVM, KafkaBroker, class_archive
from tests.harness.jars import ensure_kafka_jars


def kafka_broker(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    log_dirs: int = 1,
    listeners: Sequence[str] = (),
    version: str | None = None,
) -> KafkaBroker:
    """Create a broker without starting it; the first time, download its jars with ``mvn``.

    Raises:
        JarsUnavailableError, JavaMissingError: the jars cannot be obtained.
    """
    jars = ensure_kafka_jars(version)
    ensure_kafka_archive(jars)
    return KafkaBroker(directory, jars, settings, log_dirs=log_dirs, listeners=listeners)


def ensure_kafka_archive(jars: Path) -> None:
    """Start and stop a broker of these jars once, so that later ones start from an archive.

    Any number of processes may call at the same time: one does it, the others wait.
    """
    archive = class_archive(jars)
    if archive.is_file():
        return
    with (jars.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not archive.is_file():
            with tempfile.TemporaryDirectory(dir=jars.parent, prefix="archive-") as directory:
                made = Path(directory) / "made.jsa"
                jvm_options = [*SMALL_JVM, f"-XX:ArchiveClassesAtExit={made}"]
                with KafkaBroker(Path(directory) / "broker", jars, jvm_options=jvm_options):
                    pass
                made.rename(archive)


ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "kafka_plugin"


class PluginJarError(RuntimeError):
    """There is no jar of the plugin, or it is older than its sources."""


def plugin_jar() -> Path:
    """Return the jar.

    Raises:
        PluginJarError: the jar must be built first.
    """
    version = ElementTree.parse(PLUGIN / "pom.xml").findtext("./{*}version")
    jar = PLUGIN / "target" / f"sediment-kafka-plugin-{version}.jar"
    if not jar.is_file():
        raise PluginJarError(f"{jar} is not there: run `make plugin`")
    sources = [PLUGIN / "pom.xml", *_files(PLUGIN / "src" / "main"), *_files(ROOT / "protos")]
    if max(source.stat().st_mtime_ns for source in sources) > jar.stat().st_mtime_ns:
        raise PluginJarError(f"{jar} is older than its sources: run `make plugin`")
    return jar


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
