"""Download what Spark needs to keep files in S3 from Maven Central.

``tests/spark/s3a/pom.xml`` names the versions; the jars are kept in the user's cache directory,
outside the repository.
"""

from pathlib import Path

from tests.harness.maven_jars import ensure_jars

POM = Path(__file__).resolve().parents[1] / "spark" / "s3a" / "pom.xml"


def ensure_s3a_jars() -> Path:
    """Return a directory with Hadoop's connector of S3 and the AWS SDK; raises as `ensure_jars`."""
    return ensure_jars(POM, "s3a")
