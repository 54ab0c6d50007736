"""Describe a location of one S3 server whose mirror is on another."""

from collections.abc import Mapping
from pathlib import Path

from services.local.data_directory import write_secret
from services.local.seaweedfs import S3Endpoint


def mirrored_settings(
    first: S3Endpoint, mirror: S3Endpoint, bucket: str, directory: Path, mirror_id: int = 2
) -> Mapping[str, str]:
    """Return RSM's settings of location 1, and of its mirror in a bucket of the same name."""
    entries = []
    for number, store, more in ((1, first, f"mirror = {mirror_id}"), (mirror_id, mirror, "")):
        keys = {"access_key": store.access_key, "secret_key": store.secret_key}
        files = {
            name: write_secret(directory / f"{number}-{name}", key) for name, key in keys.items()
        }
        secrets = "\n".join(f'{name}_file = "{file}"' for name, file in files.items())
        entries.append(
            f'[[location]]\nid = {number}\nbackend = "s3"\nprefix = ""\nbucket = "{bucket}"\n'
            f'endpoint = "{store.endpoint}"\nregion = "{store.region}"\nsecure = false\n'
            f"{secrets if number == mirror_id else ''}\n{more}\n"
        )
        store.ensure_bucket(bucket)
    file = directory / "locations.toml"
    file.write_text("".join(entries))
    return {
        "RSM_LOCATION_ID": "1",
        "RSM_DEPLOYMENT_ID": "mirrored",
        "RSM_LOCATIONS_FILE": str(file),
    }
