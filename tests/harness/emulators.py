"""Run a small real HDFS beside the emulators of other stores (services/local/emulators.py)."""

import sys
from importlib.util import find_spec
from pathlib import Path

from hdfs_native import Client

from demos.kafka_broker import find_java
from services.local import emulators
from services.local.emulators import StoreEmulator
from services.local.process import ChildProcess, ProcessError
from tests.harness.jars import ensure_jars

_HDFS = Path(__file__).parent.parent / "spark" / "hdfs"


class OneNodeHdfs(StoreEmulator):
    """A name node and a data node in one process; their jars come from Maven Central and PySpark.

    `tests/spark/hdfs/pom.xml` names the version.
    """

    backend = "hdfs"
    _START_TIMEOUT_MS = 300_000

    @classmethod
    def ensure_built(cls) -> Path:
        return ensure_jars(_HDFS / "pom.xml", "hdfs")

    def ensure_bucket(self, name: str) -> None:
        Client(self.uri, {}).mkdirs(f"/{name}", create_parent=True)

    def place(self, bucket: str) -> dict[str, str]:
        return {"directory": f"/{bucket}"}

    def options(self) -> dict[str, str]:
        return {}

    @property
    def uri(self) -> str:
        return f"hdfs://{self.address}"

    def _program(self) -> ChildProcess:
        spark = find_spec("pyspark")
        if spark is None or spark.origin is None:
            raise ProcessError("HDFS needs Hadoop's jars of PySpark: run `make install-spark`")
        jars = f"{self.ensure_built()}/*:{Path(spark.origin).parent}/jars/*"
        quick = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        argv: list[str | Path] = [find_java(), *quick, "-cp", jars, _HDFS / "OneNodeHdfs.java"]
        argv += [self._directory / "data", str(self._ports[0])]
        return ChildProcess("hdfs", argv, self._directory)

    def _is_ready(self) -> bool:
        return "hdfs://" in self.process.stdout_path.read_text()


EMULATORS: dict[str, type[StoreEmulator]] = {
    **emulators.EMULATORS,
    OneNodeHdfs.backend: OneNodeHdfs,
}


if __name__ == "__main__":
    try:
        EMULATORS[sys.argv[1]].ensure_built()
    except ProcessError as e:
        sys.exit(str(e))
