"""Download Spark's own source of Kafka's records from Maven Central.

``tests/spark/kafka_source/pom.xml`` names the version; the jars are kept in the user's cache
directory, outside the repository.
"""

from pathlib import Path

from tests.harness.maven_jars import ensure_jars

POM = Path(__file__).resolve().parents[1] / "spark" / "kafka_source" / "pom.xml"


def ensure_spark_kafka_jars() -> Path:
    """Return a directory with Spark's source and Kafka's clients; raises as `ensure_jars`."""
    return ensure_jars(POM, "spark-kafka")
