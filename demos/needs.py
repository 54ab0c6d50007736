"""Check the needs of the demos with a Kafka broker, and name each missing part in one sentence."""

import re
import zipfile
from importlib.util import find_spec
from pathlib import Path

from demos.kafka_broker import JavaMissingError, find_java
from services.cli.output import EXIT_FAILED, CommandError
from services.local.installation import how_to_install

OLDEST_KAFKA = (4, 3)

_PLUGIN_CLASS = "io/sediment/kafka/SedimentRemoteStorageManager.class"
_KAFKA_JAR = re.compile(r"kafka-clients-(?P<version>(\d+)\.(\d+)\.\d+(-rc\d+)?)\.jar")


def require_needs(plugin: Path, kafka: Path) -> str:
    """Return the version of the Kafka in the directory `kafka`, which is to use the plugin.

    Raises:
        CommandError: as require_broker, or the plugin's jar is unusable.
    """
    _require_programs()
    _require_plugin(plugin)
    return _kafka_version(kafka, "the plugin")


def require_broker(kafka: Path) -> str:
    """Return the version of the Kafka in the directory `kafka`.

    Raises:
        CommandError: a Python package, Java or Kafka's jars are missing or wrong; the message has
            the remedy.
    """
    _require_programs()
    return _kafka_version(kafka, "the demo")


def _require_programs() -> None:
    if find_spec("confluent_kafka") is None:
        raise CommandError(
            "this needs confluent-kafka, which is not installed; "
            + how_to_install("kafka-demo", "install-kafka"),
            EXIT_FAILED,
        )
    try:
        find_java()
    except JavaMissingError as e:
        raise CommandError(str(e), EXIT_FAILED) from e


def _require_plugin(jar: Path) -> None:
    if not jar.is_file():
        raise CommandError(f"--plugin {jar}: no such file; `make plugin` builds the jar")
    try:
        with zipfile.ZipFile(jar) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as e:
        raise CommandError(
            f"--plugin {jar}: cannot be read as a jar ({e}); `make plugin` builds one"
        ) from e
    if _PLUGIN_CLASS not in names:
        raise CommandError(
            f"--plugin {jar}: not the plugin's jar, it has no {_PLUGIN_CLASS}; "
            "`make plugin` builds it in kafka_plugin/target"
        )


def _kafka_version(directory: Path, who: str) -> str:
    if not directory.is_dir():
        raise CommandError(
            f"--kafka {directory}: no such directory; give the libs directory of a Kafka"
        )
    found = [m for path in directory.iterdir() if (m := _KAFKA_JAR.fullmatch(path.name))]
    if not found or not any(directory.glob("kafka_2.*.jar")):
        raise CommandError(
            f"--kafka {directory}: has no jars of a Kafka broker; give the libs directory of a "
            "Kafka, the one with kafka-clients-VERSION.jar in it"
        )
    version, numbers = found[0]["version"], (int(found[0][2]), int(found[0][3]))
    if numbers < OLDEST_KAFKA:
        oldest = ".".join(map(str, OLDEST_KAFKA))
        raise CommandError(
            f"--kafka {directory}: is Kafka {version}; {who} needs {oldest} or newer"
        )
    return version
