"""Keep the classes of Kafka ready to be mapped: a broker then starts with half the CPU time.

Java calls it class data sharing. An archive of another Java or class path is ignored.
"""

import fcntl
import tempfile
from pathlib import Path

from demos.kafka_broker import SMALL_JVM, KafkaBroker, class_archive


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
