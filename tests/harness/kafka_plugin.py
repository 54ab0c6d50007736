"""Find the jar of the Kafka plugin, which `make plugin` builds."""

from pathlib import Path
from xml.etree import ElementTree

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
