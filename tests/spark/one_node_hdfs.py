"""Run a real HDFS of one node; its jars come from Maven Central, once, and Spark's.

``tests/spark/hdfs/pom.xml`` names the version; the jars are kept in the user's cache directory,
outside the repository.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demos.kafka_broker import find_java
from tests.harness.jars import ensure_jars

_HERE = Path(__file__).resolve().parents[1] / "spark" / "hdfs"


@contextmanager
def one_node_hdfs(spark_home: Path, directory: Path) -> Iterator[str]:
    """Run a name node and a data node in `directory`; yield their URI. Raises as `ensure_jars`."""
    jars = ensure_jars(_HERE / "pom.xml", "hdfs")
    classpath = f"{jars}/*:{spark_home}/jars/*"
    argv = [find_java(), "-Xmx256m", "-cp", classpath, str(_HERE / "OneNodeHdfs.java")]
    directory.mkdir()
    with (
        (directory / "hdfs.log").open("wb") as log,
        subprocess.Popen(
            [*argv, str(directory / "data")],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            uri = process.stdout.readline().decode().strip()
            assert uri.startswith("hdfs://"), (directory / "hdfs.log").read_text()
            yield uri
