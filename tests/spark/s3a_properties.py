"""Properties of Spark with which a bucket of a store is read and written by s3a://."""

from pathlib import Path

from services.local.seaweedfs import S3Endpoint


def s3a_properties(store: S3Endpoint, bucket: str, jars: Path) -> dict[str, str]:
    """Return the properties; `jars` is the directory of Hadoop's connector."""
    of_bucket = f"spark.hadoop.fs.s3a.bucket.{bucket}"
    return {
        "spark.jars": ",".join(sorted(map(str, jars.iterdir()))),
        f"{of_bucket}.endpoint": f"http://{store.endpoint}",
        f"{of_bucket}.endpoint.region": store.region,
        f"{of_bucket}.path.style.access": "true",
        f"{of_bucket}.access.key": store.access_key,
        f"{of_bucket}.secret.key": store.secret_key,
    }
